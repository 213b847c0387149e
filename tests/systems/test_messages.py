"""One copy per (token, expert) and the all-to-all kernels in their real form: who waits for whom, what costs what, and the right tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.costs.collectives import collective_us
from dysharp.engine.burst.run import run_burst
from dysharp.functional.machine import Machine
from dysharp.functional.packets import run_packets
from dysharp.functional.reference import dense_forward
from dysharp.functional.rows import run_rows
from dysharp.program import Program, Trace
from dysharp.specs import Model, load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from dysharp.systems import get_system
from dysharp.testing.conformance.case import layer_case, run_case
from dysharp.workload import make_routing

NAMES = ("deepep-ll", "megatron-a2a", "trtllm-a2a")
FORMS = [
    ("ccfuser", {}),
    ("deepep-ll", {}),
    ("fastermoe", {"group": 2}),
    ("hybrid-ep", {}),
    ("megamoe", {}),
    ("megatron-a2a", {}),
    ("megatron-ag", {}),
    ("trtllm-a2a", {"sides": "one"}),
    ("trtllm-a2a", {"sides": "two"}),
    ("tutel", {"capacity": 0}),
]
REAL = load_cluster("hw-dgx-h100").with_gpus(4)


def plan(name: str, tokens: int = 96, *, model: Model = TINY, kind: str = "uniform", machine=REAL, direction: str = "fwd", **options) -> Program:
    system = get_system(name)
    return system.plan(model, machine, make_routing(kind, model, machine.n_gpus, tokens), direction, system.options(**options))


def ops_of(program: Program, name: str) -> np.ndarray:
    mine = [i for i, t in enumerate(program.templates) if t.name == name]
    return np.flatnonzero(np.isin(program.ops.template, mine))


def delays(program: Program) -> set[str]:
    return {t.name for t in program.templates if t.fn == "delay"}


def run(program: Program) -> Trace:
    return run_burst(program)[0]


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_real_form_is_the_default_on_real_machines_and_slower(name, options):
    real, paper = plan(name, **options), plan(name, form="paper", **options)
    assert run(real).digest() == run(plan(name, form="real", **options)).digest()
    assert run(paper).time_ps < run(real).time_ps
    assert replace(real.declared, kernel_sms=0) == paper.declared  # paper forms take no SMs
    software = delays(real) - delays(paper)
    assert software
    assert not software & delays(plan(name, machine=cluster(4), **options))


@pytest.mark.sampled
@pytest.mark.parametrize("path", ["row", "packet"])
@pytest.mark.parametrize(("name", "options"), FORMS)
def test_real_forms_compute_what_paper_forms_do(name, options, path):
    machine = Machine(name, 4, cluster="hw-dgx-h100", path=path, options=options)
    y, dx, gate, *grads = run_case(layer_case("int32"), machine, backward=True)
    own = {} if name in ("deepep-ll", "trtllm-a2a") else options
    paper = run_case(layer_case("int32"), Machine(name, 4, path=path, options=own), backward=True)
    assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors)[: len(y)])
    for found, expected in zip((y, dx, gate, *grads), paper, strict=True):
        assert np.array_equal(found, expected)
    for done in machine.passes.values():
        assert {t.fn for t in done.program.templates} >= {"delay", "join" if name in ("fastermoe", "megatron-a2a") else "control"}


def test_low_latency_has_a_count_word_per_expert_and_source():
    program = plan("deepep-ll")
    assert len(ops_of(program, "dispatch.counts")) == len(ops_of(program, "combine.counts")) == 4 * TINY.n_experts


def test_low_latency_waits_for_nobody_else():
    """A GPU with few rows sends them back while another still computes; an all-to-all starts when the last one is there."""
    for name, together in (("deepep-ll", False), ("megatron-a2a", True)):
        program = plan(name, model=replace(TINY, expert_hidden=4096), kind="lognormal:1.5", tokens=512)
        trace, back, second = run(program), ops_of(program, "combine.row"), ops_of(program, "gemm2")
        finished = [int(trace.done[second[program.ops.node[second] == g]].max()) for g in range(4)]
        first = [int(trace.issue[back[program.ops.node[back] == g]].min()) for g in range(4)]
        assert max(finished) > min(finished)
        assert (min(first) > max(finished)) == together


def test_low_latency_counts_follow_the_messages():
    program = plan("deepep-ll")
    trace, rows, words = run(program), ops_of(program, "dispatch.row"), ops_of(program, "dispatch.counts")
    for g in range(4):
        assert trace.issue[words[program.ops.node[words] == g]].min() >= trace.done[rows[program.ops.node[rows] == g]].max()


def test_an_all_to_all_sends_to_its_peers_in_turn():
    program = plan("megatron-a2a", machine=cluster(4))
    for name in ("dispatch.row", "combine.row"):
        ops = ops_of(program, name)
        for g in range(4):
            mine = ops[program.ops.node[ops] == g]
            assert program.members.node[program.members.ptr[mine[:8]]].tolist() == [(g + i) % 4 for i in range(4)] * 2


def test_an_all_to_all_takes_what_nccl_takes():
    """The rate form of NCCL's alltoall, where routing is nearly even."""
    model = replace(TINY, hidden=7168, topk=8, n_experts=32)
    machine = load_cluster("hw-dgx-h100")
    program = plan("megatron-a2a", tokens=512, model=model, machine=machine, compute=False)
    trace, rows, start = run(program), ops_of(program, "dispatch.row"), ops_of(program, "dispatch.nccl")
    time_us = (trace.done[rows].max() - trace.issue[start].max()) / 1e6
    closed = float(collective_us(load_gpu("h100-sxm"), fitted_values(), "alltoall", 8, 512 * 8 * model.row_bytes))
    assert closed * 0.97 < time_us < closed * 1.06  # the busiest GPU has a few rows more than the mean


def test_rows_that_travel_narrow():
    for name, option, size in (("deepep-ll", "fp8", 528), ("trtllm-a2a", "fp8-plain", 512), ("trtllm-a2a", "nvfp4", 288)):
        rows, narrow = (plan(name, dispatch=d).declared.traffic["up"] for d in ("rows", option))
        assert narrow["combine"] == rows["combine"]
        assert narrow["dispatch"] * TINY.row_bytes == rows["dispatch"] * size


def test_results_that_come_back_narrow():
    rows, narrow = (plan("trtllm-a2a", sides="two", combine=c).declared.traffic["up"] for c in ("rows", "nvfp4"))
    assert narrow["dispatch"] == rows["dispatch"]
    assert narrow["combine"] * TINY.row_bytes == rows["combine"] * 288


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("deepep-ll", {"dispatch": "fp4"}, "deepep-ll.dispatch: found 'fp4', expected rows or fp8"),
        ("deepep-ll", {"form": "unreal"}, "form: found 'unreal', expected one of auto, paper, real"),
        ("trtllm-a2a", {"sides": "three"}, "trtllm-a2a.sides: found 'three', expected one or two"),
        ("trtllm-a2a", {"sides": "one", "combine": "nvfp4"}, "combine: found 'nvfp4' with sides=one, expected rows, or nvfp4 with sides=two"),
        ("trtllm-a2a", {"sides": "two", "combine": "fp8"}, "trtllm-a2a.combine: found 'fp8' with sides=two"),
        ("trtllm-a2a", {"dispatch": "int4"}, "trtllm-a2a.dispatch: found 'int4', expected one of rows, fp8, fp8-plain, nvfp4"),
    ],
)
def test_wrong_options(name, options, text):
    with pytest.raises(ConfigError, match=text):
        plan(name, **options)


@pytest.mark.parametrize("interpret", [run_rows, run_packets])
def test_a_row_pushed_from_the_wrong_gpu_is_an_error(interpret):
    """Two pushes that swap their partial rows: the row that would belong there lies elsewhere."""
    machine = Machine("deepep-ll", 4, path="row")
    run_case(layer_case("int32"), machine)
    done = machine.passes["forward"]
    p = done.program
    back = ops_of(p, "combine.row")
    token = p.ops.key[back]
    one = next(i for i in range(len(back)) if ((token == token[i]) & (p.ops.node[back] != p.ops.node[back[i]])).any())
    other = int(np.flatnonzero((token == token[one]) & (p.ops.node[back] != p.ops.node[back[one]]))[0])
    at = p.members.fill_ptr[p.members.ptr[back[[one, other]]]]
    rows = p.members.fill_row.copy()
    rows[at] = rows[at[::-1]]
    swapped = replace(p, members=replace(p.members, fill_row=rows))
    with pytest.raises(EmulationMismatch, match=r"row \d+( \(token \d+\))?: found a (read|push) (on|from) GPU"):
        interpret(swapped, done.tensors)
