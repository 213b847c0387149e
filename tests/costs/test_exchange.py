"""One exchange of a layer: the verbs agree to the microsecond, copies are those of drawn routings, and nothing beats its bytes."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations
from math import comb

import pytest

from dysharp.costs.collectives import flight_us
from dysharp.costs.exchange import BOUNDS, HUB, IN_SWITCH, Peers, Rows, exchange, least_us
from dysharp.costs.machine import machine_of
from dysharp.model import Layout
from dysharp.model.formats import formats_of
from dysharp.planning.layers import _PlannedBlock
from dysharp.serving import exchange as served
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica
from dysharp.specs import load_cluster, load_model, load_whole
from dysharp.specs.model import Model
from dysharp.training import moe_block
from dysharp.training.recipe import TrainingRecipe
from dysharp.workload import distinct_gpus, expected_copies, make_routing

CLUSTERS = ("hw-dgx-h200", "hw-dgx-b200", "hw-gb200-nvl72", "hw-dgx-h200-x4", "hw-dgx-h100-x8")
MODELS = ("deepseek-v3", "qwen3-30b", "pangu-ultra-moe", "deepseek-v2-lite", "kimi-k2")
SYSTEMS = ("deepep", IN_SWITCH, HUB)
Cell = tuple[str, str, int, int, str]


def cells(n: int) -> list[Cell]:
    """(cluster, model, GPUs, tokens of a GPU, system), drawn."""
    draw, found = random.Random("one exchange"), list[Cell]()
    while len(found) < n:
        cell = (draw.choice(CLUSTERS), draw.choice(MODELS), draw.choice((2, 4, 8, 16, 32, 64)), 64 * draw.randint(17, 200), draw.choice(SYSTEMS))
        cluster, layer = load_cluster(cell[0]), load_whole(cell[1]).layer
        assert layer is not None
        domain = machine_of(cluster, "serving").domain
        inside = cell[2] <= domain
        if layer.n_experts % cell[2] == 0 and (inside or cluster.scale_out is not None) and cell not in found:
            found.append(cell)
    return found


def in_serve(cell: Cell) -> float:
    """Dispatch and Combine of serving. Rows are BF16."""
    cluster, model, gpus, tokens, system = cell
    name = {IN_SWITCH: served.IN_SWITCH}.get(system, system)
    layout = ServeLayout(dp=gpus, ep=gpus)
    own = Replica(load_whole(model), formats_of("bf16"), layout, machine_of(load_cluster(cluster), "serving"), name)
    if system in BOUNDS:
        return served.least_us(own, tokens, 0.0)
    found = served.exchange(own, tokens)
    return found.dispatch + found.combine


def in_step(cell: Cell) -> float:
    """The same of a training step; there are no bounds."""
    cluster, model, gpus, tokens, _ = cell
    layer = load_whole(model).layer
    assert layer is not None
    found = moe_block.exchange(
        machine_of(load_cluster(cluster), "training"), Layout(ep=gpus, dp=gpus), layer, tokens, TrainingRecipe(dispatcher="deepep")
    )
    return found.dispatch + found.combine


def in_plan(cell: Cell) -> float:
    """A forward pass of a plan's piece, without its wait for the last rank; experts hide nothing of a bound: the time on the wire."""
    cluster, model, gpus, tokens, system = cell
    machine = machine_of(load_cluster(cluster), "training")
    block = _PlannedBlock(load_whole(model), machine, Layout(ep=gpus, dp=gpus), tokens, TrainingRecipe(dispatcher="deepep"), system)
    wire = block.experts(None)["exchange"].forward_wire
    return wire - (0.0 if system in BOUNDS else machine.wait)


@pytest.mark.parametrize("cell", cells(40), ids=lambda cell: " ".join(map(str, cell)))
def test_serve_step_and_plan_agree(cell: Cell) -> None:
    machine, asked = machine_of(load_cluster(cell[0]), "serving"), [in_plan] + [in_step] * (cell[4] not in BOUNDS)
    calls, domains = 0.0, -(-cell[2] // machine.domain)
    if domains > 1 and cell[4] == "deepep":  # in a training step they are a part of its waits
        c = machine.constants
        notify = 2 * c["internode.barrier_us"] * math.ceil(math.log2(domains)) + c["internode.notify_us"]
        calls = 2 * notify + c["internode.dispatch_us"] + c["internode.combine_us"]
    assert [ask(cell) + calls for ask in asked] == pytest.approx([in_serve(cell)] * len(asked), rel=1e-9)


@pytest.mark.parametrize("tokens", [4, 64])
def test_few_tokens_between_nodes_take_longer_than_inside_one(tokens: int) -> None:
    """25 us where a node takes 81: the normal kernels had no fixed time between nodes. Their Program has 131 us of it."""
    cells_of = [(name, "deepseek-v3", 16, tokens, "deepep-normal") for name in ("hw-dgx-h200-x2", "hw-gb200-nvl72")]
    apart, inside = map(in_serve, cells_of)
    assert apart > 131 > inside


def test_deepep_of_deepseek_on_h200() -> None:
    """1043 us in serve and 746 us in step, before groups of experts counted everywhere and as they are drawn."""
    cell = ("hw-dgx-h200", "deepseek-v3", 8, 4096, "deepep")
    assert in_serve(cell) == pytest.approx(in_step(cell))
    switch, hub = (in_plan((*cell[:4], system)) for system in (IN_SWITCH, HUB))
    assert switch / hub == pytest.approx(0.64, abs=0.01)
    assert [in_serve((*cell[:4], system)) for system in (IN_SWITCH, HUB)] == pytest.approx([switch, hub])


# ---- copies


@pytest.mark.parametrize(("experts", "topk"), [(8, 1), (8, 3), (7, 3), (9, 4)])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8, 12])
def test_copies_are_those_of_all_choices(experts: int, topk: int, parts: int) -> None:
    """Counted over every set of experts, where parts hold unequally many, or none."""
    own = {expert: part for part in range(parts) for expert in range(part * experts // parts, (part + 1) * experts // parts)}
    counted = sum(len({own[expert] for expert in chosen}) for chosen in combinations(range(experts), topk)) / comb(experts, topk)
    assert expected_copies(parts, experts, topk) == pytest.approx(counted)


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b"])
@pytest.mark.parametrize("parts", [2, 4, 8, 16, 32])
def test_copies_are_those_of_drawn_routings(name: str, parts: int) -> None:
    model = load_model(name)
    limited = model.topk_group < model.n_group
    routing = make_routing("uniform:group-limited" if limited else "uniform", model, parts, (1 << 14) // parts, seed=7)
    assert Peers(parts).copies(model, parts) == pytest.approx(distinct_gpus(routing).with_source, rel=0.01)


def test_spare_slots_leave_groups_to_domains() -> None:
    """EPLB places a copy on any GPU of its domain."""
    model, peers = load_model("deepseek-v3"), Peers(32, slots=32)
    assert peers.copies(model, 32) == pytest.approx(expected_copies(32, 288, 8))
    assert peers.copies(model, 4) == expected_copies(4, 256, 8, 8, 4)


# ---- floors


def floor_us(cell: Cell, layer: Model, row: float) -> float:
    """Bytes of one way on the faster of what can carry them, at the datasheet's rate."""
    machine, gpus = machine_of(load_cluster(cell[0]), "serving"), cell[2]
    domains = -(-gpus // machine.domain)
    copies = expected_copies(gpus, layer.n_experts, layer.topk, layer.n_group, layer.topk_group) * (gpus - 1) / gpus
    near = cell[3] * copies * row / machine.cluster.link_bytes_per_us
    far = (
        cell[3] * expected_copies(domains, layer.n_experts, layer.topk, layer.n_group, layer.topk_group) * (domains - 1) / domains * row / machine.nic
    )
    return max(near, far) if domains == 1 else far


@pytest.mark.parametrize("cell", cells(40)[::3], ids=lambda cell: " ".join(map(str, cell)))
@pytest.mark.parametrize("system", ["deepep", "trtllm-a2a", "alltoall", "hybrid-ep", "flat", "dedup"])
def test_nothing_beats_its_bytes(cell: Cell, system: str) -> None:
    layer = load_whole(cell[1]).layer
    assert layer is not None
    row = 2.0 * layer.hidden
    found = exchange(machine_of(load_cluster(cell[0]), "serving"), layer, Peers(cell[2]), Rows(cell[3], row, row), system)
    assert min(found.dispatch, found.combine) >= floor_us(cell, layer, row)


def test_bounds_are_in_order_and_below_kernels() -> None:
    machine, layer = machine_of(load_cluster("hw-dgx-h200"), "serving"), load_whole("deepseek-v3").layer
    assert layer is not None
    rows = Rows(4096.0, 14336.0, 14336.0)
    free, switch, hub = (least_us(machine, layer, Peers(8), rows, system, 0.0) for system in BOUNDS)
    real = exchange(machine, layer, Peers(8), rows, "deepep")
    assert 0 == free < switch < hub < real.dispatch + real.combine
    late = replace(rows, busiest=1.5)
    assert least_us(machine, layer, Peers(8), late, HUB, 0.0) > hub
    assert {least_us(machine, layer, Peers(8), rows, system, 1e6) for system in (IN_SWITCH, HUB)} == {2 * flight_us(machine.gpu)}


def test_low_latency_kernels_run_where_a_caller_allows_them() -> None:
    machine, layer = machine_of(load_cluster("hw-dgx-h200"), "serving"), load_whole("deepseek-v3").layer
    assert layer is not None
    few, many = (exchange(machine, layer, Peers(8), Rows(tokens, 7392.0, 14336.0), "deepep", low_latency=1024) for tokens in (1024, 1025))
    assert (few.system, few.kernels, many.system, many.kernels) == ("deepep-ll", 4, "deepep", 6)
    assert exchange(machine, layer, Peers(8), Rows(8, 7392.0, 14336.0), "deepep").system == "deepep"
