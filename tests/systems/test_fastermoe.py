"""FasterMoE: exchanges with one group of peers at a time, GEMMs by step and expert."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.program.payload import moved_bytes
from dysharp.program.startable import starts_by_kind
from dysharp.program.verify import verify
from dysharp.systems import fastermoe, get_system
from dysharp.workload import Routing, make_routing

FASTERMOE = get_system("fastermoe")
ROUTING = make_routing("lognormal:0.65", TINY, 8, 24, seed=1)  # two experts per GPU


def plan(routing: Routing = ROUTING, direction: str = "fwd", **given) -> Program:
    return FASTERMOE.plan(TINY, cluster(routing.n_gpus), routing, direction, fastermoe.Options(**given))


def templates(program: Program, name: str) -> list[np.ndarray]:
    """Ops of each template called `name`, in order."""
    return [np.flatnonzero(program.ops.template == i) for i, t in enumerate(program.templates) if t.name == name]


@pytest.mark.parametrize(("gpus", "group", "steps"), [(32, 4, 8), (8, 4, 2), (4, 4, 1), (2, 4, 1), (6, 4, 2), (8, 1, 8), (1, 4, 1)])
def test_steps(gpus, group, steps) -> None:
    assert fastermoe._n_steps(gpus, fastermoe.Options(group=group)) == steps


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bytes_are_those_of_one_copy_per_expert(direction) -> None:
    other = get_system("megatron-a2a")
    assert moved_bytes(plan(direction=direction)) == moved_bytes(other.plan(TINY, cluster(8), ROUTING, direction, other.options()))


def test_a_step_sends_to_one_group_and_one_local_expert() -> None:
    program, group = plan(group=2), 2
    exchanges = templates(program, "dispatch.row")
    assert len(exchanges) == 4 * 2  # steps x local experts
    seen = 0
    for i, ops in enumerate(exchanges):
        step, expert = divmod(i, 2)
        to = program.members.node[program.members.ptr[ops]]
        assert set(((to // group - program.ops.node[ops] // group) % 4).tolist()) <= {step}
        row = program.members.fill_row[program.members.fill_ptr[program.members.ptr[ops]]]
        region = np.searchsorted(program.regions.row_ptr, row, side="right") - 1
        assert set((region // 4 % 2).tolist()) <= {expert}
        seen += len(ops)
    assert seen == ROUTING.slot.size


def test_streams_run_in_order_and_steps_overlap() -> None:
    """On a GPU an exchange begins when the one before it has ended, and so do GEMMs; results return before the last GEMM ends."""
    program = plan(group=2)
    trace, _ = run_burst(program)
    exchanges = templates(program, "dispatch.row") + templates(program, "combine.row")
    gemms = [np.concatenate(pair) for pair in zip(templates(program, "gemm1"), templates(program, "gemm2"), strict=True)]
    for gpu in range(8):
        for stream in (exchanges, gemms):
            mine = [ops[program.ops.node[ops] == gpu] for ops in stream]
            mine = [ops for ops in mine if len(ops)]
            for one, two in itertools.pairwise(mine):
                assert trace.issue[two].min() >= trace.done[one].max()
    assert len(exchanges) == 16
    assert trace.issue[gemms[0]].min() < trace.done[exchanges[7]].max()
    one_step = plan(group=8)
    late, _ = run_burst(one_step)
    assert late.issue[templates(one_step, "gemm1")[0]].min() >= late.done[templates(one_step, "dispatch.row")[-1]].max() - one_step.hardware.ack


def test_many_experts_have_many_templates() -> None:
    """32 experts per GPU in two steps: more than 255 templates, and the verifier takes the short way."""
    model = replace(TINY, n_experts=128, topk=8)
    program = FASTERMOE.plan(model, cluster(4), make_routing("uniform", model, 4, 24), "bwd", fastermoe.Options(group=2))
    verify(program)
    assert len(program.templates) > 255
    assert starts_by_kind(program)
