"""Laws that hold for the Program of every system: who waits for software, what one kernel is, and times of software counted from the routing.

Times come from the oracle, so no kernel is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.oracle import run_oracle
from dysharp.program import Kind, Program, Trace
from dysharp.specs import Cluster, load_cluster
from dysharp.specs.cluster import ScaleOut
from dysharp.systems.building.formats import ROW_FORMATS
from dysharp.systems.building.gpus import Software
from dysharp.systems.facts import PHASES, Ships
from dysharp.systems.registry import all_systems, get_system
from dysharp.workload import make_routing, pairs

GPUS, TOKENS = 4, 3
MACHINE = load_cluster("hw-dgx-h100").with_gpus(GPUS)
REAL = sorted(name for name, one in all_systems().items() if one.has_real_form and "real" not in one.reach.no_switch)


@cache
def program(name: str, form: str, direction: str = "fwd", tokens: int = TOKENS, machine: Cluster = MACHINE) -> Program:
    one, routing = get_system(name), make_routing("uniform", TINY, GPUS, tokens, seed=3)
    options = one.options(form=form) if one.has_real_form else one.options()
    return one.plan(TINY, machine, one.served(routing, options), direction, options)


@cache
def trace(name: str, form: str, machine: Cluster = MACHINE) -> Trace:
    return run_oracle(program(name, form, machine=machine))


def named(p: Program, part: str) -> np.ndarray:
    """`[n_ops]` whether the op's template has `part` in its name."""
    return np.array([part in t.name for t in p.templates])[p.ops.template]


def delays(p: Program, name: str) -> dict[int, int]:
    """{GPU: picoseconds of its DELAYs called `name`}."""
    ops = np.flatnonzero(np.array([t.name == name for t in p.templates])[p.ops.template])
    rows = np.array([t.duration for t in p.templates])[p.ops.template[ops]]
    took = p.durations[rows, p.ops.rows[ops]]
    return {g: int(took[p.ops.node[ops] == g].sum()) for g in range(GPUS)}


@pytest.mark.sampled
@pytest.mark.parametrize("name", REAL)
def test_no_row_of_a_real_form_arrives_before_a_kernel_has_started(name: str) -> None:
    """The first remote row arrives later than without software by the start of one kernel at least."""

    def first(form: str) -> int:
        p, t = program(name, form), trace(name, form)
        op = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
        rows = (p.members.node != p.ops.node[op]) & (p.ops.bytes[op] >= TINY.row_bytes // 2)
        return int(t.member[rows].min())

    assert first("real") - first("paper") >= Software(MACHINE, GPUS).kernel_ps


@pytest.mark.parametrize("name", sorted(all_systems()))
def test_one_kernel_computes_both_stages_at_once_and_has_no_kernels_around_its_gemms(name: str) -> None:
    """`costs.fused` of a system against its Programs."""
    one, real = get_system(name), name in REAL
    p = program(name, "real" if real else "paper", machine=MACHINE if real else cluster(GPUS))
    assert not (one.costs.fused and named(p, "around").any())
    if one.costs.fused:
        t = run_oracle(p)
        first, second = (named(p, stage) & (p.kinds() == Kind.COMPUTE) for stage in ("gemm1", "gemm2"))
        assert any(t.issue[second & (p.ops.node == g)].min() < t.done[first & (p.ops.node == g)].max() for g in range(GPUS))


def test_the_copy_out_of_nccl_eps_buffer_moves_each_received_row_twice() -> None:
    """A token is received once by each GPU that has one of its experts, the own GPU too. Every GPU's pass over the whole buffer takes as long."""
    took, costs = delays(program("nccl-ep", "real", "bwd"), "permute"), Software(MACHINE, GPUS)
    received = np.bincount(pairs(make_routing("uniform", TINY, GPUS, TOKENS, seed=3)).gpu, minlength=GPUS)
    assert len(set(received.tolist())) > 1
    buffer = costs.stream_ps(GPUS * TOKENS * costs.value("lib.slot_bytes"))
    assert took == {g: costs.memory_ps(2 * int(n) * TINY.row_bytes) + buffer for g, n in enumerate(received)}


def test_mega_moes_launch_has_the_exchanges_that_are_no_barriers_of_its_program() -> None:
    """The constant counts all exchanges of flags; the Program has the barriers among them as ops, one template for the flags of each."""
    one, costs = get_system("megamoe"), Software(MACHINE, GPUS)
    routing = make_routing("uniform", TINY, GPUS, TOKENS, seed=3)
    p = one.plan(TINY, MACHINE, routing, "fwd", one.options(form="real", cast=False))
    others = costs.value("fused.barriers") - sum(t.name.endswith(".barrier") for t in p.templates)
    assert others > 1
    assert delays(p, "launch") == dict.fromkeys(range(GPUS), costs.kernel_ps + round(others * costs.sync_ps))


@pytest.mark.parametrize("name", sorted(ROW_FORMATS))
def test_rows_of_a_format_are_fp8_where_its_name_says_so(name: str) -> None:
    """Only FP8 values are the input of FP8 GEMMs as they are; the model's own type is not."""
    assert ROW_FORMATS[name].is_fp8 == ("fp8" in name)


@pytest.mark.parametrize("matrices", [2, 3])
def test_software_that_names_no_limit_has_none(matrices: int) -> None:
    """Only the architecture and the type of GEMMs have to be named; hidden sizes, gates and phases are free."""
    model, free = replace(TINY, n_matrices=matrices, hidden=TINY.hidden + 1), Ships("s", ("hopper",), {TINY.gemm_dtype: {}})
    assert free.why_not(model, MACHINE) == ""
    assert [free.lacks(phase) for phase in PHASES] == [""] * len(PHASES)
    assert ("ungated" in replace(free, gated=True).why_not(model, MACHINE)) == (matrices == 2)
    assert "expected a multiple of 2" in replace(free, step=2).why_not(model, MACHINE)


@pytest.mark.parametrize("topk", [1, 4])
def test_a_ring_passes_a_row_on_when_the_row_has_come(topk: int) -> None:
    """Every hop of a token leaves a GPU behind the hop that comes to it, also where no expert has added to the sum yet."""
    model, one = replace(TINY, topk=topk), get_system("megatron-ag")
    n = 4
    machine = replace(load_cluster("paper-dgx-h100"), n_gpus=n, max_gpus=n, scale_out=ScaleOut(2, 47.0, 8.0))
    p = one.plan(model, machine, make_routing("uniform", model, n, 5, seed=1), "fwd", one.options(form="paper"))
    t = run_oracle(p)
    for operator in ("dispatch", "combine"):
        hops = [x.operator == operator and (".ring" in x.name or ".empty" in x.name) for x in p.templates]
        ops = np.flatnonzero(np.array(hops)[p.ops.template])
        assert len(ops) == n * 5 * (n - 1)
        member, token = p.members.ptr[ops], p.ops.key[ops].tolist()
        came = dict(zip(zip(token, p.members.node[member].tolist(), strict=True), t.member[member].tolist(), strict=True))
        left = dict(zip(zip(token, p.ops.node[ops].tolist(), strict=True), t.issue[ops].tolist(), strict=True))
        assert len(came.keys() & left.keys()) == n * 5 * (n - 2)
        assert all(came[hop] <= left[hop] for hop in came.keys() & left.keys())
