"""Source side of a reduction: pieces add up per attempt; the first attempt whose counts reach the target count wins.

A piece is a result, an evicted partial sum, a response that passed the switch by, or the source's own experts. Counts, not packets, say
when a total is complete, so it does not matter how the switch cut it. Pieces of different attempts never mix: each attempt covers
every target once. Source: spec/dysharp.md section 14, decision 9. Acknowledgements are collected in the same way, with 0 as their value.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dysharp.protocol.frozen import Addable, Table

V = TypeVar("V", bound=Addable)


@dataclass(frozen=True, slots=True)
class Total(Generic[V]):
    """What an attempt has so far."""

    count: int
    value: V


@dataclass(frozen=True, slots=True)
class CollectState(Generic[V]):
    """`open`: (target count, totals by attempt) of every tag that is not complete."""

    open: Table[Hashable, tuple[int, Table[int, Total[V]]]]


@dataclass(frozen=True, slots=True)
class Open:
    """`tag` waits for `targets` (at least 1) contributions."""

    tag: Hashable
    targets: int


@dataclass(frozen=True, slots=True)
class Piece(Generic[V]):
    """The sum of `count` contributions to an attempt of `tag` arrives."""

    tag: Hashable
    attempt: int
    count: int
    value: V


@dataclass(frozen=True, slots=True)
class Complete(Generic[V]):
    """`attempt` is the first to have all contributions of `tag`; `value` is their unrounded sum."""

    tag: Hashable
    attempt: int
    value: V


@dataclass(frozen=True, slots=True)
class Discarded:
    """The piece came for a tag that is complete already."""

    tag: Hashable
    attempt: int


Event = Open | Piece[V]
Output = Complete[V] | Discarded


def empty() -> CollectState[V]:
    """Nobody waits."""
    return CollectState(Table())


def step(state: CollectState[V], event: Event[V]) -> tuple[CollectState[V], tuple[Output[V], ...]]:
    """The source after one event. A tag is free for reuse once it is complete and no piece of it is under way."""
    if isinstance(event, Open):
        assert event.targets > 0, f"{event.tag} opens without targets"
        assert event.tag not in state.open, f"{event.tag} opens twice"
        return CollectState(state.open.put(event.tag, (event.targets, Table()))), ()
    waiting = state.open.get(event.tag)
    if waiting is None:
        return state, (Discarded(event.tag, event.attempt),)
    targets, totals = waiting
    total = _add(totals.get(event.attempt), event)
    assert total.count <= targets, f"{event.tag} attempt {event.attempt}: {total.count} contributions, expected {targets}"
    if total.count == targets:
        return CollectState(state.open.without(event.tag)), (Complete(event.tag, event.attempt, total.value),)
    return replace(state, open=state.open.put(event.tag, (targets, totals.put(event.attempt, total)))), ()


def _add(total: Total[V] | None, piece: Piece[V]) -> Total[V]:
    return Total(piece.count, piece.value) if total is None else Total(total.count + piece.count, total.value + piece.value)
