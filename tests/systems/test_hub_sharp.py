"""hub-sharp with reducing pushes: exact sums in any order, closed-form bytes, places of sums in the switch, oracle."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from layers import TINY

import dysharp
from dysharp.analysis import attribution, count, row, traffic_bytes
from dysharp.analysis.count import sums_that_passed
from dysharp.base.errors import ConfigError, ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.functional.orders import ORDERS
from dysharp.oracle import run_oracle
from dysharp.program import Kind, Program, Trace
from dysharp.program.verify import verify
from dysharp.runs import one_pass
from dysharp.specs import load_cluster
from dysharp.systems import get_system
from dysharp.systems.building.windows import sessions_that_fit
from dysharp.workload import Routing, make_routing, traffic

CLUSTER = load_cluster("paper-dgx-h800").with_gpus(4)
MODEL = replace(TINY, hidden=2048, expert_hidden=1024)
ALL = 32768


def routed(tokens: int) -> Routing:
    return make_routing("uniform", MODEL, 4, tokens)


def plan(tokens: int = 128, direction: str = "fwd", **options: object) -> Program:
    system = get_system("hub-sharp")
    program = system.plan(MODEL, CLUSTER, routed(tokens), direction, system.options(**{"reduction": "push", **options}))
    verify(program)
    return program


def run(program: Program) -> Trace:
    return run_burst(program)[0]


@pytest.mark.parametrize("places", [0, 1, 7])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_engine_equals_oracle(direction: str, places: int) -> None:
    program = plan(32, direction, sum_places=places)
    found, expected = run(program), run_oracle(program)
    for column in fields(Trace):
        if column.name != "n_events":
            assert np.array_equal(getattr(found, column.name), getattr(expected, column.name)), column.name


def test_with_a_place_for_every_sum_the_bytes_are_those_of_pulls() -> None:
    program = plan(sum_places=ALL)
    moved, closed = traffic_bytes(program, run(program)), traffic(routed(128), "multicast", MODEL.row_bytes)
    for side in ("up", "down"):
        assert moved[side]["combine"] == closed["combine"][side]
        assert moved[side]["dispatch"] == closed["dispatch"][side]


def test_a_sum_without_a_place_brings_all_its_contributions_down() -> None:
    program = plan(sum_places=1)
    trace = run(program)
    passed = sums_that_passed(program, trace)
    assert program.sessions is not None
    assert 0 < passed.sum() < len(passed)
    extra = int((program.sessions.expected[passed] - 1).sum())
    closed = traffic(routed(128), "multicast", MODEL.row_bytes)["combine"]
    assert traffic_bytes(program, trace)["down"]["combine"] == closed["down"] + extra * MODEL.row_bytes
    assert traffic_bytes(program, trace)["up"]["combine"] == closed["up"]


def test_places_are_those_of_the_reduction_buffers() -> None:
    sessions = plan().sessions
    assert sessions is not None
    assert sessions.places == sessions_that_fit(MODEL, CLUSTER)


def test_a_row_looks_for_sums_without_a_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Program] = []

    def counted(program: Program, trace: Trace) -> np.ndarray:
        calls.append(program)
        return sums_that_passed(program, trace)

    for module in (attribution, count, one_pass, row):
        monkeypatch.setattr(module, "sums_that_passed", counted)
    done = dysharp.run("hub-sharp", gpus=4, tokens=32, options={"hub-sharp.reduction": "push", "hub-sharp.sum_places": 1})
    assert len(calls) == 1
    assert any("found none of the" in text for text in done.warnings)


def test_more_places_merge_more() -> None:
    passed = [int(sums_that_passed(p, run(p)).sum()) for p in (plan(sum_places=n) for n in (1, 8, 64, ALL))]
    assert passed == sorted(passed, reverse=True)
    assert passed[-1] == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("places", [0, 1])
def test_integers_are_exact_in_every_order(order: str, places: int) -> None:
    options = {"reduction": "push", "sum_places": places}
    result = dysharp.emulate("hub-sharp", block="integer", gpus=4, tokens=16, backward=True, options=options, order=order)
    assert result.exact
    assert result.max_abs_error == 0


def test_floats_are_those_of_the_recorded_sum() -> None:
    result = dysharp.emulate(
        "hub-sharp", block="gated", dtype="bfloat16", gpus=4, tokens=16, backward=True, options={"reduction": "push", "sum_places": 2}
    )
    assert result.holds


def test_no_packet_of_the_functional_machine_carries_a_contribution() -> None:
    with pytest.raises(ConfigError, match="packet path: found ops of kind PUSH_REDUCE"):
        dysharp.emulate("hub-sharp", gpus=4, tokens=16, options={"reduction": "push"}, path="packet")


def test_contributions_of_a_sum_have_the_same_rows() -> None:
    program = plan(16)
    m = program.members
    member = m.ptr[np.flatnonzero(program.kinds() == Kind.PUSH_REDUCE)]
    fill = m.fill_ptr[member[m.node[member] == m.node[member[0]]]]
    row = m.fill_row.copy()
    row[fill[0]] = row[fill][row[fill] != row[fill[0]]][0]
    with pytest.raises(ProgramError, match="for other rows or bytes than op"):
        verify(replace(program, members=replace(m, fill_row=row)))


def test_a_sum_has_as_many_contributions_as_it_expects() -> None:
    program = plan(16)
    assert program.sessions is not None
    expected = program.sessions.expected.copy()
    expected[0] += 1
    with pytest.raises(ProgramError, match=r"session 0: found \d contributions, expected"):
        verify(replace(program, sessions=replace(program.sessions, expected=expected)))


def test_a_run_says_how_many_sums_passed() -> None:
    base = {"model": MODEL, "cluster": "paper-dgx-h800", "gpus": 4, "tokens": 128, "routing": "uniform"}
    few = dysharp.run("hub-sharp", options={"reduction": "push", "sum_places": 1}, **base)
    assert any("found none of the 1 places of their home in the switch" in text for text in few.warnings)
    many = dysharp.run("hub-sharp", options={"reduction": "push", "sum_places": ALL}, **base)
    assert not any("places of their home" in text for text in many.warnings)
