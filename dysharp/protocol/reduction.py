"""Reduction sessions of a switch port: contributions add up; a full table sends partial sums on.

A session that has to make room sends its partial sum to the one who waits for the total, with the number
of contributions in it; later contributions open a new entry. The receiver adds what comes and counts, so
nothing is lost and nothing counts twice, whatever is evicted. Source: spec/dysharp.md section 4,
spec/cais.md section 2 (eviction of the least recently used).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of `count` contributions to `session`."""

    session: int
    count: int
    value: int


@dataclass(frozen=True, slots=True)
class ReductionState:
    """`table`: sessions in the switch, least recently used first; `received[session]`: what its receiver has.

    `sent`: packets from switch to receivers so far: one per session if nothing was evicted.
    """

    entries: int
    expected: tuple[int, ...]
    received: tuple[Sum, ...]
    table: tuple[Sum, ...] = ()
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Contribute:
    """`value` for `session` comes up."""

    session: int
    value: int


@dataclass(frozen=True, slots=True)
class Expire:
    """The entry of `session` was idle for too long: its partial sum goes on."""

    session: int


Choice = Contribute | Expire


def empty(expected: tuple[int, ...], entries: int) -> ReductionState:
    """An idle port. `expected[session]` contributions make a session complete; `entries` is at least 1."""
    return ReductionState(entries, expected, tuple(Sum(s, 0, 0) for s in range(len(expected))))


def complete(state: ReductionState, session: int) -> bool:
    """Whether the receiver has all contributions of `session`."""
    return state.received[session].count == state.expected[session]


def step(state: ReductionState, choice: Choice) -> ReductionState:
    """The port after one contribution or one timeout. A timeout of an absent entry changes nothing."""
    entry = next((s for s in state.table if s.session == choice.session), None)
    if isinstance(choice, Expire):
        return state if entry is None else _send(state, entry)
    if entry is None:
        state = _make_room(state)
        entry = Sum(choice.session, 0, 0)
    grown = Sum(choice.session, entry.count + 1, entry.value + choice.value)
    others = tuple(s for s in state.table if s.session != choice.session)
    state = replace(state, table=(*others, grown))
    # The receiver may hold part of the session already; the switch only knows what passed through this entry.
    if grown.count == state.expected[choice.session]:
        return _send(state, grown)
    return state


def _make_room(state: ReductionState) -> ReductionState:
    return state if len(state.table) < state.entries else _send(state, state.table[0])


def _send(state: ReductionState, entry: Sum) -> ReductionState:
    """Move an entry from the table to its receiver."""
    before = state.received[entry.session]
    after = Sum(entry.session, before.count + entry.count, before.value + entry.value)
    received = (*state.received[: entry.session], after, *state.received[entry.session + 1 :])
    table = tuple(s for s in state.table if s.session != entry.session)
    return replace(state, table=table, received=received, sent=state.sent + 1)
