"""Groups, throttling, merged sums and loads under every order of events: exact sums, no deadlock, empty tables; planted faults are noticed."""

from __future__ import annotations

import pytest
from mutant import Mutant, plant

from dysharp.protocol import merging
from tests.protocol.checker import cais, groups, summing
from tests.protocol.checker.cais import CaisConfig, check_cais
from tests.protocol.checker.explore import explore

MACHINES = {
    "one block": CaisConfig(blocks=1),
    "three GPUs": CaisConfig(),
    "two places": CaisConfig(places=2, entries=2, lead=2),
    "four GPUs": CaisConfig(gpus=4, blocks=1),
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_order_gives_every_gpu_every_sum(name: str) -> None:
    found = check_cais(MACHINES[name])
    assert found.complete
    assert found.reason is None, found.path
    assert found.states > 50


def test_every_way_out_of_the_table_is_taken() -> None:
    """Otherwise the check would prove little: evicted sums, sums and loads that pass, cached loads that expire, merged loads, full groups."""
    c, seen = MACHINES["three GPUs"], set[str]()

    def successors(state):
        for step, after in cais.successors(c, state):
            if step[0] in ("evict", "expire"):
                seen.add(step[0])
            if step[0] == "add" and after.home != state.home:
                seen.add("whole sum" if after.home[step[2]][0] - state.home[step[2]][0] == c.gpus - 1 else "partial sum")
            if step[0] == "load" and step in state.wire:
                on = {kind for kind, gpu, block in after.wire if (gpu, block) == step[1:]}
                seen.add("load passes" if "data" in on else "load goes on" if "response" in on else "load merges")
            yield step, after
        if len(state.table.waiting) == c.entries and any(cais._register(c, state, g) is None for g in range(3) if state.registered[g] < c.blocks):
            seen.add("group refused")

    assert explore(cais.initial(c), successors, lambda state: cais.verdict(c, state)).complete
    ways = {"evict", "expire", "whole sum", "partial sum", "load passes", "load goes on", "load merges", "group refused"}
    assert seen == ways


def test_one_order_of_groups_and_timeouts_are_needed() -> None:
    """A GPU with another order fills the group table for ever; without timeouts parts of a sum stay in the table."""
    for config in (CaisConfig(orders=((0, 1), (1, 0), (0, 1))), CaisConfig(timeouts=False)):
        assert (check_cais(config).reason or "").startswith("deadlock")


def test_a_throttled_gpu_waits_for_the_slowest() -> None:
    assert [groups.may_issue((2, 1, 3), gpu, 2) for gpu in range(3)] == [True, True, False]


MUTANTS = [
    Mutant("released one GPU early", groups, "step", "len(here) == state.gpus", "len(here) == state.gpus - 1", "one block", "Assertion"),
    Mutant("released group keeps its entry", groups, "step", "state.waiting.without(event.group)", "state.waiting", "one block", "leak"),
    Mutant("full table takes a group", groups, "step", ">= state.entries", "> state.entries", "three GPUs", "Assertion"),
    Mutant("only the last GPU counts", groups, "step", "(known or frozenset()) | {event.gpu}", "frozenset({event.gpu})", "one block", "deadlock"),
    Mutant("one group further ahead", groups, "may_issue", "< lead", "<= lead", "three GPUs", "Assertion"),
    Mutant("throttled for ever", groups, "may_issue", "issued[gpu] - min(issued) < lead", "issued[gpu] < 1", "three GPUs", "deadlock"),
    Mutant("last value replaces the sum", summing, "step", "value + event.value", "event.value", "one block", "wrong sum"),
    Mutant("eviction drops its data", summing, "_leave", "(Sent(address, count, value),)", "()", "one block", "deadlock"),
    Mutant("eviction counts one", summing, "_leave", "Sent(address, count, value)", "Sent(address, 1, value)", "one block", "deadlock"),
    Mutant("eviction keeps its place", summing, "_leave", "merging.step(state.merge, merging.Give())[0]", "state.merge", "one block", "leak"),
    Mutant("evicted sum stays", summing, "_leave", "state.open.without(address)", "state.open", "one block", "Assertion"),
    Mutant("oldest sum is lost", summing, "_first", "state, left = _leave(state, state.open.first())", "state = _leave(state, state.open.first())[0]", "three GPUs", "deadlock"),  # noqa: E501
    Mutant("what passes is lost", summing, "_first", "(*left, Sent(event.address, 1, event.value))", "left", "three GPUs", "deadlock"),
    Mutant("first loads of a full table wait", merging, "_first", "(Forward(load.asker, False),)", "()", "three GPUs", "deadlock"),
    Mutant("a load that waits is forgotten", merging, "_later", "(*entry.waiting, load.asker)", "entry.waiting", "one block", "deadlock"),
    Mutant("a cached load is not answered", merging, "_later", "(LoadResponse(load.address, load.asker),)", "()", "one block", "deadlock"),
    Mutant("the response answers one", merging, "_respond", "for asker in entry.waiting", "for asker in entry.waiting[:1]", "one block", "deadlock"),
    Mutant("a load that waits expires", merging, "step", "entry is not None and entry.ready", "entry is not None", "one block", "KeyError"),
    Mutant("an expired load keeps its place", merging, "_leave", "state.free + 1", "state.free", "one block", "leak"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_faults_are_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(mutant, monkeypatch)
    found = check_cais(MACHINES[mutant.machine], 20_000)
    assert (found.reason or "").startswith(mutant.reason), found.reason
