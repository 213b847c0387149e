"""Group table of the switch: thread blocks of equal number on all GPUs start together. Source: CAIS (HPCA 2026), section III-C.

A GPU registers its thread blocks in one order, the same on all GPUs. An entry counts GPUs; the last one frees it and releases the group everywhere.
A full table refuses a new group, whose GPU asks again. The oldest group of all GPUs has an entry or can get one, so nobody waits for ever.
"""

from dataclasses import dataclass, replace

from dysharp.protocol.frozen import Table


@dataclass(frozen=True, slots=True)
class GroupState:
    """`waiting`: GPUs that have registered, by group. At most `entries` groups."""

    gpus: int
    entries: int
    waiting: Table[int, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Register:
    """The thread block of `group` on `gpu` is ready to start."""

    group: int
    gpu: int


@dataclass(frozen=True, slots=True)
class Release:
    """Every GPU starts its thread block of `group`."""

    group: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The table is full: `gpu` asks again."""

    group: int
    gpu: int


def empty(gpus: int, entries: int) -> GroupState:
    """An idle table."""
    return GroupState(gpus, entries, Table())


def step(state: GroupState, event: Register) -> tuple[GroupState, tuple[Release | Refused, ...]]:
    """The table after one registration."""
    known = state.waiting.get(event.group)
    if known is None and len(state.waiting) >= state.entries:
        return state, (Refused(event.group, event.gpu),)
    here = (known or frozenset()) | {event.gpu}
    if len(here) == state.gpus:
        return replace(state, waiting=state.waiting.without(event.group)), (Release(event.group),)
    return replace(state, waiting=state.waiting.put(event.group, here)), ()


def may_issue(issued: tuple[int, ...], gpu: int, lead: int) -> bool:
    """Throttling: whether `gpu`, with mergeable accesses of `issued[gpu]` groups, may issue another: at most `lead` before the slowest GPU."""
    return issued[gpu] - min(issued) < lead
