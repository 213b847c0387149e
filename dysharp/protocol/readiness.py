"""The OR table (output readiness) of a source GPU: Combine of a token may start after the notices of all its experts.

The table on chip is small. Entries that do not fit spill to memory and keep counting there. A notice names token and expert, so a repeated notice
counts once. Source: DySHARP (arXiv 2605.05607), token tracker. Spilling: docs/design/0004, Blocks.
"""

from dataclasses import field, replace

from dysharp.base import Numbers, frozen
from dysharp.isa.sram import GPU, Sram, entry
from dysharp.protocol.frozen import Table

Notice = tuple[int, int]  # (token, expert)
Announcers = tuple[int, ...]  # experts whose notice has arrived, in order of arrival

OUTPUT_READINESS = Sram(
    entry=entry("Output Readiness Table", token=48, experts_ready=8), owner=GPU,
    meaning="tokens in the readiness table of a GPU; no time depends on it", cluster_key="or_entries",
)  # fmt: skip


@frozen
class ReadinessState:
    """Notices of every token so far."""

    entries: int
    """Most entries on chip."""
    expected: Numbers
    """By token: the number of notices that make it ready."""
    on_chip: Table[int, Announcers] = field(default_factory=Table)
    """Entries on chip, least recently used first."""
    memory: Table[int, Announcers] = field(default_factory=Table)
    """Entries that spilled to memory."""
    ready: Table[int, None] = field(default_factory=Table)
    """Tokens with all notices, in order of their last notice. They have no entry any more."""


@frozen
class TokenReady:
    """`token` has all notices: its Combine may start."""

    token: int


@frozen
class TokenSpilled:
    """The entry of `token` went to memory."""

    token: int


Output = TokenReady | TokenSpilled


def empty(expected: Numbers, entries: int) -> ReadinessState:
    """A table without notices. Tokens that expect no notice are ready at once. `entries` is at least 1."""
    return ReadinessState(entries, expected, ready=Table((t, None) for t, n in enumerate(expected) if n == 0))


def n_ready(state: ReadinessState, token: int) -> int:
    """Notices counted for `token`."""
    return state.expected[token] if token in state.ready else len(_announced(state, token))


def step(state: ReadinessState, notice: Notice) -> tuple[ReadinessState, tuple[Output, ...]]:
    """The table after one notice. A repeated notice and a notice of a ready token change nothing."""
    token, expert = notice
    announced = _announced(state, token)
    if token in state.ready or expert in announced:
        return state, ()
    announced = (*announced, expert)
    memory = state.memory.without(token) if token in state.memory else state.memory
    if len(announced) == state.expected[token]:
        ready = state.ready.put(token, None)
        return replace(state, on_chip=state.on_chip.without(token), memory=memory, ready=ready), (TokenReady(token),)
    on_chip = state.on_chip.last(token, announced)
    if len(on_chip) <= state.entries:
        return replace(state, on_chip=on_chip, memory=memory), ()
    victim = on_chip.first()
    memory, on_chip = memory.put(victim, on_chip[victim]), on_chip.without(victim)
    return replace(state, on_chip=on_chip, memory=memory), (TokenSpilled(victim),)


def _announced(state: ReadinessState, token: int) -> Announcers:
    return state.on_chip.get(token) or state.memory.get(token) or ()
