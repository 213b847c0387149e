"""The row path: any system, any order, the right tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ConfigError, DysharpError, EmulationMismatch
from dysharp.functional.faults import Faults
from dysharp.functional.machine import Machine
from dysharp.functional.orders import _OldestPool
from dysharp.functional.queue_pairs import Messages
from dysharp.functional.reference import dense_forward
from dysharp.functional.rows import RowMachine, run_rows
from dysharp.systems import all_systems
from dysharp.testing.conformance import emulation
from dysharp.testing.conformance.case import SystemCase, layer_case, run_case

SYSTEMS = all_systems()


def _engine(program):
    from dysharp.engine.burst.run import run_burst

    return run_burst(program)[0]


def _machine(system: str, order: str = "random", gpus: int = 4, seed: int = 0) -> Machine:
    return Machine(system, gpus, order=order, seed=seed, path="row", tracer=_engine)


@pytest.mark.parametrize("order", emulation.UNTIMED)
@pytest.mark.parametrize("system", SYSTEMS)
def test_integers_equal_the_dense_layer(system, order):
    assert list(emulation._integers_equal_the_dense_layer(SystemCase(SYSTEMS[system]), order)) == []


@pytest.mark.parametrize("dtype", emulation.FLOATS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_floats_equal_the_recorded_sums_bit_for_bit(system, dtype):
    assert list(emulation._floats_equal_the_recorded_sums(SystemCase(SYSTEMS[system]), dtype)) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_order_of_the_engine_binds_the_rows_of_its_trace(system):
    assert list(emulation._engine_order_binds_the_trace_rows(SystemCase(SYSTEMS[system]))) == []


def test_orders_change_the_layout_and_not_the_result():
    case = layer_case("int32", tokens=40)
    machines = [_machine("dysharp", seed=seed) for seed in range(4)]
    results = {run_case(case, machine)[0].tobytes() for machine in machines}
    layouts = {machine.passes["forward"].outcome.saved.row_slot.tobytes() for machine in machines}
    assert len(results) == 1
    assert len(layouts) > 1


def test_one_gpu_and_tokens_that_gpus_do_not_divide():
    for gpus in (1, 3):
        case = layer_case("int32", gpus=gpus, tokens=7, experts=6)
        machine = _machine("dysharp", gpus=gpus)
        (y,) = run_case(case, machine)
        assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors)[:7])


def test_replicas_compute_what_their_expert_does():
    case = layer_case("int32", experts=6, gpus=4)  # auto placement: 8 slots, two of them second copies
    machine = _machine("dysharp")
    (y,) = run_case(case, machine)
    assert machine.passes["forward"].tensors.routing.placement.n_slots == 8
    assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors)[: len(y)])


def test_watchdog_names_what_waits():
    machine = _machine("deepep")
    run_case(layer_case(), machine)
    done = machine.passes["forward"]
    edges = done.program.edges
    circle = replace(edges, tail=np.append(edges.tail, 0), head=np.append(edges.head, 0))
    circle = replace(circle, tail_kind=np.append(edges.tail_kind, 0), head_kind=np.append(edges.head_kind, 0))
    with pytest.raises(EmulationMismatch, match=r"watchdog: found \d+ of \d+ ops that .*op 0 \(dispatch.put, GPU 0, key 1\) waits for 1"):
        run_rows(replace(done.program, edges=circle), done.tensors)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": np.zeros((10, 96), np.float64)}, "tokens: found dtype float64, expected one of int32, float32, bfloat16"),
        ({"x": np.zeros((10, 95), np.int32)}, r"tokens: found int32 of shape \(12, 95\), expected int32 of shape \(12, 96\)"),
        ({"expert": np.full((10, 4), 99)}, "token 0, column 0: found expert 99, expected 0 to 15 or -1"),
        ({"expert": np.zeros((10, 4), np.int64)}, "token 0: found expert 0 twice, expected distinct experts"),
        ({"weight": np.ones((10, 3))}, "expected .tokens, hidden. and twice"),
        ({"weight": np.full((10, 4), 0.5)}, "weight: found a part of a whole number, or none, beside tokens of int32"),
        ({"weight": np.full((10, 4), np.nan)}, "weight: found a part of a whole number, or none, beside tokens of int32"),
        ({"weight": None}, r"weights \(\), expected .tokens, hidden. and twice"),
    ],
)
def test_bad_input_is_one_line(change, text):
    case = replace(layer_case(), **change)
    with pytest.raises(DysharpError, match=text) as error:
        run_case(case, _machine("dysharp"))
    assert "\n" not in str(error.value)


def _passed(system: str = "deepep"):
    machine = _machine(system)
    run_case(layer_case(), machine)
    return machine.passes["forward"]


def test_a_read_before_the_write_says_so():
    done = _passed()
    machine = RowMachine(done.program, done.tensors, _OldestPool(), None, Messages(Faults()))
    node = machine.layout.node[machine.layout.region[0]]
    early = rf"row 0 \(token \d+\): found a read on GPU {node} before any transfer wrote the row, expected a wait for its arrival"
    with pytest.raises(EmulationMismatch, match=early):
        machine._hub_sum(node, [0])
    with pytest.raises(EmulationMismatch, match=rf"row 0 \(token \d+\): found a read on GPU 9, expected one on GPU {node} that holds it"):
        machine._hub_sum(9, [0])


@pytest.mark.parametrize(
    ("fn", "key", "text"),
    [
        ("delay", None, r'op \d+ \(gemm1.*, GPU \d\): found a COMPUTE with fn "delay", expected one of gemm1, .* \(work on no tile is a DELAY\)'),
        ("gemm1", -1, r'op \d+ \(gemm1.*, GPU \d\): found a COMPUTE of tile -1, expected a tile of a region "expert"'),
        ("gemm1", 10**6, r'op \d+ \(gemm1.*, GPU \d\): found a COMPUTE of tile 1000000, expected a tile of a region "expert"'),
    ],
)
def test_a_compute_is_a_gemm_of_an_expert_tile(fn, key, text):
    done = _passed()
    p = done.program
    i = next(i for i, t in enumerate(p.templates) if t.fn == "gemm1")
    templates = tuple(replace(t, fn=fn) if j == i else t for j, t in enumerate(p.templates))
    keys = p.ops.key.copy()
    if key is not None:
        keys[np.flatnonzero(p.ops.template == i)[0]] = key
    with pytest.raises(ConfigError, match=text):
        run_rows(replace(p, templates=templates, ops=replace(p.ops, key=keys)), done.tensors)


def test_unknown_names():
    with pytest.raises(ConfigError, match="order 'randum': unknown"):
        run_case(layer_case(), _machine("dysharp", "randum"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"path": "rows"}, "path 'rows': unknown; did you mean \"row\""),
        ({"seed": "1"}, "seed: found '1', expected a whole number"),
        ({"seed": -1}, "seed: found -1, expected 0 or more"),
        ({"gpus": 2.0}, "gpus: found 2.0, expected a whole number"),
        ({"cluster": None}, "cluster: found None, expected text or Cluster"),
        ({"options": None}, "options: found None, expected a mapping from text"),
        ({"options": {"compute": False}}, r"found rows and no GEMM, expected the GEMMs of the layer \(option compute=true\)"),
    ],
)
def test_settings_that_no_machine_has(settings, text):
    with pytest.raises(ConfigError, match=text):
        run_case(layer_case(), Machine(**settings))
