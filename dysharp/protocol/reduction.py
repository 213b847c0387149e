"""Reduction table of a switch port. A request makes an entry, responses add up in it, the last one sends the result.

An entry leaves early if the table needs room (the least recently used entry goes) or if it was idle for too long. It then sends its partial sum with
the number of contributions. Later responses find no entry and go on to the source with their own counts. So an existing entry has seen every response
since its request, and the source adds pieces until the counts are complete. Acknowledgements merge in the same way, with 0 as their value. Source:
DySHARP (arXiv 2605.05607), switch; CAIS (HPCA 2026), eviction and timeout of the merge unit. The key of a session and the rounding: docs/design/0004,
Blocks.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from dysharp.base import frozen
from dysharp.isa.sram import PORT, Sram, entry
from dysharp.protocol.frozen import Addable, Table

V = TypeVar("V", bound=Addable)

REDUCTION_BUFFER = Sram(
    entry=entry("reduction buffer", value=128 * 8),  # the published size counts sums alone
    owner=PORT,
    meaning="table of sums of a switch port, KiB: a full one evicts (packet level); 0: room for one sum, and in sub-layers for any number",
    cluster_key="reduction_buffer_KiB",
    option="fabric.reduction_entries",
)


@frozen
class _SessionEntry(Generic[V]):
    """One session. `count` targets have answered with the sum `value` (None = no answer yet), `remaining` have not."""

    remaining: int
    count: int
    value: V | None


@frozen
class _Sum(Generic[V]):
    """`value`: of `count` targets of `session`."""

    session: Hashable
    count: int
    value: V


@frozen
class ReductionState(Generic[V]):
    """`table`: live sessions, least recently used first, at most `entries` of them."""

    entries: int
    table: Table[Hashable, _SessionEntry[V]]


@frozen
class Request:
    """A request of `session` passes to `targets` (at least 1) targets. `session`: an opaque (source, tag, attempt)."""

    session: Hashable
    targets: int


@frozen
class Response(_Sum[V]):
    """A response of `session` arrives: the sum over `count` targets."""


@frozen
class Expire:
    """The entry of `session` was idle for too long."""

    session: Hashable


@frozen
class Result(_Sum[V]):
    """All targets of `session` have answered: their sum, which is rounded, goes to the source."""


@frozen
class Partial(_Sum[V]):
    """An entry leaves early: its unrounded sum over `count` targets goes to the source."""


@frozen
class Bypass(_Sum[V]):
    """A response without an entry goes on to the source as it is."""


Event = Request | Response[V] | Expire
Output = Result[V] | Partial[V] | Bypass[V]
Stepped = tuple[ReductionState[V], tuple[Output[V], ...]]
"""The state after an event, and what leaves."""


def empty(entries: int) -> ReductionState[V]:
    """An idle port. `entries` is at least 1."""
    return ReductionState(entries, Table())


def step(state: ReductionState[V], event: Event[V]) -> Stepped[V]:
    """The port after one event. `Expire` of an absent entry changes nothing."""
    if isinstance(event, Response):
        return _respond(state, event)
    if isinstance(event, Request):
        return _request(state, event)
    return _leave(state, event.session) if event.session in state.table else (state, ())


def _request(state: ReductionState[V], event: Request) -> Stepped[V]:
    assert event.targets > 0, f"request of {event.session} without targets"
    assert event.session not in state.table, f"second request of {event.session}: a retry takes the next attempt number"
    outputs: tuple[Output[V], ...] = ()
    if len(state.table) >= state.entries:
        state, outputs = _leave(state, state.table.first())
    return replace(state, table=state.table.last(event.session, _SessionEntry(event.targets, 0, None))), outputs


def _respond(state: ReductionState[V], event: Response[V]) -> Stepped[V]:
    entry = state.table.get(event.session)
    if entry is None:
        return state, (Bypass(event.session, event.count, event.value),)
    assert event.count <= entry.remaining, f"{event.session}: {event.count} targets answer, {entry.remaining} are left"
    value: V = event.value if entry.value is None else entry.value + event.value
    grown = _SessionEntry(entry.remaining - event.count, entry.count + event.count, value)
    if grown.remaining == 0:
        return replace(state, table=state.table.without(event.session)), (Result(event.session, grown.count, value),)
    return replace(state, table=state.table.last(event.session, grown)), ()


def _leave(state: ReductionState[V], session: Hashable) -> Stepped[V]:
    """The entry of `session` leaves. An entry without data sends nothing, because all its responses will bypass."""
    entry = state.table[session]
    left = replace(state, table=state.table.without(session))
    return left, () if entry.value is None else (Partial(session, entry.count, entry.value),)
