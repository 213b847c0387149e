"""Load/store unit of a source GPU: an instruction waits in the MultimemQ for its target list, leaves, and is outstanding until done.

Instructions leave in the order in which their lists arrive. A retry sends the whole request again with the next attempt number; the entry
stays until any attempt is done. Source: spec/dysharp.md section 5; decision 4 of docs/design/0004 (empty target lists).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from dysharp.protocol.frozen import Table

ATTEMPTS = 8  # 3 bits of the packet


@dataclass(frozen=True, slots=True)
class LsuState:
    """`queue`: instructions that wait for their list; `outstanding`: the latest attempt by tag."""

    entries: int
    attempts: int
    queue: Table[Hashable, None] = field(default_factory=Table)
    outstanding: Table[Hashable, int] = field(default_factory=Table)


@dataclass(frozen=True, slots=True)
class Enter:
    """An instruction with `targets` targets is executed; `tag` is free."""

    tag: Hashable
    targets: int


@dataclass(frozen=True, slots=True)
class ListArrived:
    """Memory returns the target list of `tag`."""

    tag: Hashable


@dataclass(frozen=True, slots=True)
class Retry:
    """`tag` is outstanding for too long."""

    tag: Hashable


@dataclass(frozen=True, slots=True)
class Finish:
    """All targets of `tag` have acknowledged, or its sum is complete."""

    tag: Hashable


@dataclass(frozen=True, slots=True)
class FetchList:
    """Read the target list of `tag`; `ListArrived` must follow."""

    tag: Hashable


@dataclass(frozen=True, slots=True)
class Send:
    """The request of `tag` leaves."""

    tag: Hashable
    attempt: int


@dataclass(frozen=True, slots=True)
class Done:
    """The instruction is complete."""

    tag: Hashable


@dataclass(frozen=True, slots=True)
class Refused:
    """The MultimemQ is full: the instruction stays with its SM and enters again later."""

    tag: Hashable


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No attempt number is left for another retry."""

    tag: Hashable


Event = Enter | ListArrived | Retry | Finish
Output = FetchList | Send | Done | Refused | Exhausted


def empty(entries: int, attempts: int = ATTEMPTS) -> LsuState:
    """Nothing under way. `entries` of the MultimemQ and `attempts` are at least 1."""
    return LsuState(entries, attempts)


def step(state: LsuState, event: Event) -> tuple[LsuState, tuple[Output, ...]]:
    """The unit after one event. Retry and Finish of a tag that is not outstanding change nothing."""
    if isinstance(event, Enter):
        return _enter(state, event)
    if isinstance(event, ListArrived):
        return _send(replace(state, queue=state.queue.without(event.tag)), event.tag, 0)
    if event.tag not in state.outstanding:
        return state, ()
    if isinstance(event, Finish):
        return replace(state, outstanding=state.outstanding.without(event.tag)), (Done(event.tag),)
    attempt = state.outstanding[event.tag] + 1
    return (state, (Exhausted(event.tag),)) if attempt == state.attempts else _send(state, event.tag, attempt)


def _enter(state: LsuState, event: Enter) -> tuple[LsuState, tuple[Output, ...]]:
    assert event.tag not in state.queue, f"{event.tag} enters twice"
    assert event.tag not in state.outstanding, f"{event.tag} is still outstanding"
    if event.targets == 0:
        return state, (Done(event.tag),)  # there is no list to fetch and nobody to ask
    if len(state.queue) >= state.entries:
        return state, (Refused(event.tag),)
    return replace(state, queue=state.queue.put(event.tag, None)), (FetchList(event.tag),)


def _send(state: LsuState, tag: Hashable, attempt: int) -> tuple[LsuState, tuple[Output, ...]]:
    return replace(state, outstanding=state.outstanding.put(tag, attempt)), (Send(tag, attempt),)
