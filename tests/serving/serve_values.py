"""Regression values of serving: layers, steps, memory, loops and searches of replicas that differ in everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.costs.machine import Machine, Reducers, machine_of
from dysharp.costs.regime import regime_of
from dysharp.model.batch import StepBatch, prompt_batch
from dysharp.model.cache import _operator_bytes
from dysharp.model.formats import FORMATS, PRECISIONS, formats_of
from dysharp.model.operators import operators
from dysharp.serving import answers, disaggregated, exchange, launch, whatif
from dysharp.serving.balance import busiest, levels_of, loads_of, rearranging, with_slots
from dysharp.serving.engine import GRAPH_BATCHES, engine_of
from dysharp.serving.layer import _expert_op, layer_ops, touched
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.loop import closed_loop
from dysharp.serving.memory import kv_bytes, memory_of, weight_bytes
from dysharp.serving.search import front, layouts_of, search, within
from dysharp.serving.step import StepTable, decode_batch, draft_us, hops, step_time
from dysharp.serving.two_batches import _alternated_us, _stages_of, overlapped_us
from dysharp.serving.work import Replica, Scenario, SubLayerCurve
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.gpu import list_gpus
from tests.stored_values import Cases, Table, checksum

STORED = Table(__file__, close=1e-8, zero=1e-8)
REPLICAS = {
    "cut": ("deepseek-v3", "hw-dgx-h200", "tp=8", "fp8", "bf16"),
    "shared": ("deepseek-v3", "hw-dgx-h200", "tp=2,dp=4,ep=8", "fp8", "fp8"),
    "gathered": ("qwen3-235b", "hw-dgx-b200", "tp=2,dp=4", "fp4-all", "fp8"),
    "rack": ("deepseek-v3", "hw-gb200-nvl72", "dp=12,ep=12,slots=8", "fp4", "fp8"),
    "nodes": ("deepseek-v3", "hw-dgx-h100-x8", "dp=32,ep=32,slots=32", "fp8", "bf16"),
    "sparse": ("glm-5", "hw-dgx-h200", "tp=4,dp=2,ep=8", "fp8", "bf16"),
    "windows": ("gpt-oss-120b", "hw-dgx-b200", "tp=2", "mxfp4", "bf16"),
    "linear": ("qwen3.5-397b", "hw-dgx-h200", "tp=4,ep=4", "fp8-tensor", "bf16"),
    "stages": ("llama3-70b", "hw-dgx-h100-x4", "tp=4,pp=6", "bf16", "bf16"),
    "experts in stages": ("minimax-m2.5", "hw-hgx-b300-x2", "tp=8,pp=2,ep=4", "int4", "bf16"),
}
BATCHES = {
    "decodes": StepBatch(decodes=7.0, context=1234.0),
    "drafts": StepBatch(decodes=96.0, context=5000.0, queries=3, usual=4700.0),
    "prompts": prompt_batch(3000.0, 1500.0),
    "long prompts": prompt_batch(8192.0, 4096.0, 20000.0),
    "both": StepBatch(decodes=33.0, context=2047.0, prompts=500.0, seen=250.0, mean=300.0, usual=2000.0),
}
ENGINES = ("vllm", "sglang", "trtllm")
SCENARIO = Scenario(48.0, 1700.0, 300.0, 1.7, 1)


def replica(name: str, **changes: Any) -> Replica:
    """A replica whose rates nobody shares."""
    model, cluster, layout, precision, kv = REPLICAS[name]
    own = Replica(load_whole(model), formats_of(precision, kv), serve_layout_of(layout), Machine(load_cluster(cluster), regime_of("serving")))
    return replace(own, **changes)


def told(make: Callable[[], Any]) -> Any:
    """What is made, or why not."""
    try:
        return make()
    except ConfigError as reason:
        return str(reason)


def sent(own: Replica, tokens: float, most: float) -> dict[str, Any]:
    """Dispatch, combine, their kernels and system."""
    found = exchange.exchange(own, tokens, most)
    return {name: getattr(found, name) for name in ("dispatch", "combine", "kernels", "system")}


# ---- one step


def kernels(r: Replica) -> Iterator[tuple[str, Any]]:
    """Layers and steps of each batch, and what they need in memory."""
    kinds = {(r.model.is_moe(n), r.model.windowed(n), r.model.is_linear(n)): n for n in range(r.model.n_layers)}
    for name, batch in BATCHES.items():
        for kind, number in kinds.items():
            yield f"{name} {''.join('ny'[one] for one in kind)}", layer_ops(r, batch, number)
        step = step_time(r, batch, 2.0)
        yield f"{name} step", (step, step.device)
    yield "draft", draft_us(r, BATCHES["drafts"], 1)
    each = [_operator_bytes(op, 1.0, r.formats.kv_bytes) for n in kinds.values() for op in operators(r.model, n, r.layout.cut)]
    yield "bytes", (weight_bytes(r), kv_bytes(r, 100.0), kv_bytes(r, 5000.0), [n for n in each if n])
    for engine in map(engine_of, ENGINES):
        found = [memory_of(r, engine.beside(r.layout.dp), *args) for args in ((2100.0,), (150.0, 2000.0, 300.0), (90000.0, 1e9, 1e9))]
        yield f"memory of {engine.name}", [(one, one.tokens, one.requests) for one in found]
    yield "transfer", [disaggregated.transfer_us(r, 1700.0, gpus) for gpus in (8, 72, 144)]
    if r.model.layer is not None:
        yield "experts", [_expert_op(r, tokens) for tokens in (1.0, 77.0, 5000.0)]
        yield "busiest", [busiest(r, tokens) for tokens in (0.5, 3.0, 400.0)]
        yield "even", _expert_op(replace(r, even=True), 77.0)
        skewed = tuple((1.0 + n % 7) / 100 for n in range(r.model.layer.n_experts))
        yield "skewed", (_expert_op(replace(r, loads=skewed), 77.0), busiest(replace(r, loads=skewed), 77.0), levels_of(skewed))
        rows = (1.0, 50.0, 1024.0, 1025.0)
        for system in ("", "deepep", "trtllm-a2a", "none"):
            own = replace(r, ep_system=system)
            yield f"EP system {system}", [told(partial(sent, own, n, most)) for n in rows for most in (1.0, 1.3)]
        for system in exchange.BOUNDS:
            own = replace(r, ep_system=system)
            yield f"bound {system}", (exchange.least_us(own, 300.0, 5.0), layer_ops(own, BATCHES["both"], r.model.n_layers - 1))
        if r.layout.dp > 1 and r.layout.ep > 1:
            yield "two batches", [overlapped_us(r, batch) for batch in BATCHES.values()]


# ---- loops


def loops(r: Replica) -> Iterator[tuple[str, Any]]:
    """Tables of steps, the formula and the run of each engine."""
    for engine in map(engine_of, ENGINES):
        scenario = (
            SCENARIO if engine.name == "vllm" else replace(SCENARIO, accepted=1.0, draft_tokens=0, isl=9000.0 if engine.name == "sglang" else 700.0)
        )
        steps = StepTable(r, engine, scenario)
        at = [(steps.decode_at(n), steps.extra_at(n)) for n in (1, 16, 256)]
        parts = (at, steps.tokens, steps.everywhere, steps.somewhere, steps.kernels, steps.stages)
        yield f"{engine.name} table", parts
        yield f"{engine.name} decode", [steps.decode_us(n) for n in (1.0, 17.0, 48.0, 500.0)]
        yield f"{engine.name} prompts", [steps.prompts_us(*n) for n in ((300.0, 300.0), (300.0, 90.0), (9000.0, 4000.0), (700.0, 350.0, 20.0))]
        yield f"{engine.name} prompt", [disaggregated._prompt_us(steps, scenario, n) for n in (1.0, 3.0, 40.0)]
        yield (
            f"{engine.name} formula",
            [closed_loop(steps, replace(scenario, concurrency=users), cap) for users, cap in ((3.0, 9e9), (48.0, 9e9), (200.0, 5.0))],
        )
        yield f"{engine.name} engine", [engine.padded(n) for n in (0.0, 3.0, 4.0, 8.5, 256.0, 257.0, 512.0, 513.0)]
        yield (
            f"{engine.name} host",
            [engine.step_us(r, 50.0, *n) for n in ((0.0,), (900.0,), (3.0, 400))] + [engine.first_us(r, 7e3), 1e3 * engine.token_us],
        )
        yield f"{engine.name} command", launch.start_of(engine, replace(r, formats=replace(r.formats, kv="fp8")), scenario)


def pools(first: str, second: str) -> Iterator[tuple[str, Any]]:
    """Disaggregated prefill and decode, by formula and prompt by prompt."""
    scenario, rules = replace(SCENARIO, concurrency=20.0), replace(engine_of("sglang"), mixed=False, gathered_steps=0)
    made = (
        disaggregated.WorkerPool(StepTable(replica(first), rules, scenario), 3),
        disaggregated.WorkerPool(StepTable(replica(second), rules, scenario), 2),
    )
    yield (
        "formula",
        [disaggregated._steady_pools(*made, replace(scenario, concurrency=users), cap) for users, cap in ((4.0, 9e9), (20.0, 9e9), (300.0, 11.0))],
    )
    yield "run", [disaggregated.run_pools(*made, scenario, ratio=ratio, rounds=rounds) for ratio, rounds in ((0.7, 3), (1.0, 2))]


# ---- searches


def asked(name: str, gpus: int, *layouts: str, tpot: float = 60e3, engine: str = "sglang", scenario: Scenario = SCENARIO) -> whatif.Asked:
    """A search over few layouts."""
    return whatif.Asked(replica(name), engine_of(engine), scenario, gpus, tuple(map(serve_layout_of, layouts)) or None, 4e6, tpot, 0.8)


def searches() -> Iterator[tuple[str, Any]]:
    """Points, the front, what is within limits, and what is said of the best."""
    layouts = ("tp=8,ep=8", "tp=2,dp=4,ep=8", "dp=8,ep=8", "tp=3", "tp=16", "tp=1")
    one = asked("cut", 8, *layouts)
    points, rejected = search(one.start, one.engine, one.scenario, one.gpus, one.layouts)
    yield "rejected", [(found.layout, found.reason) for found in rejected]
    yield "points", [(p.scenario, p.served, p.system, p.replicas, p.tokens_per_gpu, p.per_user) for p in points]
    yield "front", [answers.point_dict(point) for point in front(points)]
    for tpot in (20e3, 45e3, 90e3):
        yield f"within {tpot:g}", [(p.replica.layout, p.scenario.concurrency, p.step(), p.stage_batch) for p in within(points, 4e6, tpot)]
    best = within(points, 4e6, 60e3)[0]
    yield "answers", (answers.words_of(best), answers.limit_of(best), answers.part_shares(best), whatif._dead_gpu(one, best).tokens_per_gpu)
    for point in (next(p for p in points if p.replica.layout.dp > 1), points[0]):
        yield f"overlap {point.replica.layout.name}", (answers.overlap_of(point), [answers.break_even(point, n) for n in (1, 3)])
    skewed = loads_of(best.replica.model, "lognormal:0.7")
    yield "loads", skewed
    shared = next(p for p in points[::-1] if p.replica.layout.dp > 1)
    yield "slots", answers.slots_of(replace(shared, replica=replace(shared.replica, loads=skewed)))
    yield "rearranging", [rearranging(replace(shared.replica, loads=skewed), n) for n in (0, 2)] + [with_slots(shared.replica, 2).layout]


def machines(name: str, gpus: int, *layouts: str) -> Iterator[tuple[str, Any]]:
    """Other machines."""
    wide = asked(name, gpus, *layouts, engine="trtllm", tpot=200e3)
    best = wide.best()
    assert best is not None
    yield from ((one.name, one.tokens_per_gpu) for one in whatif.what_ifs(wide, best))


def pairs(name: str, *layouts: str) -> Iterator[tuple[str, Any]]:
    """Pools within limits."""
    for limits in ((2e6, 60e3), (2e6, 9e3), (1e5, 60e3)):
        tried = [serve_layout_of(one) for one in layouts]
        yield f"{limits}", disaggregated.best_disaggregated(replica(name), engine_of("vllm"), replace(SCENARIO, isl=1024.0), 24, *limits, tried)


def layouts_tried() -> Iterator[tuple[str, Any]]:
    """Layouts of a search without named ones."""
    for name, gpus in (("cut", 24), ("rack", 12), ("stages", 16), ("nodes", 16)):
        found = list(layouts_of(replica(name), gpus))
        yield name, [(one, one.name, one.gpus, one.moe_tp, one.conflicts(load_whole(REPLICAS[name][0]))) for one in found]


def small() -> Iterator[tuple[str, Any]]:
    """Functions of numbers and names alone."""
    yield (
        "formats",
        [
            (name, PRECISIONS[name], [PRECISIONS[name].of(p) for p in ("attention", "routed experts", "dense FFN", "head", "router")])
            for name in PRECISIONS
        ],
    )
    yield "compute", [[Machine(load_cluster(f"hw-dgx-h100,gpu={gpu}")).products(form.compute) for form in FORMATS.values()] for gpu in list_gpus()]
    yield "graphs", GRAPH_BATCHES
    yield "touched", [touched(8.0, 3, 12, tokens, loads) for tokens in (0.0, 1.0, 9.0) for loads in ((), (0.1, 0.2, 0.7))]
    yield "decode batch", [decode_batch(SCENARIO, n, groups) for n in (0.5, 1.0, 30.0) for groups in (1, 6)]
    machine, own = machine_of(load_cluster("hw-dgx-h200"), "serving"), Reducers(most=1e6, in_switch="torch multimem", most_in_switch=3e6)
    sizes = (64.0, 1e6, 1000001.0, 3e6, 3000001.0, 9e7)
    yield "reducing", [machine.reducing(n, size, form) for n in (2, 8) for size in sizes for form in (own, own._replace(nvls=False))]
    yield "all-reduce", [machine.all_reduce(n, size, own) for n in (1, 4) for size in sizes]
    yield (
        "rates",
        [
            replace(machine, regime=replace(machine.regime, long=long), _kept={}).gemm(700.0, 900.0, 1100.0, "fp8", weight_bytes=width)
            for long in (True, False)
            for width in (1.0, 900.0)
        ],
    )
    shared, cut, rules = replica("shared"), replica("cut"), engine_of("vllm")
    experts = machine.gemm(3.0, 90.0, 110.0, "fp8", 8.0, weight_bytes=1.0)
    yield "without options", (exchange.exchange(shared, 9.0), step_time(shared, BATCHES["prompts"]), experts)
    steps, scenario = StepTable(cut, rules, SCENARIO), replace(SCENARIO, concurrency=5.0)
    pair = disaggregated.WorkerPool(steps, 1), disaggregated.WorkerPool(steps, 2)
    yield (
        "loops without options",
        (
            disaggregated.run_pools(*pair, scenario),
            disaggregated._steady_pools(*pair, scenario),
            closed_loop(steps, scenario),
        ),
    )
    yield "polled", [replace(rules, polled_steps=float(n)).first_us(cut, 9e3) for n in (1, 10)]
    fewer = replace(shared, machine=Machine(load_cluster("hw-dgx-h200").with_gpus(4), regime_of("serving")))
    yield "domains", (fewer.machine.domain, list(layouts_of(fewer, 4)))
    yield "hops", [list(hops(replica(name), n)) for name in ("stages", "experts in stages", "cut") for n in (1.0, 700.0)]
    yield "engines", [(rules, rules.reducers, rules.beside(3)) for rules in map(engine_of, ENGINES)]
    yield "loads", [loads_of(load_whole(name), "uniform", 3)[:5] for name in ("deepseek-v3", "llama3-70b")]
    curve = SubLayerCurve((16, 64, 256), (5.0, 9.0, 30.0), (7.0, 11.0, 41.0))
    names = ("attention all-reduce", "FFN all-reduce", "embedding")
    yield "curve", [curve.us(name, n) for name in names for n in (15.0, 16.0, 40.0, 256.0, 500.0)]
    tensor = replica("cut", tensor=lambda n: curve)
    yield "sub-layers", [tensor.all_reduce(name, n) for name in names for n in (8.0, 80.0)]
    ops = [op for op in layer_ops(replica("shared"), BATCHES["decodes"], 40) if op.us]
    hot = [op._replace(us=1.2 * op.us) for op in ops]
    for prompts in (True, False):
        made = _stages_of(ops, 0.9, prompts=prompts, hot=hot, kernels=(1.0, 2.0, 3.0, 4.0))
        yield f"stages {prompts}", [made, [_alternated_us(made, layers, behind, gpus) for layers, behind, gpus in ((3, 0, 1), (2, 2, 4))]]


MAKERS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    **{f"kernels of {name}": (lambda name=name: kernels(replica(name))) for name in REPLICAS},  # type: ignore[misc]
    **{f"loops of {name}": (lambda name=name: loops(replica(name))) for name in ("shared", "stages", "windows")},  # type: ignore[misc]
    "pools": lambda: pools("shared", "cut"),
    "pools over nodes": lambda: pools("nodes", "stages"),
    "searches": searches,
    "machines": lambda: machines("nodes", 32, "dp=32,ep=32,slots=32", "tp=8,pp=2"),
    "racks": lambda: machines("rack", 12, "dp=12,ep=12,slots=8"),
    "pairs": lambda: pairs("cut", "tp=8", "tp=4,dp=2,ep=8", "tp=4"),
    "pairs of small": lambda: pairs("windows", "tp=1", "tp=2", "tp=4"),
    "layouts": layouts_tried,
    "small": small,
}


def numbers(part: str) -> dict[str, float]:
    """The checksums of a part."""
    with np.errstate(all="ignore"):
        return {name: checksum(value) for name, value in MAKERS[part]()}


CASES: Cases = {part: partial(numbers, part) for part in MAKERS}
