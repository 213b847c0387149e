"""The packet path: every system and every fault, through packed packets and finite tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.functional.faults import KINDS, MACHINE, ROUTING, SCALE_OUT, machine_faults, routing_cases
from dysharp.functional.machine import Machine
from dysharp.functional.packets import run_packets
from dysharp.functional.reference import dense_forward, recorded_reference
from dysharp.systems import all_systems
from dysharp.testing.conformance import emulation
from dysharp.testing.conformance.case import SystemCase, layer_case, run_case

SYSTEMS = all_systems()
NO_PACKETS = {"sync-dysharp", "sync-switch"}
"""READY is a sum of pushes, which the packet path refuses (docs/deviations.md, Functional machine). The row path carries it."""
CARRIED = [name for name in SYSTEMS if name not in NO_PACKETS]
NO_OWN_COPIES = {"nvls-groups": {"own": "kept"}}
"""Packets carry no own copies of the issuer, so bytes are compared without them."""
FAULTS = emulation.FAULTS
EACH_FAULT = [pytest.param(kinds, marks=pytest.mark.slow) if len(kinds) == 1 else kinds for kinds in FAULTS]
"""One fault alone is slow; no fault and all faults together are quick."""


def _packets(system: str, kinds: tuple[str, ...] = (), **settings) -> Machine:
    return Machine(system, 4, path="packet", faults=machine_faults(kinds), **settings)


@pytest.mark.sampled
@pytest.mark.parametrize("kinds", EACH_FAULT, ids="+".join)
@pytest.mark.parametrize("system", CARRIED)
def test_integers_equal_the_row_path_whatever_goes_wrong(system, kinds):
    assert list(emulation._packets_equal_rows(SystemCase(SYSTEMS[system]), kinds)) == []


FLOATS = [(dtype, kinds) for dtype in ("float32", "bfloat16") for kinds in FAULTS]
ROUNDED = [pytest.param(*case, marks=pytest.mark.slow) if len(case[1]) == 1 else case for case in FLOATS]


@pytest.mark.parametrize(("dtype", "kinds"), ROUNDED)
def test_floats_equal_the_recorded_sums_bit_for_bit(dtype, kinds):
    for system in ("dysharp", "deepep", "nvls"):
        machine = _packets(system, kinds)
        y, dx, gate, *_ = run_case(layer_case(dtype), machine, backward=True)
        forward, backward = machine.passes["forward"], machine.passes["backward"]
        assert recorded_reference(forward.tensors, forward.outcome.record).out[: len(y)].tobytes() == y.tobytes()
        again = recorded_reference(backward.tensors, backward.outcome.record, forward=forward.outcome.record)
        assert again.out[: len(dx)].tobytes() == dx.tobytes()
        assert again.gate_grad[: len(gate)].tobytes() == gate.tobytes()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", emulation.FLOATS)
@pytest.mark.parametrize("system", CARRIED)
def test_floats_equal_the_row_path_where_order_cannot_matter(system, dtype):
    assert list(emulation._packets_equal_rows_in_floats(SystemCase(SYSTEMS[system]), dtype)) == []


@pytest.mark.sampled
@pytest.mark.parametrize("local_experts", [emulation.SLOTS[0], *(pytest.param(n, marks=pytest.mark.slow) for n in emulation.SLOTS[1:])])
@pytest.mark.parametrize("direction", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
@pytest.mark.parametrize("system", CARRIED)
def test_bytes_on_every_link_are_those_of_the_timed_engine(system, direction, local_experts):
    case = SystemCase(SYSTEMS[system], NO_OWN_COPIES.get(system))
    assert list(emulation._packets_have_the_engine_bytes(case, (direction, local_experts))) == []


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


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k != "drop" else k for k in sorted(ROUTING)])
@pytest.mark.parametrize("system", CARRIED)
def test_hard_routings(system, kind):
    assert list(emulation._hard_routings_are_served(SystemCase(SYSTEMS[system]), kind)) == []


@pytest.mark.parametrize("kind", sorted(ROUTING))
@pytest.mark.parametrize("system", sorted(NO_PACKETS))
def test_hard_routings_row_by_row_and_a_refusal_of_packets(system, kind):
    drawn = np.argsort(np.random.default_rng(1).random((24, 16)), axis=1)[:, :4]
    case = replace(layer_case("int32", tokens=24), expert=routing_cases(drawn, [kind], 4, 16))
    machine = Machine(system, 4, path="row")
    (y,) = run_case(case, machine)
    assert np.array_equal(y, dense_forward(machine.passes["forward"].tensors)[: len(y)])
    with pytest.raises(ConfigError, match=r"found ops of kind PUSH_REDUCE, expected .* PULL_REDUCE"):
        run_case(case, _packets(system))


def test_last_partial_tile():
    """300 rows per expert: two full tiles of 128 and one of 44."""
    case = layer_case("int32", gpus=2, tokens=300, experts=2, topk=2, hidden=32, expert_hidden=8)
    case = replace(case, expert=np.tile([0, 1], (300, 1)))
    machine = Machine("dysharp", 2, path="packet")
    (y,) = run_case(case, machine)
    sizes = {len(tokens) for _, _, tokens, _ in machine.passes["forward"].outcome.record.tiles}
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
    text = r"packet path: op \d+ \(dispatch.*\): found 32 B behind a row, expected 16 B \(gate weights of top-4\) or none \(path row has no limit\)"
    with pytest.raises(ConfigError, match=text):
        run_packets(_with_aux(forward.program, 16, 32), forward.tensors)
    with pytest.raises(ConfigError, match=r"op \d+ \(combine.*\): found 32 B behind a row, expected 16 B \(gate gradients of top-4\) or none"):
        run_packets(_with_aux(backward.program, 16, 32), backward.tensors)
    with pytest.raises(ConfigError, match=r"op \d+ \(nactive\): found 16 B behind a row, expected none"):
        run_packets(_with_aux(forward.program, 0, 16), forward.tensors)


def test_kinds_are_described():
    assert set(KINDS) == set(MACHINE) | set(SCALE_OUT) | set(ROUTING)


def test_rows_in_another_format_are_refused_before_anything_runs():
    machine = _packets("deepep", options={"dispatch": "fp8"})
    with pytest.raises(ConfigError, match=r"packet path: found rows of \d+ B in Dispatch, expected \d+ B \(\d+ values of int32; use the option"):
        run_case(layer_case("int32"), machine)
