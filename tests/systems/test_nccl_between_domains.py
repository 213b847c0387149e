"""NCCL between NVLink domains: all-to-all by rails (PXN) or by levels, all-gather and reduce-scatter by rings or in switches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_several_domains import MODEL, domains, planned

from dysharp.analysis import program_bound, traffic_bytes
from dysharp.base.errors import ConfigError
from dysharp.functional.emulation import Shape, run_emulation
from dysharp.functional.machine import Machine
from dysharp.oracle import run_oracle
from dysharp.planning.advice.candidates import candidates
from dysharp.program.verify import verify
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.systems.building.gpus import Software
from dysharp.systems.tutel import _capacity_rows
from dysharp.workload import make_routing
from dysharp.workload.levels import LEVELS, rail_rings
from tests.interpreters.mutants import difference
from tests.interpreters.plain import PlainEngine


@pytest.mark.parametrize(("pxn", "scheme"), [(True, "by_rail"), (False, "direct")])
def test_rows_between_rails_take_a_hop_by_nvlink(pxn, scheme):
    """Bytes per GPU: PXN leaves a domain at the GPU with the receiver's index, the straight way at the sender."""
    cluster = domains(4, 2)
    program, routing = planned("megatron-a2a", cluster, tokens=16, pxn=pxn)
    verify(program)
    trace = run_oracle(program)
    assert difference(PlainEngine(), program, trace) is None
    counted, levels = traffic_bytes(program, trace), LEVELS[scheme](routing, 2)
    row = MODEL.row_bytes
    assert (counted["up"]["dispatch"], counted["nic out"]["dispatch"]) == (int(levels.near[0].sum()) * row, int(levels.far[0].sum()) * row)
    sent = np.zeros((2, cluster.n_gpus), np.int64)
    nets = program.op_net()
    member = np.repeat(np.arange(program.n_ops), np.diff(program.members.ptr))
    for op, to in zip(member.tolist(), program.members.node.tolist(), strict=True):
        if program.templates[program.ops.template[op]].operator == "dispatch" and program.ops.node[op] != to:
            sent[nets[op], program.ops.node[op]] += program.ops.bytes[op]
    np.testing.assert_array_equal(sent[0], levels.near[0] * row)
    np.testing.assert_array_equal(sent[1], levels.far[0] * row)


@pytest.mark.slow
def test_rails_need_no_spine():
    """With an oversubscribed spine PXN takes as long as on an even network; the straight way takes longer."""
    times = {
        (pxn, over): run_oracle(planned("megatron-a2a", domains(4, 2, oversubscription=over), tokens=32, pxn=pxn)[0]).time_ps
        for pxn in (True, False)
        for over in (1.0, 3.0)
    }
    assert times[True, 3.0] == times[True, 1.0]
    assert times[False, 3.0] > 1.1 * times[False, 1.0]
    assert times[True, 1.0] == pytest.approx(times[False, 1.0], rel=0.1)


@pytest.mark.parametrize("pxn", [True, False])
def test_tensors_of_the_real_form(pxn):
    machine = Machine(
        system="megatron-a2a", gpus=8, cluster=domains(4, 2, base="hw-dgx-h100"), path="row", order="random", seed=5, options={"pxn": pxn}
    )
    assert run_emulation(machine, "gated", Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds


def test_rows_of_levels_are_those_of_the_straight_way():
    """PXN sends by NIC what the straight way sends, from other GPUs of the same domains."""
    routing = make_routing("lognormal:0.8", MODEL, 8, 32)
    rail, straight = LEVELS["by_rail"](routing, 2), LEVELS["direct"](routing, 2)
    np.testing.assert_array_equal(rail.far[1], straight.far[1])
    np.testing.assert_array_equal(rail.far[0].reshape(4, 2).sum(axis=1), straight.far[0].reshape(4, 2).sum(axis=1))


@pytest.mark.parametrize(("n", "size"), [(2, 8), (4, 2), (3, 4), (5, 3), (2, 1), (8, 8)])
def test_rings_stay_on_rails(n, size):
    """Every ring passes every GPU once; between domains it keeps its rail; one ring enters and one leaves by each GPU's NIC."""
    rings = rail_rings(n * size, size)
    assert rings.shape == (size, n * size)
    np.testing.assert_array_equal(np.sort(rings, axis=1), np.broadcast_to(np.arange(n * size), rings.shape))
    here, behind = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
    far = here // size != behind // size
    np.testing.assert_array_equal(here[far] % size, behind[far] % size)
    assert np.bincount(here[far], minlength=n * size).tolist() == np.bincount(behind[far], minlength=n * size).tolist() == [1] * (n * size)


def test_rings_that_cannot_come_back():
    with pytest.raises(ConfigError, match="rings: found 3 NVLink domains of 2 GPUs, expected an even number of domains"):
        planned("megatron-ag", domains(3, 2), model=MODEL)


@pytest.mark.parametrize(("n", "size"), [(2, 4), (3, 4)])
def test_rings_carry_the_closed_form(n, size):
    """Each NIC (S / D)(G - 1) / G of the gathered buffer S; no all-gather needs fewer than S (n - 1) / (n D)."""
    gpus, tokens = n * size, 2 * size
    model = MODEL if n == 2 else replace(MODEL, n_experts=12)
    program, routing = planned("megatron-ag", domains(n, size), tokens=tokens, model=model)
    verify(program)
    trace = run_oracle(program)
    gathered = gpus * tokens * MODEL.row_bytes
    levels, counted = LEVELS["ring"](routing, size), traffic_bytes(program, trace)
    each = gathered // size * (gpus - 1) // gpus
    assert (levels.far[0] * MODEL.row_bytes == each).all()
    assert (levels.near[0] * MODEL.row_bytes == gathered * (size - 1) // size * (gpus - 1) // gpus).all()
    for operator in ("dispatch", "combine"):
        assert counted["nic out"][operator] == counted["nic in"][operator] == gpus * each
    assert each >= gathered * (n - 1) // (n * size)
    assert program_bound(program).us <= trace.time_ps / 1e6
    assert difference(PlainEngine(), program, trace) is None


@pytest.mark.parametrize(("n", "size"), [(2, 4), (4, 2)])
def test_nvls_carries_the_closed_form(n, size):
    """Per GPU and operator: NICs out T and in (n - 1) T, NVLink up n T and down n (D - 1) T; Combine mirrors them."""
    gpus, tokens = n * size, 6
    program, _ = planned("nvls", domains(n, size), tokens=tokens)
    verify(program)
    trace = run_oracle(program)
    rows, counted = gpus * tokens * MODEL.row_bytes, traffic_bytes(program, trace)
    there = {"nic out": rows, "nic in": (n - 1) * rows, "up": n * rows, "down": n * (size - 1) * rows}
    mirror = {"nic out": "nic in", "nic in": "nic out", "up": "down", "down": "up"}
    assert {side: counted[side]["dispatch"] for side in there} == there
    assert {mirror[side]: counted[side]["combine"] for side in there} == there
    received = [int(trace.down_busy[net * gpus : (net + 1) * gpus].min()) for net in (0, 1)]
    assert received[1] >= n * tokens * MODEL.row_bytes  # every NIC: (n - 1) T rows of Dispatch and T sums of Combine


def test_nvls_needs_one_nic_per_gpu():
    with pytest.raises(ConfigError, match="found 2 NICs per GPU, expected 1 \\(NCCL has no sums in the network otherwise\\)"):
        planned("nvls", domains(2, 4, nics_per_gpu=2))


MORE = [pytest.param(degree, way, marks=pytest.mark.slow) for degree, way in ((1, "bwd"), (2, "fwd"), (2, "bwd"))]


@pytest.mark.parametrize(("degree", "direction"), [(1, "fwd"), *MORE])
def test_tutels_two_levels_have_the_bytes_of_rails(degree, direction):
    """2DH moves on every link what NCCL's rails move, and its NICs begin when the first level of the GPU has ended."""
    cluster, given = domains(2, 4), {"degree": degree, "capacity": 200}
    traces = {}
    for a2a in ("linear", "2dh"):
        program, routing = planned("tutel", cluster, tokens=8, direction=direction, a2a=a2a, **given)
        verify(program)
        traces[a2a] = trace = run_oracle(program)
        assert difference(PlainEngine(), program, trace) is None
        tutel = get_system("tutel")
        options = tutel.options(a2a=a2a, **given)
        rows = _capacity_rows(tutel.served(routing, options), options) * MODEL.n_experts // cluster.n_gpus
        assert program.declared.traffic["nic out"]["dispatch"] == cluster.n_gpus * 4 * rows * MODEL.row_bytes
    np.testing.assert_array_equal(traces["linear"].up_busy, traces["2dh"].up_busy)
    assert traces["2dh"].time_ps >= traces["linear"].time_ps
    names = np.array([t.name for t in program.templates])[program.ops.template]
    first = np.char.startswith(names.astype(str), "dispatch") & np.char.endswith(names.astype(str), "row.rail") & (names != "dispatch.row.nic.rail")
    by_nic = names == "dispatch.row.nic.rail"
    if degree == 1:
        for gpu in range(cluster.n_gpus):
            here = program.ops.node == gpu
            assert trace.issue[by_nic & here].min() >= trace.done[first & here].max()


@pytest.mark.parametrize("block", ["integer", "gated"])
def test_tensors_of_tutels_two_levels(block):
    machine = Machine(system="tutel", gpus=8, cluster=domains(4, 2), path="row", order="random", seed=4, options={"a2a": "2dh"})
    assert run_emulation(machine, block, Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"a2a": "2hd"}, "tutel.a2a: found '2hd'; did you mean \"2dh\""),
        ({"a2a": "2dh", "form": "real"}, 'tutel.a2a: found "2dh" in real form, expected "linear"'),
        ({"capacity": 0, "form": "real"}, "tutel.capacity: found 0 in real form over several NVLink domains, expected above 0"),
        ({"mediation": True, "form": "paper"}, "tutel.mediation: found 2 NVLink domains, expected one"),
    ],
)
def test_what_tutel_refuses_between_domains(options, text):
    with pytest.raises(ConfigError, match=text):
        planned("tutel", domains(2, 4, base="hw-dgx-h100"), **options)


def test_real_rings_start_later_and_are_paced():
    """A ring starts after what NCCL's tuner charges less the flights; Simple: 8.4 us, 14 hops of 3.4 us and a step of 14 us."""
    cluster = load_cluster("hw-dgx-h100-x2")
    model = replace(load_model("L-8"), n_experts=16, topk=2)
    program, _ = planned("megatron-ag", cluster, tokens=8, model=model)
    verify(program)
    delays = {t.name: i for i, t in enumerate(program.templates)}
    assert {"dispatch.nccl", "combine.nccl", "maps and probabilities", "permute", "unpermute", "dispatch.stores", "combine.stores"} <= set(delays)
    start = program.durations[program.templates[delays["dispatch.nccl"]].duration].max() / 1e6
    software = Software(cluster)
    ring_us, _, _ = (value / 1e6 for value in software.rail_rings(128 * model.row_bytes))
    assert start == pytest.approx(max(0.0, ring_us - 14 * 2 * program.hardware.lat / 1e6 - 2 * program.nets[0].lat / 1e6), abs=1e-5)
    large, moved, part = software.rail_rings(1 << 32)
    assert part == 1.0  # Simple
    assert moved / 1e6 == pytest.approx((1 << 32) / 8 * 15 / 16 / 47e3)
    assert large / 1e6 > 8.4 + 14 * 3.4 + 14


@pytest.mark.parametrize("block", ["integer", "gated"])
def test_tensors_of_the_real_rings(block):
    machine = Machine(system="megatron-ag", gpus=8, cluster=domains(4, 2, base="hw-dgx-h100"), path="row", order="random", seed=2)
    assert run_emulation(machine, block, Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds


def test_advice_over_domains_leaves_rings_to_their_name():
    for cluster, ranked in (("hw-dgx-h100", True), ("hw-dgx-h100-x2", False)):
        request = SimpleNamespace(model=load_model("deepseek-v2-lite"), cluster=load_cluster(cluster), direction="fwd")
        assert ("megatron-ag" in candidates(None, request, None)[0]) == ranked
