"""Sums of `red.cais` in a port's merge table: contributions add up, and what leaves early goes home as a partial sum.

A sum takes a place of `merging.MergeState`. Without a free place the oldest open sum leaves; without an open sum the contribution passes.
The home adds what comes and counts contributions. Source: CAIS (HPCA 2026), merge unit.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from dysharp.protocol import merging
from dysharp.protocol.frozen import Addable, Table
from dysharp.protocol.merging import MergeState


@dataclass(frozen=True, slots=True)
class SumState:
    """`merge`: the places. `open`: (contributions, sum) by address, least recently used first."""

    merge: MergeState
    open: Table[Hashable, tuple[int, Addable]]


@dataclass(frozen=True, slots=True)
class Contribute:
    """`value` for the sum of `address`, of `expected` contributions."""

    address: Hashable
    value: Addable
    expected: int


@dataclass(frozen=True, slots=True)
class Evict:
    """The sum of `address` was idle for too long."""

    address: Hashable


@dataclass(frozen=True, slots=True)
class Sent:
    """`value`, the sum of `count` contributions, goes home."""

    address: Hashable
    count: int
    value: Any


def empty(places: int) -> SumState:
    """An idle table of `places`."""
    return SumState(merging.empty(places), Table())


def step(state: SumState, event: Contribute | Evict) -> tuple[SumState, tuple[Sent, ...]]:
    """The sums after one event."""
    if isinstance(event, Evict):
        return _leave(state, event.address)
    if event.address not in state.open:
        return _first(state, event)
    count, value = state.open[event.address]
    grown = SumState(state.merge, state.open.last(event.address, (count + 1, value + event.value)))
    return _leave(grown, event.address) if count + 1 == event.expected else (grown, ())


def _first(state: SumState, event: Contribute) -> tuple[SumState, tuple[Sent, ...]]:
    left: tuple[Sent, ...] = ()
    merge, has_place = _take(state.merge)
    if not has_place and len(state.open):
        state, left = _leave(state, state.open.first())
        merge, has_place = _take(state.merge)
    if not has_place or event.expected == 1:
        return state, (*left, Sent(event.address, 1, event.value))
    return SumState(merge, state.open.last(event.address, (1, event.value))), left


def _take(merge: MergeState) -> tuple[MergeState, bool]:
    merge, outputs = merging.step(merge, merging.Take())
    return merge, merging.Taken(True) in outputs


def _leave(state: SumState, address: Hashable) -> tuple[SumState, tuple[Sent, ...]]:
    count, value = state.open[address]
    return SumState(merging.step(state.merge, merging.Give())[0], state.open.without(address)), (Sent(address, count, value),)
