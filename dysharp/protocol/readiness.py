"""Output readiness at the source GPU: a token may be combined when all its tiles have told.

The table on chip is small; entries that do not fit spill to memory and keep counting there. A notice
names tile and token, so one that is sent twice counts once. Source: the OR table, spec/dysharp.md section
8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Notice = tuple[int, int]  # (token, tile)


@dataclass(frozen=True, slots=True)
class ReadinessState:
    """`expected[token]`: notices needed; `seen`: distinct notices of tokens that are not ready, sorted.

    `on_chip`: tokens with an entry on chip, least recently told first; `spilled`: the others that were
    told; `ready`: tokens with all notices, in that order.
    """

    entries: int
    expected: tuple[int, ...]
    seen: tuple[Notice, ...] = ()
    on_chip: tuple[int, ...] = ()
    spilled: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()


def empty(expected: tuple[int, ...], entries: int) -> ReadinessState:
    """Nobody has told anything. Tokens that expect nothing are ready at once. `entries` is at least 1."""
    return ReadinessState(entries, expected, ready=tuple(t for t, n in enumerate(expected) if n == 0))


def n_ready(state: ReadinessState, token: int) -> int:
    """Notices counted for `token`."""
    if token in state.ready:
        return state.expected[token]
    return sum(t == token for t, _ in state.seen)


def step(state: ReadinessState, notice: Notice) -> ReadinessState:
    """The table after one notice; one for a ready token or one already seen changes nothing."""
    token = notice[0]
    if notice in state.seen or token in state.ready:
        return state
    seen = tuple(sorted((*state.seen, notice)))
    on_chip = (*(t for t in state.on_chip if t != token), token)
    spilled = tuple(t for t in state.spilled if t != token)
    told = replace(state, seen=seen)
    if n_ready(told, token) == state.expected[token]:
        return replace(
            told,
            seen=tuple(n for n in seen if n[0] != token),
            on_chip=on_chip[:-1],
            spilled=spilled,
            ready=(*state.ready, token),
        )
    if len(on_chip) > state.entries:
        spilled, on_chip = tuple(sorted((*spilled, on_chip[0]))), on_chip[1:]
    return replace(told, on_chip=on_chip, spilled=spilled)
