"""Counting from the Trace, and wire bytes from the Program against what the links of the engine have sent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dysharp.analysis import traffic_bytes, wire_table
from dysharp.analysis.count import TERMS, group_transfers
from dysharp.systems import all_systems

CASES = [(s, r) for s in all_systems() for r in ("uniform", "lognormal:0.8", "dropped", "one GPU")]


@pytest.mark.parametrize(("system", "routing"), CASES)
def test_wire_bytes_equal_what_the_links_sent(finished: Callable[..., Any], system: str, routing: str) -> None:
    run = finished(system, routing)
    table = wire_table(run.program)
    np.testing.assert_array_equal(table.up.sum(axis=1), run.trace.up_busy)
    np.testing.assert_array_equal(table.down.sum(axis=1), run.trace.down_busy)
    assert (table.up >= 0).all()
    assert (table.down >= 0).all()
    flits = table.flits(16)
    assert flits["up"] * 16 == run.trace.up_busy.sum()
    assert flits["down"] * 16 == run.trace.down_busy.sum()


@pytest.mark.parametrize(("system", "routing"), CASES)
def test_payload_equals_the_closed_form(finished: Callable[..., Any], system: str, routing: str) -> None:
    run = finished(system, routing)
    counted = traffic_bytes(run.program, run.trace)
    assert sorted(counted) == ["down", "up"]
    for side, declared in run.program.declared.traffic.items():
        assert sorted(counted[side]) == ["combine", "dispatch", "other"]
        assert {name: counted[side][name] for name in declared} == declared


@pytest.mark.parametrize("system", all_systems())
def test_payload_on_the_wire_is_the_counted_payload(finished: Callable[..., Any], system: str) -> None:
    run = finished(system)
    table, counted = wire_table(run.program), traffic_bytes(run.program, run.trace)
    payload = TERMS.index("payload")
    assert table.up[:, payload].sum() == sum(counted["up"].values())
    assert table.down[:, payload].sum() == sum(counted["down"].values())


def test_gate_weights_and_control_are_other(finished: Callable[..., Any]) -> None:
    deepep, dysharp = finished("deepep"), finished("dysharp")
    sent = int(group_transfers(deepep.program).sent[:, 0].sum())
    assert deepep.row.traffic_bytes["up"]["other"] == 16 * sent  # 4 experts of 4 B each
    exchange = 4 * 16 * 4  # each of 4 GPUs tells the counts of 16 experts, 4 B each, once
    multicasts = int((np.diff(dysharp.program.members.ptr) > 0).sum())
    up = dysharp.row.traffic_bytes["up"]["other"]
    assert exchange < up <= exchange + 16 * multicasts


def test_members_that_did_not_happen_do_not_count(finished: Callable[..., Any]) -> None:
    run = finished("deepep")
    member = run.trace.member.copy()
    ops = run.program.ops
    lost = int(np.flatnonzero(run.program.members.node[: run.program.n_members] != ops.node[0])[0])
    member[lost] = -1
    before = traffic_bytes(run.program, run.trace)
    after = traffic_bytes(run.program, replace(run.trace, member=member))
    missing = {side: before[side]["dispatch"] - after[side]["dispatch"] for side in before}
    assert missing == {"up": 2000, "down": 2000}
