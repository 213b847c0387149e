"""Source side of a reduction: pieces add up per attempt. The first attempt with all its counts completes the tag.

A piece is a result, an evicted partial sum, a response that bypassed the reduction table, or the sum of the source's own experts. A total is complete
when the counts of its pieces reach the target count. So the number of pieces is free. Pieces of different attempts never mix, because each attempt
covers every target once. Acknowledgements are collected in the same way, with 0 as their value. DySHARP (arXiv 2605.05607) does not describe evicted
sums: docs/design/0004, Blocks.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from dysharp.base import frozen
from dysharp.protocol.frozen import Addable, Table

V = TypeVar("V", bound=Addable)


@frozen
class _Total(Generic[V]):
    """The sum of the pieces of an attempt so far, and the number of contributions in it."""

    count: int
    value: V


@frozen
class CollectState(Generic[V]):
    """The tags that are not complete. `open`: (target count, totals by attempt) by tag."""

    open: Table[Hashable, tuple[int, Table[int, _Total[V]]]]


@frozen
class Open:
    """`tag` waits for `targets` (at least 1) contributions."""

    tag: Hashable
    targets: int


@frozen
class PartialSum(Generic[V]):
    """A piece arrives: the sum of `count` contributions to an attempt of `tag`."""

    tag: Hashable
    attempt: int
    count: int
    value: V


@frozen
class Complete(Generic[V]):
    """`attempt` is the first attempt with all contributions of `tag`. `value`: their unrounded sum."""

    tag: Hashable
    attempt: int
    value: V


@frozen
class Discarded:
    """The piece belongs to a tag that is complete already."""

    tag: Hashable
    attempt: int


Event = Open | PartialSum[V]
Output = Complete[V] | Discarded


def empty() -> CollectState[V]:
    """No tag is open."""
    return CollectState(Table())


def step(state: CollectState[V], event: Event[V]) -> tuple[CollectState[V], tuple[Output[V], ...]]:
    """The source after one event. A tag may be reused when it is complete and none of its pieces is under way."""
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


def _add(total: _Total[V] | None, piece: PartialSum[V]) -> _Total[V]:
    return _Total(piece.count, piece.value) if total is None else _Total(total.count + piece.count, total.value + piece.value)
