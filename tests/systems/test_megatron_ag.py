"""Megatron's allgather dispatcher: every row to every GPU, at NCCL's pace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.analysis.bound import program_bound
from dysharp.costs.collectives import collective_us
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.program.payload import moved_bytes
from dysharp.specs import Model, load_cluster, load_model
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from dysharp.systems import get_system
from dysharp.workload import make_routing

REAL = load_cluster("hw-dgx-h100")


def plan(tokens: int, machine=REAL, model: Model = TINY, direction: str = "fwd", kind: str = "uniform") -> Program:
    system = get_system("megatron-ag")
    return system.plan(model, machine, make_routing(kind, model, machine.n_gpus, tokens), direction, system.options(compute=False))


def ops_of(program: Program, *names: str) -> np.ndarray:
    mine = [i for i, t in enumerate(program.templates) if t.name in names]
    return np.flatnonzero(np.isin(program.ops.template, mine))


@pytest.mark.parametrize("machine", [REAL, cluster(8)])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bytes_do_not_depend_on_the_routing(machine, direction) -> None:
    """A row per token and other GPU, up and down, in both collectives."""
    expected = 8 * 16 * 7 * TINY.row_bytes
    for kind in ("uniform", "lognormal:1.5"):
        moved = moved_bytes(plan(16, machine, direction=direction, kind=kind))
        assert {moved[side][operator] for side in ("up", "down") for operator in ("dispatch", "combine")} == {expected}


def test_every_token_reaches_every_other_gpu_once() -> None:
    program = plan(16)
    for names, of_source in ((("dispatch.put", "dispatch.surplus"), True), (("combine.put", "combine.surplus"), False)):
        ops = ops_of(program, *names)
        node, to = program.ops.node[ops], program.members.node[program.members.ptr[ops]]
        far = node != to
        token, gpu = program.ops.key[ops][far], (to if of_source else node)[far]
        assert np.array_equal(np.unique(token * 8 + gpu), np.array([t * 8 + g for t in range(8 * 16) for g in range(8) if g != t // 16]))
        assert len(token) == 8 * 16 * 7


def test_the_paper_form_keeps_all_links_busy() -> None:
    """Every GPU sends to another GPU at any time, so the collectives reach their link bound; 2.4 times of it otherwise."""
    machine, model = load_cluster("paper-gh200-nvl32"), load_model("S-8")
    program = plan(64, machine, model)
    assert run_burst(program)[0].time_ps < 1.05 * program_bound(program).us * 1e6


@pytest.mark.parametrize("tokens", [4, 64, 512])
def test_collectives_take_what_nccl_takes(tokens: int) -> None:
    """The rate form of NCCL's ring, of the protocol that it takes, and the flight of the last row.

    On the links of a Program a row of 128 B needs ten flits with its header and acknowledgement, so at most 0.8 of the
    datasheet are payload. NCCL's rings reach 20.6 of 25 GB/s.
    """
    model = replace(TINY, hidden=7168, topk=8, n_experts=32)
    program = plan(tokens, model=model)
    trace, _ = run_burst(program)
    for operator, kind in (("dispatch", "all_gather"), ("combine", "reduce_scatter")):
        rows, start = ops_of(program, f"{operator}.put", f"{operator}.surplus"), ops_of(program, f"{operator}.nccl")
        time_us = (trace.done[rows].max() - trace.issue[start].max()) / 1e6
        closed = float(collective_us(load_gpu("h100-sxm"), fitted_values(), kind, 8, 8 * tokens * model.row_bytes))
        framed = 7 * tokens * model.row_bytes / REAL.link_bytes_per_us * (1 / 0.8 - 25 / 20.6)
        assert closed < time_us < (closed + framed) * 1.02 + 1.2


def test_maps_and_probabilities_are_gathered_forward_their_gradients_scattered_backward() -> None:
    forward, backward = plan(16), plan(16, direction="bwd")
    assert len(ops_of(forward, "maps and probabilities")) == len(ops_of(backward, "probability gradients")) == 8
    assert len(ops_of(forward, "probability gradients")) == len(ops_of(backward, "maps and probabilities")) == 0


def test_gradients_of_probabilities_wait_for_the_returned_rows() -> None:
    """A backward pass ends with a reduce-scatter of them: on every GPU after the last row of the other collective has landed there."""
    program = plan(16, direction="bwd")
    trace, members = run_burst(program)[0], program.members
    of_rows = np.concatenate([np.arange(members.ptr[op], members.ptr[op + 1]) for op in ops_of(program, "combine.put", "combine.surplus")])
    landed = np.zeros(8, np.int64)
    np.maximum.at(landed, members.node[of_rows], trace.member[of_rows])
    gradients = ops_of(program, "probability gradients")
    assert sorted(program.ops.node[gradients]) == list(range(8))
    assert (trace.ready[gradients] >= landed[program.ops.node[gradients]]).all()
