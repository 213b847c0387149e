"""Replicas whose weights move: what waits for the plan and for weights, bytes on links; every rule is noticed when it is changed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from layers import cluster

from dysharp.base.errors import DysharpError
from dysharp.base.units import PS_PER_US
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify
from dysharp.specs import Model
from dysharp.systems import dysharp, get_system
from dysharp.systems.building import LayerBuilder, moved
from dysharp.testing.conformance import conformance
from dysharp.workload import Routing, make_routing, rows_per_slot

SOURCE = Path(moved.__file__).read_text()
MODEL = Model("wide", 256, 512, 16, 2, 48, 2, 2, "fp8")
WAYS = ("", "prefetch=before", "weights=relay", "prefetch=before,weights=relay")


def routed(options: str = "", seed: int = 5) -> Routing:
    """One hot expert, so that several GPUs take replicas of it."""
    return make_routing("hot-experts:K=1:share=0.45", MODEL, 8, 48, seed=seed, placement=f"exact:{options}" if options else "exact")


def planned(module: ModuleType, routing: Routing, direction: str) -> tuple[Program, Trace]:
    layer = LayerBuilder(MODEL, cluster(8), routing, direction)
    dysharp.plan_fused(layer, dysharp.FusedOptions())
    module.with_moved_weights(layer)
    program = layer.build("one_copy_per_gpu")
    verify(program)
    return program, run_burst(program)[0]


def ops(program: Program, name: str) -> np.ndarray:
    return np.flatnonzero(np.isin(program.ops.template, [i for i, t in enumerate(program.templates) if t.name.startswith(name)]))


def faults(module: ModuleType, options: str, direction: str) -> list[str]:  # noqa: PLR0912, PLR0915 - one list of what is wrong
    """What is wrong with a pass."""
    routing = routed(options)
    (program, trace), found, p = planned(module, routing, direction), [], routing.placement
    assert p.moved is not None
    per, held = p.slots_per_gpu, p.slot_expert
    slots = [s for s in range(p.n_slots) if s % per >= per - p.moved.slots and held[s] >= 0]
    expert, here = held[slots], np.array(slots) // per
    home = expert // 2
    assert max(np.bincount(expert)) > 2
    node, to = program.ops.node, program.members.node[(m := np.minimum(program.members.ptr[:-1], len(program.members.node) - 1))]
    seen = trace.member[m]  # when the first copy of each op is visible
    puts = np.concatenate([ops(program, f"weights.{hop}.put") for hop in range(8)])
    rows, first = ops(program, "dispatch.put"), ops(program, "gemm1" if direction == "fwd" else "gemm2_dgrad")
    plan_ps = 115 * PS_PER_US if direction == "fwd" else 0
    if (trace.issue[rows].min() < plan_ps) or trace.issue[puts].min() < plan_ps:
        found.append("before the plan")
    sent = np.bincount(node[puts], weights=program.ops.bytes[puts], minlength=8)
    relays, prefetch = "relay" in options, "before" in options
    once = MODEL.expert_weights
    wanted = np.zeros(8)
    for one in np.unique(expert).tolist():
        at = here[expert == one]
        if relays:
            wanted[[home[expert == one][0], *at[:-1]]] += once
        else:
            wanted[home[expert == one][0]] += once * len(at)
    if np.abs(sent - wanted).max() > 64 * len(slots):
        found.append("other bytes")
    region = np.searchsorted(program.regions.tile_ptr, program.ops.key[first], side="right") - 1
    for slot, gpu in zip(slots, here.tolist(), strict=True):
        came = puts[to[puts] == gpu]
        tiles = first[region == slot]
        if len(tiles) and trace.issue[tiles].min() < seen[came].max(initial=0):
            found.append("without weights")
        if prefetch and trace.issue[rows[node[rows] == gpu]].min() < seen[came].max(initial=0):
            found.append("Dispatch before weights")
        if not prefetch and trace.issue[rows[node[rows] == gpu]].min() >= seen[came].max():
            found.append("Dispatch behind weights")
    if relays:
        for op in puts[~np.isin(node[puts], home)]:
            got = puts[to[puts] == node[op]]
            if trace.issue[op] < seen[got].min():
                found.append("relayed before it came")
    back = ops(program, "weights.gradients")
    if direction == "bwd":
        total = moved_bytes(program)["up"]["other"] - sent.sum()
        if abs(total - 4 * once * len(slots)) > 1024:
            found.append("other gradients")
        wgrads = np.concatenate([ops(program, "gemm1_wgrad"), ops(program, "gemm2_wgrad")])
        slot_of = np.searchsorted(program.regions.tile_ptr, program.ops.key[wgrads], side="right") - 1
        for gpu in np.unique(here).tolist():
            mine = wgrads[np.isin(slot_of, [s for s in slots if s // per == gpu])]
            if len(mine) and trace.issue[back[node[back] == gpu]].min(initial=1 << 60) < trace.done[mine].max():
                found.append("gradients before they are there")
        if set(zip(node[back].tolist(), to[back].tolist(), strict=True)) != set(zip(here.tolist(), home.tolist(), strict=True)):
            found.append("gradients to another home")
    elif len(back):
        found.append("gradients forward")
    return found


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("options", WAYS)
def test_what_moves_and_what_waits(options: str, direction: str) -> None:
    assert faults(moved, options, direction) == []


def test_hidden_weights_and_a_free_plan_cost_nothing() -> None:
    """The Program is that of the same placement with resident weights."""
    routing = routed("plan=0,prefetch=hidden")
    program, trace = planned(moved, routing, "fwd")
    assert "other" not in moved_bytes(program)["up"]
    late, _ = planned(moved, routed("plan=50,prefetch=hidden"), "fwd"), None
    assert abs(late[1].time_ps - trace.time_ps - 50 * PS_PER_US) < PS_PER_US
    np.testing.assert_array_equal(rows_per_slot(routing).reshape(8, -1).sum(axis=1), [96] * 8)


@pytest.mark.parametrize("system", ["fastermoe", "nvls", "moe-hub"])
def test_systems_with_slots_in_parts_or_without_a_dispatch_of_rows(system: str) -> None:
    """FasterMoE computes an expert by step, with its weights once; NVLS sends every token everywhere, so its rows do not wait for the plan."""
    one = get_system(system)
    plain, weights = (one.plan(MODEL, cluster(8), routed(way), "fwd", one.options()) for way in ("prefetch=hidden", ""))
    moves = moved_bytes(weights)["up"]["other"] - moved_bytes(plain)["up"].get("other", 0)
    p = routed().placement
    assert abs(moves - MODEL.expert_weights * (int((p.slot_expert >= 0).sum()) - 16)) < 1024
    assert run_burst(weights)[0].time_ps >= run_burst(plain)[0].time_ps


BOTH = "prefetch=before,weights=relay"
MUTANTS = {
    "no plan": ("us_to_ps(p.moved.plan_us)", "us_to_ps(0)", "", "fwd"),
    "Dispatch does not wait": ("layer.wait_each(batch.op,", "layer.wait_each(batch.op[:0],", "", "fwd"),
    "weights do not wait": ("layer.wait_first(Batch(op=op, node=node), after)", "pass", "", "fwd"),
    "tiles do not wait": ("layer.wait_each(ops[after >= 0], after[after >= 0])", "pass", "", "fwd"),
    "wrong width": ("layer.expert_bytes", "2 * layer.expert_bytes", "", "fwd"),
    "before is beside": ('== "before"', '== "never"', BOTH, "fwd"),
    "beside is before": ('== "before"', '!= "never"', "", "bwd"),
    "no relay": ("if relay else", "if relay and False else", "weights=relay", "fwd"),
    "always by relay": ("if relay else", "if True else", "", "fwd"),
    "relay from the home": ("here[last][before] if hop else home[mine]", "home[mine]", "weights=relay", "fwd"),
    "relay before it came": ("layer.wait_tiles(op, tile[before].ravel())", "pass", "weights=relay", "fwd"),
    "half of the weights": ("landed, Head.OP_ISSUE, np.repeat(joins[mine], tile.shape[1])", "tile[:, 0], Head.OP_ISSUE, joins[mine]", "", "fwd"),
    "gradients at once": ("layer.wait_each(end[layer.tile_gpu[tiles[mine]]], ops[mine])", "pass", "", "bwd"),
    "gradients in FP8": ("* ACCUMULATOR_BYTES", "* 1", "", "bwd"),
    "gradients to the wrong side": ('"weights.gradients", here, home', '"weights.gradients", home, here', "", "bwd"),
    "gradients of a forward pass": ('layer.direction == "bwd" and', "True and", "", "fwd"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_rule_is_noticed(name: str) -> None:
    old, new, options, direction = MUTANTS[name]
    assert SOURCE.count(old) == 1, name
    mutant = ModuleType("mutant")
    exec(SOURCE.replace(old, new), vars(mutant))
    with suppress(DysharpError):  # the verifier or the engine notices
        assert faults(mutant, options, direction)


@pytest.mark.sampled
@pytest.mark.parametrize("placement", ["exact", "exact:prefetch=before,weights=relay", "eplb:choose=switch"])
def test_tensors_and_traces_of_engine_and_oracle(placement: str) -> None:
    """Emulated tensors equal the dense layer, with faults, and both interpreters agree."""
    model = Model("tiny", 256, 128, 16, 2, 24, 2, 2, "fp8")
    routing = make_routing("lognormal:1", model, 4, 24, seed=1, placement=placement)
    for system in ("deepep", "dysharp"):
        rules = (
            "integers_equal_the_dense_layer", "packets_equal_rows", "engine_equals_oracle", "backward_waits_as_forward",
            "payload_by_gpu", "nothing_waits_for_weight_gradients",
        )  # fmt: skip
        report = conformance(system, model=model, cluster=cluster(4), routing=routing, rules=rules)
        assert report, str(report)
