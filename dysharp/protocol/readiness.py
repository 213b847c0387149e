"""Output readiness at the source GPU: a token may be combined when all its experts have told.

The OR table on chip is small; entries that do not fit spill to memory and keep counting there. A notice names token and expert, so one
that is sent twice counts once. Source: the OR table, spec/dysharp.md section 8, decision 20 of section 14.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dysharp.protocol.frozen import Table

Notice = tuple[int, int]  # (token, expert)
Announced = tuple[int, ...]  # experts that have told, in order of arrival


@dataclass(frozen=True, slots=True)
class ReadinessState:
    """`expected[token]`: notices needed. `on_chip`: tokens with an entry on chip, least recently told first; `memory`: the others.

    `ready`: tokens with all notices, in that order; their entries are gone.
    """

    entries: int
    expected: tuple[int, ...]
    on_chip: Table[int, Announced] = field(default_factory=Table)
    memory: Table[int, Announced] = field(default_factory=Table)
    ready: Table[int, None] = field(default_factory=Table)


@dataclass(frozen=True, slots=True)
class Ready:
    """`token` may be combined."""

    token: int


@dataclass(frozen=True, slots=True)
class Spilled:
    """The entry of `token` went to memory."""

    token: int


Output = Ready | Spilled


def empty(expected: tuple[int, ...], entries: int) -> ReadinessState:
    """Nobody has told anything. Tokens that expect nothing are ready at once. `entries` is at least 1."""
    return ReadinessState(entries, expected, ready=Table((t, None) for t, n in enumerate(expected) if n == 0))


def n_ready(state: ReadinessState, token: int) -> int:
    """Notices counted for `token`."""
    return state.expected[token] if token in state.ready else len(_told(state, token))


def step(state: ReadinessState, notice: Notice) -> tuple[ReadinessState, tuple[Output, ...]]:
    """The table after one notice; one for a ready token or one already seen changes nothing."""
    token, expert = notice
    told = _told(state, token)
    if token in state.ready or expert in told:
        return state, ()
    told = (*told, expert)
    memory = state.memory.without(token) if token in state.memory else state.memory
    if len(told) == state.expected[token]:
        ready = state.ready.put(token, None)
        return replace(state, on_chip=state.on_chip.without(token), memory=memory, ready=ready), (Ready(token),)
    on_chip = state.on_chip.last(token, told)
    if len(on_chip) <= state.entries:
        return replace(state, on_chip=on_chip, memory=memory), ()
    victim = on_chip.first()
    memory, on_chip = memory.put(victim, on_chip[victim]), on_chip.without(victim)
    return replace(state, on_chip=on_chip, memory=memory), (Spilled(victim),)


def _told(state: ReadinessState, token: int) -> Announced:
    return state.on_chip.get(token) or state.memory.get(token) or ()
