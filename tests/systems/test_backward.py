"""Backward Programs: the mirror of the forward pass in bytes, twice its work, and a barrier wherever the forward has one."""

from __future__ import annotations

import numpy as np
import pytest
from layers import TINY, cluster, layers

from dysharp.base.errors import ConfigError
from dysharp.costs import mean_share, weight_grad_gang, weight_grad_task
from dysharp.costs.operators import hbm_us, sustained_flops_per_us
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing, pull_train
from dysharp.program import Alloc, Program
from dysharp.program.verify import verify
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from dysharp.systems import all_systems, get_system
from dysharp.testing.conformance import backward as rules
from dysharp.testing.conformance.case import Passes, SmallLayer, SystemCase
from dysharp.workload import Routing

Layer = tuple[Model, Cluster, Routing]
LAYERS = layers()
SYSTEMS = list(all_systems())


def plan(system: str, layer: Layer, direction: str) -> Program:
    known = get_system(system)
    program = known.plan(*layer, direction, known.options())
    verify(program)
    return program


def both(system: str, layer: str) -> Passes:
    return Passes(get_system(system), SmallLayer(layer, *LAYERS[layer]))


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_payload_is_that_of_the_forward_pass(system: str, layer: str) -> None:
    passes = both(system, layer)
    assert list(rules._backward_mirrors_bytes(passes)) == []
    assert (rules._riding_bytes(passes.forward)["up"] > 0) == (system != "ideal" and layer != "one GPU")


@pytest.mark.parametrize("experts", ["plain", "gated"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_gradients_are_twice_the_work(system: str, experts: str) -> None:
    assert list(rules._gradients_are_twice_the_work(SystemCase(get_system(system)), experts)) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_nothing_waits_for_weight_gradients(system: str) -> None:
    assert list(rules._nothing_waits_for_weight_gradients(both(system, "lognormal"))) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_stages_wait_as_in_the_forward_pass(system: str) -> None:
    passes = both(system, "uniform")
    assert list(rules._backward_waits_as_forward(passes)) == []
    for fn in ("gemm1", "gemm2"):
        assert rules._waits_of(passes.forward.program, fn) <= {"gemm1", "tile", "join", "delay"}  # delay: the start of a thread block


@pytest.mark.parametrize("system", ["dysharp", "explicit", "dysharp-basic", "dysharp-comet"])
def test_backward_knows_the_layout(system: str) -> None:
    """No exchange of `nactive`; the target lists are fetched as in the forward pass."""
    names = [{t.name for t in plan(system, LAYERS["uniform"], d).templates} for d in ("fwd", "bwd")]
    assert [("nactive" in n, "target_fetch" in n) for n in names] == [(True, True), (False, True)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_buffers_follow_each_other(system: str) -> None:
    passes = both(system, "uniform")
    assert [list(rules._buffers_follow_each_other(one)) for one in (passes.forward, passes.backward)] == [[], []]


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


@pytest.mark.parametrize(("name", "stores"), [("hw-dgx-h100", True), ("hw-dgx-b200", False)])
def test_a_step_of_a_weight_gradient_on_a_real_gpu(name: str, stores: bool) -> None:
    """A step has as many rows as the tile, and the depth of the task: Hopper stores the rows between two tiles, Blackwell beside them."""
    machine, constants = load_cluster(name), fitted_values()
    gpu, rows, depth = load_gpu(machine.gpu), 64, 448  # 16 x 56 tiles of 128 by 128 on 16 x 16 tasks: 3.5 tiles of depth each
    task = weight_grad_task(machine, "bf16", 2048, 7168, rows, mean_share(rows, 4096))
    multiply_us = 2 * rows * 128 * depth / (sustained_flops_per_us(gpu, constants, "bf16") / machine.n_sms)
    store_us = float(hbm_us(gpu, constants, 2 * rows * 128 * machine.n_sms)) if stores else 0.0
    assert task.ps.tolist() == [round(1e6 * (multiply_us + constants["gemm.tile_us"] + store_us))] * (rows + 1)


def test_memory_bounds_the_gradient_of_a_cold_expert() -> None:
    """The FP32 gradient is read and written once per expert: few rows cannot pay for it, many share it."""
    machine = cluster(4)
    cold, hot = (weight_grad_task(machine, "fp8", 2048, 7168, 128, mean_share(128, rows)) for rows in (128, 128 * 64))
    assert cold.bytes[128] == 2 * 4 * 2048 * 7168 / 256 + 128 * (2048 + 7168) / 256
    assert cold.bytes[128] * machine.n_sms / machine.hbm_bytes_per_us * 1e6 > cold.ps[128]
    assert hot.bytes[128] * machine.n_sms / machine.hbm_bytes_per_us * 1e6 < hot.ps[128]
    assert hot.ps[128] == pytest.approx(2 * 128 * 128 * 448 * machine.n_sms / machine.peak_flops_per_us("fp8") * 1e6, rel=1e-6)


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
