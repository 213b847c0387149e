"""Merge table of the switch port that faces a home: equal loads of several GPUs share one request and one response.

The first load of an address takes a place and goes on to the home. Later loads wait for its response, or the cached response answers them.
After `expected` loads the place is free. Sums of pushes take their places from the same table. Without a free place the least recently
used load leaves, if it is cached; if its response is still out, the new load passes the table and nothing leaves.
Source: CAIS (HPCA 2026), merge unit; docs/design/0002, MERGED_LOAD.
"""

from collections.abc import Hashable
from dataclasses import replace

from dysharp.base import frozen
from dysharp.protocol.frozen import Table


@frozen
class _MergeEntry:
    """One address: `count` loads so far. `waiting`: who gets the response; `ready`: the response is cached."""

    waiting: tuple[Hashable, ...]
    ready: bool
    count: int
    expected: int


@frozen
class MergeState:
    """`free`: places that neither a load nor a sum has. `loads`: by address, least recently used first."""

    free: int
    loads: Table[Hashable, _MergeEntry]


@frozen
class Load:
    """`asker` loads `address`, which `expected` (at least 1) loads ask for."""

    address: Hashable
    asker: Hashable
    expected: int


@frozen
class Response:
    """The response to the load of `address` that has a place is in the switch."""

    address: Hashable


@frozen
class Expire:
    """The entry of `address` was idle for too long. An entry whose response is still on its way stays."""

    address: Hashable


@frozen
class Take:
    """A sum begins and wants a place."""


@frozen
class Give:
    """A sum is over."""


@frozen
class Forward:
    """The load of `asker` goes on to the home. `merges`: its response comes to the table; otherwise it goes to `asker` alone."""

    asker: Hashable
    merges: bool


@frozen
class LoadResponse:
    """`asker` gets the response of `address`."""

    address: Hashable
    asker: Hashable


@frozen
class Dropped:
    """The cached response of `address` left before all loads had come."""

    address: Hashable


@frozen
class Taken:
    """Whether a sum has a place."""

    has_place: bool


Event = Load | Response | Expire | Take | Give
Output = Forward | LoadResponse | Dropped | Taken
Stepped = tuple[MergeState, tuple[Output, ...]]
"""The state after an event, and what leaves."""


def empty(places: int) -> MergeState:
    """An idle table of `places` (at least 1)."""
    return MergeState(places, Table())


def step(state: MergeState, event: Event) -> Stepped:
    """The table after one event."""
    if isinstance(event, Load):
        entry = state.loads.get(event.address)
        return _first(state, event) if entry is None else _later(state, event, entry)
    if isinstance(event, Response):
        return _respond(state, event.address)
    if isinstance(event, Give):
        return replace(state, free=state.free + 1), ()
    if isinstance(event, Take):
        state, left = _room(state)
        has_place = state.free > 0
        return replace(state, free=state.free - has_place), (*left, Taken(has_place))
    entry = state.loads.get(event.address)
    return (_leave(state, event.address), (Dropped(event.address),)) if entry is not None and entry.ready else (state, ())


def _first(state: MergeState, load: Load) -> Stepped:
    state, left = _room(state)
    if state.free == 0:
        return state, (Forward(load.asker, False),)
    entry = _MergeEntry((load.asker,), False, 1, load.expected)
    return MergeState(state.free - 1, state.loads.last(load.address, entry)), (*left, Forward(load.asker, True))


def _later(state: MergeState, load: Load, entry: _MergeEntry) -> Stepped:
    if not entry.ready:
        grown = replace(entry, waiting=(*entry.waiting, load.asker), count=entry.count + 1)
        return replace(state, loads=state.loads.last(load.address, grown)), ()
    return _settle(state, load.address, replace(entry, count=entry.count + 1)), (LoadResponse(load.address, load.asker),)


def _respond(state: MergeState, address: Hashable) -> Stepped:
    entry = state.loads[address]
    assert not entry.ready, f"second response of {address}"
    answers = tuple(LoadResponse(address, asker) for asker in entry.waiting)
    return _settle(state, address, replace(entry, waiting=(), ready=True)), answers


def _settle(state: MergeState, address: Hashable, entry: _MergeEntry) -> MergeState:
    """`entry` is ready and was used now. The entry leaves if all loads have come."""
    return _leave(state, address) if entry.count >= entry.expected else replace(state, loads=state.loads.last(address, entry))


def _room(state: MergeState) -> Stepped:
    """The table with a free place, if the least recently used load may leave."""
    if state.free > 0 or not len(state.loads):
        return state, ()
    address = state.loads.first()
    return (_leave(state, address), (Dropped(address),)) if state.loads[address].ready else (state, ())


def _leave(state: MergeState, address: Hashable) -> MergeState:
    return MergeState(state.free + 1, state.loads.without(address))
