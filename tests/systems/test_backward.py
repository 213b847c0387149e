"""Backward Programs: the mirror of the forward pass in bytes, twice its work, and a barrier wherever the forward has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, WIDE, cluster, layers

from dysharp.analysis import traffic_bytes
from dysharp.compute import mean_share, weight_grad_gang, weight_grad_task
from dysharp.engine.burst.run import run_burst
from dysharp.errors import ConfigError
from dysharp.isa.framing import Framing, pull_train
from dysharp.program import Alloc, Head, Kind, Program, Tail, Trace
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify
from dysharp.specs import Cluster, Model
from dysharp.systems import all_systems, get_system
from dysharp.workload import Routing

Layer = tuple[Model, Cluster, Routing]
LAYERS = layers()
SYSTEMS = list(all_systems())
WGRAD = ("gemm2_wgrad", "gemm1_wgrad")


def plan(system: str, layer: Layer, direction: str) -> Program:
    known = get_system(system)
    program = known.plan(*layer, direction, known.options())
    verify(program)
    return program


def ops_of(program: Program, matches: Callable[[str], bool]) -> np.ndarray:
    """Ops of the templates whose `fn` matches."""
    mine = [i for i, t in enumerate(program.templates) if matches(t.fn)]
    return np.flatnonzero(np.isin(program.ops.template, mine))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_payload_is_that_of_the_forward_pass(system: str, layer: str) -> None:
    """Gate gradients come back behind Combine as gate weights went out behind Dispatch: what rode up rides down.

    Pushes are exact mirrors. A pull's aux comes up from every GPU and goes down once, a multicast's goes up once and down to every GPU.
    """
    forward, backward = (plan(system, LAYERS[layer], direction) for direction in ("fwd", "bwd"))
    moved = [moved_bytes(p) for p in (forward, backward)]
    for side in ("up", "down"):
        assert {op: moved[0][side].get(op, 0) for op in ("dispatch", "combine")} == {op: moved[1][side].get(op, 0) for op in ("dispatch", "combine")}
    out, back = (riding(p, run_burst(p)[0]) for p in (forward, backward))
    assert (out["up"], out["down"]) == (back["down"], back["up"])
    assert (out["up"] > 0) == (system != "ideal" and layer != "one GPU")


def riding(program: Program, trace: Trace) -> dict[str, int]:
    """Bytes up and down of operator "other" without the control words."""
    control = moved_bytes(program)
    counted = traffic_bytes(program, trace)
    return {side: counted[side]["other"] - control[side].get("other", 0) for side in ("up", "down")}


@pytest.mark.parametrize("model", [TINY, replace(WIDE, hidden=1024)], ids=["plain", "gated"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_gradients_are_twice_the_work(system: str, model: Model) -> None:
    """With a memory that never limits, SM time is floating-point work: gradients of data as much as forward, of weights as much again."""
    _, machine, routing = LAYERS["uniform" if model is TINY else "lognormal"]
    fast = replace(machine, hbm_bytes_per_us=1 << 50)
    forward, backward = (plan(system, (model, fast, routing), d) for d in ("fwd", "bwd"))
    once = slot_ps(forward, lambda fn: fn in ("gemm1", "gemm2"))
    assert slot_ps(backward, lambda fn: fn in WGRAD) == pytest.approx(once, rel=1e-5)  # tasks are rounded up to a ps
    assert slot_ps(backward, lambda fn: fn in ("gemm2_dgrad", "gemm1_dgrad")) == pytest.approx(once, rel=1e-5)


def slot_ps(program: Program, matches: Callable[[str], bool]) -> int:
    """Tasks times their duration."""
    ops = ops_of(program, matches)
    template = program.ops.template[ops]
    tasks, duration = (np.array([getattr(t, name) for t in program.templates]) for name in ("tasks", "duration"))
    return int((tasks[template] * program.durations[duration[template], program.ops.rows[ops]]).sum())


@pytest.mark.parametrize("system", SYSTEMS)
def test_nothing_waits_for_weight_gradients(system: str) -> None:
    program = plan(system, LAYERS["lognormal"], "bwd")
    fillers = ops_of(program, lambda fn: fn in WGRAD)
    others = ops_of(program, lambda fn: fn in ("gemm2_dgrad", "gemm1_dgrad"))
    tails = program.edges.tail[program.edges.tail_kind <= Tail.OP_ISSUED]
    assert not np.isin(tails, fillers).any()
    assert program.ops.prio[fillers].min() > program.ops.prio[others].max()
    assert (run_burst(program)[0].done[fillers] > 0).all()


def waits(program: Program, fn: str) -> set[str]:
    """What the ops of a function wait for: names of templates, or "tile"."""
    ops = ops_of(program, lambda name: name == fn)
    e = program.edges
    mine = (e.head_kind == Head.OP_ISSUE) & np.isin(e.head, ops)
    tiles = {"tile"} if (e.tail_kind[mine] == Tail.TILE_READY).any() else set()
    return tiles | {program.templates[t].fn for t in np.unique(program.ops.template[e.tail[mine & (e.tail_kind <= Tail.OP_ISSUED)]])}


@pytest.mark.parametrize("system", SYSTEMS)
def test_stages_wait_as_in_the_forward_pass(system: str) -> None:
    forward, backward = (plan(system, LAYERS["uniform"], d) for d in ("fwd", "bwd"))
    other = {"gemm1": "gemm2_dgrad", "tile": "tile", "join": "join"}
    first, second = ({other[name] for name in waits(forward, fn)} for fn in ("gemm1", "gemm2"))
    assert waits(backward, "gemm2_dgrad") == waits(backward, "gemm2_wgrad") == first
    assert waits(backward, "gemm1_dgrad") == waits(backward, "gemm1_wgrad") == second


@pytest.mark.parametrize("system", ["dysharp", "explicit", "dysharp-basic", "dysharp-comet"])
def test_backward_knows_the_layout(system: str) -> None:
    """No exchange of `nactive`; the target lists are fetched as in the forward pass."""
    names = [{t.name for t in plan(system, LAYERS["uniform"], d).templates} for d in ("fwd", "bwd")]
    assert [("nactive" in n, "target_fetch" in n) for n in names] == [(True, True), (False, True)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_buffers_follow_each_other(system: str) -> None:
    """What one function writes the next one reads, and only rows of a layer are read or written."""
    for direction, sent, summed in (("fwd", "x", "y"), ("bwd", "dy", "dx")):
        templates = plan(system, LAYERS["uniform"], direction).templates
        by_fn = {t.fn: t for t in templates if t.src or t.dst}
        assert (by_fn["copy"].src, by_fn["copy"].dst) == (sent, f"expert.{sent}")
        back = by_fn.get("row") or by_fn["sum"]
        assert back.src == f"expert.{summed}"
        assert back.dst == ("partial" if back.kind is Kind.PUT else summed)
        chain = ("gemm1", "gemm2") if direction == "fwd" else ("gemm2_dgrad", "gemm1_dgrad")
        read, written = zip(*((by_fn[fn].src, by_fn[fn].dst) for fn in chain), strict=True)
        assert (f"expert.{sent}", *written) == (*read, f"expert.{summed}")
        assert {t.fn for t in templates if not t.src and not t.dst} <= {"control", "join", "delay"}


def test_rows_lie_as_an_even_forward_fills_them() -> None:
    layer = LAYERS["lognormal"]
    r, tokens = plan("dysharp", layer, "bwd").regions, layer[2].tokens_per_gpu
    for region in np.flatnonzero([name == "expert" for name in r.name]):
        token = r.row_key[r.row_ptr[region] : r.row_ptr[region + 1]]
        assert r.alloc[region] == Alloc.PREFIX
        assert [(t % tokens, t // tokens) for t in token] == sorted((t % tokens, t // tokens) for t in token)


def test_pull_asks_for_what_rides_along() -> None:
    framing = Framing("dymultimem", targets_per_ext=8)
    alone, with_aux = pull_train(framing, 1024, 8), pull_train(framing, 1024, 8, 32)
    assert (with_aux.packets, with_aux.up - alone.up, with_aux.down - alone.down) == (9, 2 * 16, 16)
    assert with_aux.response - alone.response == with_aux.result - alone.result == 16 + 32


def test_tasks_of_a_weight_gradient() -> None:
    """Square output tiles; neighbours share a task where there are more than about twice the SMs of a GPU."""
    assert weight_grad_gang(512, 2048) == 4 * 16
    assert weight_grad_gang(2048, 7168) == 16 * 16
    assert weight_grad_gang(28672, 4096) == 224


def test_memory_bounds_the_gradient_of_a_cold_expert() -> None:
    """The FP32 gradient is read and written once per expert: few rows cannot pay for it, many share it."""
    machine = cluster(4)
    cold, hot = (weight_grad_task(machine, "fp8", 2048, 7168, 128, mean_share(128, rows)).ps[128] for rows in (128, 128 * 64))
    per_sm = machine.hbm_bytes_per_us / machine.n_sms
    task = 2 * 4 * 2048 * 7168 / 256
    assert cold == pytest.approx((task + 128 * (2048 + 7168) / 256) / per_sm * 1e6)
    assert hot == pytest.approx(2 * 128 * 128 * 448 * machine.n_sms / machine.peak_flops_per_us("fp8") * 1e6, rel=1e-6)


def test_a_program_is_one_pass() -> None:
    with pytest.raises(ConfigError, match="direction 'both': found no single pass, expected one of fwd, bwd"):
        get_system("deepep").plan(*LAYERS["uniform"], "both", get_system("deepep").options())


def test_pure_communication_backward() -> None:
    """Without GEMMs a row goes back as it came, with the gate gradients' bytes on the other operator."""
    for system in ("deepep", "dysharp", "nvls", "fusion-only"):
        known = get_system(system)
        program = known.plan(TINY, cluster(4), LAYERS["uniform"][2], "bwd", known.options(compute=False))
        verify(program)
        assert {t.src for t in program.templates if t.fn == "sum"} == {"expert.dy"}
        assert (run_burst(program)[0].done >= 0).all()
