"""Counting from the Trace, and wire bytes from the Program against what the links of the engine have sent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dysharp.analysis import traffic_bytes
from dysharp.analysis.count import group_transfers
from dysharp.systems import all_systems
from dysharp.testing.conformance.rows import not_of_the_cluster
from dysharp.testing.conformance.runs import _payload_is_declared

CASES = [(s, r) for s in all_systems() for r in ("uniform", "lognormal:0.8", "dropped", "one GPU")]


@pytest.mark.parametrize(("system", "routing"), CASES)
def test_wire_bytes_equal_what_the_links_sent(finished: Callable[..., Any], system: str, routing: str) -> None:
    run = finished(system, routing)
    assert list(not_of_the_cluster(run.program, run.trace, run.inputs.cluster)) == []


@pytest.mark.parametrize(("system", "routing"), CASES)
def test_payload_equals_the_closed_form_and_is_on_the_wire(finished: Callable[..., Any], system: str, routing: str) -> None:
    assert list(_payload_is_declared(finished(system, routing))) == []


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
