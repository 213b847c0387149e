"""The packet path: every system and every fault, through packed packets and finite tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.errors import ConfigError, EmulationMismatch
from dysharp.functional.faults import KINDS, MACHINE, ROUTING, machine_faults, routing_cases
from dysharp.functional.machine import Machine
from dysharp.functional.packets import run_packets
from dysharp.functional.reference import dense_forward, recorded_reference
from dysharp.systems import all_systems
from tests.functional.layers import layer_case, run_case

SYSTEMS = sorted(all_systems())
FAULTS = [(), *((kind,) for kind in MACHINE), tuple(MACHINE)]


def _packets(system: str, kinds: tuple[str, ...] = (), **settings) -> Machine:
    return Machine(system, 4, path="packet", faults=machine_faults(kinds), **settings)


def _rows(system: str) -> Machine:
    return Machine(system, 4, path="row")


@pytest.mark.parametrize("kinds", FAULTS, ids="+".join)
@pytest.mark.parametrize("system", SYSTEMS)
def test_integers_equal_the_row_path_whatever_goes_wrong(system, kinds):
    expected = run_case(layer_case("int32"), _rows(system), backward=True)
    found = run_case(layer_case("int32"), _packets(system, kinds), backward=True)
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("kinds", FAULTS, ids="+".join)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floats_equal_the_recorded_sums_bit_for_bit(dtype, kinds):
    for system in ("dysharp", "deepep", "nvls"):
        machine = _packets(system, kinds)
        y, dx, gate, *_ = run_case(layer_case(dtype), machine, backward=True)
        forward, backward = machine.passes["forward"], machine.passes["backward"]
        assert recorded_reference(forward.tensors, forward.outcome.record).out[: len(y)].tobytes() == y.tobytes()
        again = recorded_reference(backward.tensors, backward.outcome.record, forward=forward.outcome.record)
        assert again.out[: len(dx)].tobytes() == dx.tobytes()
        assert again.gate_grad[: len(gate)].tobytes() == gate.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_floats_equal_the_row_path_where_order_cannot_matter(system, dtype):
    """Two experts per token: every sum has two operands at most, and the layout is one row per tile row in any order."""
    paths = []
    for machine in (_packets(system), _rows(system)):
        case = layer_case(dtype, topk=2, experts=40)  # few tokens per expert: GEMMs of one or two rows
        run_case(case, machine)
        paths.append(machine.passes["forward"])
    sums = [{t: {str(e) for e in s} for t, s in p.outcome.record.sums.items()} for p in paths]
    assert sums[0].keys() == sums[1].keys()
    bound = 1e-6 if dtype == "float32" else 2.0**-7
    a, b = (p.outcome.out.astype(np.float64) for p in paths)
    assert np.abs(a - b).max() <= bound * np.abs(b).max()  # GEMMs of other tile mates may differ in the last bit


@pytest.mark.parametrize("local_experts", [4, 20, 40])  # replicas as bitmap, as three ids, with extension flits
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_bytes_on_every_link_are_those_of_the_timed_engine(system, direction, local_experts):
    from dysharp.engine.burst.run import run_burst

    machine = _packets(system)
    case = layer_case("bfloat16", tokens=24, experts=4 * local_experts, topk=min(8, local_experts), hidden=160, expert_hidden=4)
    run_case(case, machine, backward=True)
    done = machine.passes[direction]
    trace = run_burst(done.program)[0]
    gpus = range(4)
    assert [done.statistics.up_bytes[g] for g in gpus] == trace.up_busy.tolist()
    assert [done.statistics.down_bytes[g] for g in gpus] == trace.down_busy.tolist()


@pytest.mark.parametrize("kind", sorted(MACHINE))
def test_every_fault_really_happens(kind):
    machine = _packets("dysharp", (kind,))
    run_case(layer_case("int32", tokens=40), machine)
    assert machine.passes["forward"].statistics.injected[kind] > 0


def test_evictions_send_partial_sums_and_later_responses_pass_by():
    machine = _packets("dysharp", ("evict",))
    run_case(layer_case("bfloat16", tokens=60, topk=8, hidden=128), machine)
    table = machine.passes["forward"].statistics.tables["reduction"]
    packets = machine.passes["forward"].statistics.packets
    assert table["evictions"] > 0
    assert table["bypassed"] > 0
    assert packets["partial sum"] == 2 * table["partial sums"]  # FP32 in two packets of 128 B


@pytest.mark.parametrize("kind", sorted(ROUTING))
@pytest.mark.parametrize("system", SYSTEMS)
def test_hard_routings(system, kind):
    base = layer_case("int32", tokens=24)
    expert = routing_cases(np.argsort(np.random.default_rng(1).random((24, 16)), axis=1)[:, :4], [kind], 4, 16)
    for machine in (_packets(system), _rows(system)):
        case = replace(base, expert=expert)
        (y,) = run_case(case, machine)
        assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors))


def test_last_partial_tile():
    """300 rows per expert: two full tiles of 128 and one of 44."""
    case = layer_case("int32", gpus=2, tokens=300, experts=2, topk=2, hidden=32, expert_hidden=8)
    case = replace(case, expert=np.tile([0, 1], (300, 1)))
    machine = Machine("dysharp", 2, path="packet")
    (y,) = run_case(case, machine)
    sizes = {len(tokens) for _, _, tokens in machine.passes["forward"].outcome.record.tiles}
    assert sizes == {128, 44}
    assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors))


def test_local_targets_send_nothing():
    case = layer_case("int32", tokens=8)
    machine = _packets("dysharp")
    run_case(replace(case, expert=np.repeat(np.arange(4), 2)[:, None] * 4 + np.arange(4)[None, :]), machine)
    packets = machine.passes["forward"].statistics.packets
    assert not {name for name in packets if "dymultimem" in name}


def test_one_response_with_a_count_for_several_local_experts():
    case = layer_case("int32", tokens=4, hidden=32)
    machine = _packets("dysharp")
    run_case(replace(case, expert=np.tile([12, 13, 14, 15], (4, 1))), machine)
    packets = machine.passes["forward"].statistics.packets
    assert packets["response"] == packets["dymultimem.ld_reduce replica"] == packets["result"] == 3  # of tokens 0, 1, 2


@pytest.mark.parametrize("order", ["oldest", "newest", "late-delivery", "late-completion"])
def test_adversaries(order):
    for system in ("dysharp", "comet", "nvls"):
        machine = _packets(system, order=order)
        case = layer_case("int32")
        (y,) = run_case(case, machine)
        assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors)[: len(y)])


def test_watchdog_names_tables():
    machine = _packets("dysharp")
    run_case(layer_case(), machine)
    done = machine.passes["forward"]
    sem = replace(done.program.semaphores, capacity=np.zeros_like(done.program.semaphores.capacity))
    with pytest.raises(EmulationMismatch, match=r"watchdog: found .* ops that wait for ever"):
        run_packets(replace(done.program, semaphores=sem), done.tensors)


def test_too_many_gate_weights_for_a_packet():
    case = layer_case("int32", experts=40, topk=36)
    with pytest.raises(ConfigError, match="found gate weights of 2 packets, expected top-32 at most"):
        run_case(case, _packets("dysharp"))


def _with_aux(program, old, new):
    return replace(program, wires=replace(program.wires, aux=np.where(program.wires.aux == old, new, program.wires.aux)))


def test_only_gate_weights_and_their_gradients_ride_along():
    machine = _packets("dysharp")
    run_case(layer_case("int32"), machine, backward=True)
    forward, backward = machine.passes["forward"], machine.passes["backward"]
    text = r"packet path: op \d+ \(dispatch.*\): found 32 B riding along, expected 16 B \(gate weights of top-4\) or none \(path row has no limit\)"
    with pytest.raises(ConfigError, match=text):
        run_packets(_with_aux(forward.program, 16, 32), forward.tensors)
    with pytest.raises(ConfigError, match=r"op \d+ \(combine.*\): found 32 B riding along, expected 16 B \(gate gradients of top-4\) or none"):
        run_packets(_with_aux(backward.program, 16, 32), backward.tensors)
    with pytest.raises(ConfigError, match=r"op \d+ \(nactive\): found 16 B riding along, expected none"):
        run_packets(_with_aux(forward.program, 0, 16), forward.tensors)


def test_kinds_are_described():
    assert set(KINDS) == set(MACHINE) | set(ROUTING)
