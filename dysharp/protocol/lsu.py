"""Load/store unit of a source GPU: an instruction waits in the MultimemQ for its target list, leaves, is outstanding.

Instructions leave in the order in which their lists arrive. A retry sends the whole request again with the next attempt
number. The tag stays outstanding until one attempt is done. Source: DySHARP (arXiv 2605.05607), source GPU. Empty
target lists: docs/design/0004, Decisions where the paper is silent.
"""

from collections.abc import Hashable
from dataclasses import field, replace

from dysharp.base import frozen
from dysharp.isa.sram import LSU, Sram, entry
from dysharp.protocol.frozen import Table

ATTEMPTS = 8  # 3 bits of the packet

MULTIMEMQ = Sram(
    entry=entry("MultimemQ", address=48, address_of_target_list=48, targets=8, register_and_warp=14), owner=LSU,
    meaning="MultimemQ entries of one load/store unit", cluster_key="multimemq_entries", option="fabric.queue_entries",
)  # fmt: skip


@frozen
class LsuState:
    """`queue`: instructions that wait for their target list. `outstanding`: the latest attempt by tag."""

    entries: int
    attempts: int
    queue: Table[Hashable, None] = field(default_factory=Table)
    outstanding: Table[Hashable, int] = field(default_factory=Table)


@frozen
class Enter:
    """An SM executes an instruction with `targets` targets. `tag` is free."""

    tag: Hashable
    targets: int


@frozen
class ListArrived:
    """Memory returns the target list of `tag`."""

    tag: Hashable


@frozen
class Retry:
    """`tag` has been outstanding for too long."""

    tag: Hashable


@frozen
class Finish:
    """All targets of `tag` have acknowledged, or its sum is complete."""

    tag: Hashable


@frozen
class FetchList:
    """The unit reads the target list of `tag`. `ListArrived` must follow."""

    tag: Hashable


@frozen
class Send:
    """The request of `tag` leaves."""

    tag: Hashable
    attempt: int


@frozen
class Done:
    """The instruction is complete."""

    tag: Hashable


@frozen
class Refused:
    """The MultimemQ is full. The instruction stays with its SM and enters again later."""

    tag: Hashable


@frozen
class Exhausted:
    """`tag` has no attempt number left for another retry."""

    tag: Hashable


Event = Enter | ListArrived | Retry | Finish
Output = FetchList | Send | Done | Refused | Exhausted
Stepped = tuple[LsuState, tuple[Output, ...]]
"""The state after an event, and what leaves."""


def empty(entries: int, attempts: int = ATTEMPTS) -> LsuState:
    """A unit without instructions. `entries`: places of the MultimemQ. `entries` and `attempts` are at least 1."""
    return LsuState(entries, attempts)


def step(state: LsuState, event: Event) -> Stepped:
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


def _enter(state: LsuState, event: Enter) -> Stepped:
    assert event.tag not in state.queue, f"{event.tag} enters twice"
    assert event.tag not in state.outstanding, f"{event.tag} is still outstanding"
    if event.targets == 0:
        return state, (Done(event.tag),)  # an empty list needs no fetch and no request
    if len(state.queue) >= state.entries:
        return state, (Refused(event.tag),)
    return replace(state, queue=state.queue.put(event.tag, None)), (FetchList(event.tag),)


def _send(state: LsuState, tag: Hashable, attempt: int) -> Stepped:
    return replace(state, outstanding=state.outstanding.put(tag, attempt)), (Send(tag, attempt),)
