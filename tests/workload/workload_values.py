"""Cases of `STORED`: routings of every distribution and pattern, placements, traffic, reports, collectives, refusals."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.specs import Model
from dysharp.workload import collective, levels, lint, placement, popularity, sublayer, traces
from dysharp.workload.closed import expected_copies, uniform_traffic
from dysharp.workload.counts import load_counts
from dysharp.workload.deal import deal
from dysharp.workload.describe import describe, describe_nodes
from dysharp.workload.importers.pieces import _draw_exact, scaled
from dysharp.workload.make import make_routing, routing_from
from dysharp.workload.pairs import pairs
from dysharp.workload.routing import Routing, distinct_gpus, first_tokens, imbalance, in_parts, rows_per_slot
from dysharp.workload.sampling import draw_group_limited, draw_uniform, draw_weighted
from dysharp.workload.spec import parse_routing, routing_forms
from dysharp.workload.traffic import SCHEMES, traffic
from tests.stored_values import Cases, Row, Table, digest

STORED = Table(__file__, close=2e-6, zero=1e-9, whole=True)
MODEL = Model("drawn", 96, 160, 24, 5, 40, 3, 2, "bf16", n_group=4, topk_group=2, n_layers=3)
SPECS = (
    "uniform", "normal:0.032", "normal-literal:0.01", "normal-cv:0.7", "powerlaw:0.8", "lognormal:0.65", "uniform:group-limited",
    "lognormal:1.1:group-limited", "spread", "hot-experts:K=3:share=0.4", "hot-rank:share=0.3", "hot-rank:share=0.45:rank=2",
    "rotating:K=2:share=0.3:block=9", "rotating:K=3:share=0.2", "burst:0.3", "burst:1", "ragged:0.25", "ragged:1", "zero-tokens:2", "zero-tokens",
    "loads:gpt-oss-20b:layer=3", "loads:deepseek-v2-lite-law",
)  # fmt: skip


def refused(call: Callable[[], Any]) -> str:
    """The text with which a call is refused."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "nothing"


def of_routing(routing: Routing) -> Iterator[Row]:
    """All that a Routing says of itself."""
    yield "choices", (digest(routing.expert), digest(routing.slot), int(routing.expert.max()), routing.placement.note)
    yield "words", (routing.description, routing.synthetic, routing.layer, *routing.notes)
    load, gpus = imbalance(routing), distinct_gpus(routing)
    yield "load", (*astuple(load), *astuple(gpus))
    made = pairs(routing)
    yield "pairs", (digest(one) for one in (made.token_ptr, made.gpu, made.slot_ptr, made.slot, made.token))


def drawn(spec: str) -> Iterator[Row]:
    """A routing string on GPUs that divide the experts, and on GPUs that do not."""
    for gpus, tokens, seed, layer in ((6, 40, 0, None), (4, 23, 7, 3)):
        for name, values in of_routing(make_routing(spec, MODEL, gpus, tokens, seed=seed, layer=layer)):
            yield f"{name}, {gpus}", values
    if not spec.startswith("hot-rank"):
        yield "on 5 GPUs", (digest(make_routing(spec, replace(MODEL, topk=3), 5, 11, seed=2).slot),)


def placed(kind: str) -> Iterator[Row]:
    """Rows on links under a placement, by scheme, in one domain and in several."""
    routing = make_routing("lognormal:0.9", MODEL, 6, 40, seed=5, placement=kind)
    yield "slots", (*routing.placement.slot_expert.tolist(), routing.placement.note, routing.placement.kind, routing.placement.slots_per_gpu)
    yield "rows", rows_per_slot(routing).tolist()
    yield from of_routing(first_tokens(routing, 17))
    for scheme in SCHEMES:
        moved = traffic(routing, scheme, 192)
        yield scheme, (x for way in (moved["dispatch"], moved["combine"]) for x in (way["up"], way["down"], *way["up_per_gpu"], *way["down_per_gpu"]))
    for scheme, n in itertools.product(levels.LEVELS, (2, 3, 1, 6)):
        if scheme != "ring" or n != 2:
            rows = levels.LEVELS[scheme](routing, n)
            yield f"{scheme}, domains of {n}", (int(x) for level in rows for side in level for x in side)
            yield f"{scheme}, rails of {n}", (int(x) for side in levels.between_rails(routing, n, scheme) for x in side)
    rng = np.random.default_rng(3)
    split = in_parts(routing, rng.integers(0, 3, routing.slot.shape), 3)
    yield "parts", (digest(split.slot), digest(split.placement.slot_expert))


def shadows() -> Iterator[Row]:
    """FasterMoE's copies of hot experts; loads of replicas."""
    routing = make_routing("powerlaw:1.2", MODEL, 6, 40, seed=4)
    rows = np.bincount(routing.expert.ravel(), minlength=24)
    for cost in (0.0, 3.0, 20.0, 60.0, 1e4):
        chosen = placement.worth_shadows(rows, cost)
        yield f"worth {cost}", (str(chosen.tolist()),)
    with_copies = placement.with_shadows(routing, placement.worth_shadows(rows, 3.0)[:4])
    yield "with", (digest(with_copies.slot), digest(with_copies.placement.slot_expert), with_copies.placement.note, with_copies.placement.shadows)
    for args in ({}, {"n_slots": 24}, {"n_slots": 36}, {"n_slots": 36, "n_nodes": 2, "n_groups": 4}, {"n_nodes": 3, "n_groups": 6}):
        held = placement.eplb(rows, 6, **args)
        yield f"eplb {args}", (*held.slot_expert.tolist(), *(int(1e3 * x) for x in placement.replica_loads(rows, held)), held.note)
    for n, size in ((4, 3), (3, 3), (5, 4), (6, 2), (1, 4), (3, 1), (7, 3)):
        yield f"rings {n} x {size}", (digest(levels.rail_rings(n * size, size)),)
    yield "expected", (expected_copies(n, 24, k) for n, k in ((2, 5), (4, 3), (8, 1)))
    for experts, gpus, k in ((24, 6, 5), (64, 8, 6), (16, 2, 1)):
        yield f"uniform {experts}", astuple(uniform_traffic(experts, gpus, k))


def popular() -> Iterator[Row]:
    """Weights, chances to be chosen, weights that fit counts, samplers."""
    rng = np.random.default_rng(11)
    for name, weight in {
        "normal": popularity.normal_weights(rng, 9, 0.8), "power": popularity.power_law_weights(rng, 9, 1.3),
        "log": popularity.log_normal_weights(rng, 9, 0.7),
    }.items():  # fmt: skip
        yield name, weight
        yield f"{name}, chances", popularity._inclusion(weight, 3)
    for topk, count in ((2, [5, 0, 9, 40, 3, 3]), (3, [11, 12, 13, 14, 15, 16]), (2, [100, 90, 3, 2, 1, 0]), (1, [7, 5, 3, 1, 1, 1])):
        fitted, capped = popularity.fit_weights(np.array(count), topk)
        yield f"fit {topk} {count[0]}", (*fitted, capped)
    yield "spread", popularity.spread_counts(rng, np.array([3, 8, 1, 20]), 7).tolist()
    steep = np.array([50.0, 20.0, 9.0, 4.0, 1.0, 1.0, 0.5, 0.0])
    for topk in (1, 2, 6):
        yield f"weighted {topk}", (digest(draw_weighted(np.random.default_rng(topk), 300, steep, topk)),)
        yield f"uniform {topk}", (digest(draw_uniform(np.random.default_rng(topk), 300, 11, topk)),)
        yield f"grouped {topk}", (digest(draw_group_limited(np.random.default_rng(topk), 300, np.linspace(1, 3, 12), topk, 4, 3)),)
    flat = np.r_[np.full(60, 1.0), 4.0, 0.0]
    yield "many", (digest(draw_weighted(np.random.default_rng(1), 400, flat, 4)), digest(draw_uniform(np.random.default_rng(1), 400, 200, 3)))
    with tempfile.TemporaryDirectory() as folder:
        even = draw_uniform(np.random.default_rng(8), 480, 12, 3).astype(np.int16)[None]
        path = str(traces.save_trace(traces.Recording("even", even, (0,), None, 12), Path(folder) / "even.npz"))
        yield "even", (x for gpus in (4, 480) for one in lint.lint(path, gpus).findings for x in astuple(one))
    yield "exact", (digest(_draw_exact(np.random.default_rng(5), np.array([9, 4, 7, 1, 0, 6]), 3, 9)),)
    yield "scaled", (x for load in ([1.0, 2.0, 4.0], [5.0, 5.0, 5.0, 1.0]) for x in scaled(np.array(load), 31).tolist())


def recording(lengths: list[int] | None, dropped: int = 0, n_experts: int = 12) -> traces.Recording:
    """A recording of 37 tokens in three layers, of which the last is skewed and some tokens are incomplete."""
    rng = np.random.default_rng(17)
    weight = np.linspace(0.2, 3.0, n_experts)
    expert = np.stack([draw_weighted(rng, 37, weight**power, 3) for power in (0.1, 1.0, 2.5)]).astype(np.int16)
    expert[1:, :dropped, 1] = -1
    expert[:, 20:24] = expert[:, 19:20]
    return traces.Recording("made", expert, (1, 4, 5), None if lengths is None else np.array(lengths), n_experts)


def dealt() -> Iterator[Row]:
    """Tokens of a recording on GPUs, by window; reports on the recording."""
    for name, lengths, dropped in (("sequences", [5, 9, 3, 14, 6], 4), ("one", [37], 0), ("none", None, 2)):
        made = recording(lengths, dropped)
        for window, gpus, tokens in itertools.product(("in-order", "decode", "mixed"), (1, 4), (6, 13)):
            ids, notes = deal(made, 1, gpus, tokens, window, np.random.default_rng(gpus))
            yield f"{name}, {window}, {gpus} x {tokens}", (digest(ids), *notes)
        with tempfile.TemporaryDirectory() as folder:
            path = str(traces.save_trace(made, Path(folder) / "made.npz"))
            read = traces.load_trace(path)
            yield f"{name}, file", (digest(read.expert), str(read.layers), read.n_experts, read.topk, str(read.seq_len), read.origin)
            median = traces.median_layer(read, placement.auto(12, 4))
            yield f"{name}, median", (median, *traces.layer_counts(read, median).tolist())
            for gpus in (4, 5):
                report = lint.lint(path, gpus, tokens=8 if gpus == 5 else None)
                for layer in report.layers:
                    yield f"{name}, lint {gpus}, layer {layer.layer}", plain(asdict(layer))
                for finding in report.findings:
                    yield f"{name}, lint {gpus}, {finding.name}", (finding.level, finding.text, finding.advice)
                yield f"{name}, lint {gpus}", (report.n_repeated, str(report.sequences), *(astuple(report.reading) if report.reading else ()))
                for row in describe(path, (gpus,)):
                    yield f"{name}, described {gpus}, {row.layer}", plain(asdict(row))


def plain(values: Any) -> Iterator[Any]:
    """All numbers and words of nested values."""
    if isinstance(values, dict):
        for one in values.values():
            yield from plain(one)
    elif isinstance(values, list | tuple):
        for one in values:
            yield from plain(one)
    else:
        yield values


def counted() -> Iterator[Row]:
    """Counts of two models in a CSV file: routings, reports, what is refused."""
    lines = [f"{model},{layer},{e},{(e * 7 + layer * 3) % 11 * (e + 1)}" for model in ("a", "b") for layer in (2, 3, 7) for e in range(24)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.csv"
        path.write_text("\n".join(["model,layer,expert,count", *lines]))
        for spec in (f"counts:{path}:model=a", f"counts:{path}:layer=7:model=b", f"counts:{path}:model=b:group-limited"):
            made = make_routing(spec, MODEL, 6, 40, seed=3)
            yield spec.replace(str(path), "FILE"), (digest(made.expert), made.description, made.layer, *made.notes)
        table = load_counts(path, "b")
        yield "rows", (table.row(layer, placement.auto(24, n)) for layer in (None, 3) for n in (3, 5))
        for source in (str(path), f"counts:{path}:layer=3:model=b"):
            yield source.replace(str(path), "FILE"), (x for row in describe(source, (6, 5)) for x in plain(asdict(row)))
        for layer in lint.lint(str(path), 6, model="a").layers:
            yield f"lint {layer.layer}", plain(asdict(layer))
        yield "findings", (x for one in lint.lint(str(path), 5, layer=7, model="a").findings for x in astuple(one))
        broken = {
            "columns": "model,layer,expert\n", "nothing": "model,layer,expert,count\n", "twice": "a,1,0,3\na,1,0,4\n",
            "missing": "a,1,0,3\na,1,2,4\n",
            "zero": "a,1,0,3\na,2,0,0\na,3,0,2\n", "fields": "a,1,0\n", "word": "a,1,x,3\n", "large": "a,70000,1,3\n",
        }  # fmt: skip
        for name, text in broken.items():
            path.write_text(text if text.startswith("model") else "model,layer,expert,count\n" + text)
            yield f"refused, {name}", (refused(lambda: load_counts(path)).replace(str(path), "FILE"),)
        held = Path(folder) / "held.json"
        lists = {
            "good": [[*range(12), 3], [*range(12, 24)]], "few": [[0]], "missing": [[*range(20)], [21, 22]], "range": [[*range(24)], [24]],
            "word": [["a"], [1]], "object": {"gpu": []}, "flat": [1, 2], "number": 3,
        }  # fmt: skip
        for name, value in lists.items():
            held.write_text(json.dumps(value))
            made_of = refused(lambda: placement.place(str(held), 24, 2, np.ones(24, int)))
            yield f"placement, {name}", (made_of.replace(str(held), "FILE"),)
        held.write_text(json.dumps(lists["good"]))
        yield "placement", (str(placement.place(str(held), 24, 2, np.ones(24, int)).slot_expert.tolist()),)


def nodes() -> Iterator[Row]:
    """Load of links and NICs by scheme."""
    for spec in ("uniform", "lognormal:0.8", "hot-rank:share=0.4"):
        for row in describe_nodes(spec, (4, 8), 2, model=MODEL, tokens_per_gpu=21, seed=6):
            yield f"{spec}, {row.n_gpus}, {row.scheme}", plain(asdict(row))


def collectives() -> Iterator[Row]:
    """Shares, least bytes, words, inputs and results of collectives and sub-layers."""
    texts = [f"{name}:{size}" for name in collective.OPERATIONS for size in ("6KiB", "1500B", "3MiB")]
    for text in (*texts, "all-gather-v:2KiB,1KiB,0,512", "all-to-all-v:6,8,10,300", "reduce-scatter-v:4,4,4,2"):
        one = collective.parse_collective(text, 4)
        least = (x for switch in (True, False) for x in one.least_bytes(in_switch=switch))
        small = one.shorter(600)
        yield text, (*one.shares, *least, one.description, one.is_even, *small.shares)
        inputs = small.inputs(3)
        for name, vectors in (("in", inputs), ("out", small.reference(inputs))):
            yield f"{text}, {name}", (digest(np.concatenate(vectors).astype(np.int64)), *(len(vector) for vector in vectors))
    yield "alone", (x for op in collective.OPERATIONS for x in collective.even(op, 600, 1, "fp32").least_bytes(in_switch=False))
    yield "sizes", (collective._size_text(n) for n in (1, 1023, 1024, 1536, 5 << 20, (1 << 30) + 1024, 3 << 30))
    for text in ("sub-layer:llama-7b:L1", "sub-layer:llama-7b*4:L2", "sub-layer:llama-7b:L3:fp32", "sub-layer:llama-7b:L4", "sub-layer:12x10x6x14"):
        layer = sublayer.parse_sub_layer(text, 4)
        least = (x for switch in (True, False) for x in layer.least_bytes(in_switch=switch))
        yield text, (layer.name, layer.tokens, layer.hidden, layer.inner, layer.outer, layer.size, *layer.flops, *least, layer.description)
    inputs_of = layer.inputs(9)
    yield "sub-layer, in", (digest(np.concatenate(one).astype(np.int64)) for one in inputs_of)
    yield "sub-layer, out", (digest(np.concatenate(layer.reference(*inputs_of)).astype(np.int64)),)


def words() -> Iterator[Row]:
    """How routings are written, and what is refused."""
    for one in routing_forms():
        yield one.form, (digest(one.summary + one.source),)
    for text in (
        *SPECS, "trace:a:b.npz:layer=3:window=mixed", "counts:x=1/y.csv:layer=2:model=m", "uniform:2", "normal", "normal:-1", "normal:1001",
        "normal:1000",
        "unifrom", "lognormal:1:layer=2", "hot-experts:K=2", "hot-experts:K=2.5:share=0.1", "hot-experts:K=2:share=1.01", "hot-experts:K=0:share=0.1",
        "burst", "burst:1.5", "burst:x", "zero-tokens:0", "spread:3", "trace", "trace:a:window=some", "trace:a:layer=x", "trace:a:layer=1:layer=2",
        "a.npy",
        "rotating:K=2:share=0.3:block=0", "ragged:0:group-limited",
    ):  # fmt: skip
        try:
            yield f"parsed {text}", (str(value) for value in astuple(parse_routing(text)))
        except ConfigError as error:
            yield f"parsed {text}", (str(error),)
    calls: dict[str, Callable[[], Any]] = {
        spec: partial(make_routing, spec, MODEL, 6, 40)
        for spec in (
            "hot-experts:K=24:share=0.5", "hot-experts:K=23:share=0.5", "hot-experts:K=3:share=0.7", "hot-rank:share=0.1:rank=6",
            "hot-rank:share=0.9",
            "zero-tokens:6", "powerlaw:60", "trace:gpt-oss-20b", "loads:nothing", "lognormal:40:group-limited",
        )
    }  # fmt: skip
    calls |= {
        "no group": lambda: make_routing("uniform:group-limited", replace(MODEL, n_group=1, topk_group=1), 6, 40),
        "rank": lambda: make_routing("hot-rank:share=0.3", MODEL, 5, 40),
        "gpus": lambda: make_routing("uniform", MODEL, 0, 40),
        "seed": lambda: make_routing("uniform", MODEL, 6, 40, seed=-1),
        "layers": lambda: make_routing("loads:gpt-oss-20b:layer=3", MODEL, 6, 40, layer=4),
        "rows": lambda: make_routing("uniform", MODEL, 1 << 15, 1 << 15),
        "contiguous": lambda: make_routing("uniform", MODEL, 5, 4, placement="contiguous"),
        "range": lambda: routing_from(np.array([[0, 24]]), 24, 1), "twice": lambda: routing_from(np.array([[0, 1], [3, 3]]), 24, 2),
        "shape": lambda: routing_from(np.zeros(3, int), 24, 1), "multiple": lambda: routing_from(np.array([[0, 1]]), 24, 2),
        "tokens": lambda: first_tokens(make_routing("uniform", MODEL, 6, 4), 5), "rings": lambda: levels.rail_rings(6, 2),
        "closed": lambda: uniform_traffic(24, 5, 2), "closed, one": lambda: uniform_traffic(24, 1, 2),
        "closed, top": lambda: uniform_traffic(24, 6, 25),
    }  # fmt: skip
    for option in (
        "eplb:slots=25",
        "eplb:slots=18",
        "eplb:nodes=4",
        "eplb:nodes=2,groups=3",
        "eplb:slot=30",
        "eplb:slots=x",
        "eplb:nodes=5,groups=5",
        "atuo",
    ):
        calls[option] = partial(make_routing, "uniform", MODEL, 6, 4, placement=option)
    for text in (
        "all-reduce:7B",
        "all-reduce",
        "all-gather:1,2",
        "all-gather-v:2,4",
        "broadcast-v:2,2,2,2",
        "al-gather:2",
        "all-reduce:0B",
        "all-to-all-v:3,1,2,2",
    ):
        calls[text] = partial(collective.parse_collective, text, 4)
    for text in (
        "sub-layer:llama-7b:L5",
        "sub-layer:lama-7b:L1",
        "sub-layer:llama-7b*3:L1",
        "sub-layer:1x2x3",
        "sub-layer:0x2x3x4",
        "sub-layer:1x2x3x4:fp8",
    ):
        calls[text] = partial(sublayer.parse_sub_layer, text, 4)
    for name, call in calls.items():
        yield f"refused {name}", (refused(call),)


PLACED = ("contiguous", "auto", "eplb", "eplb:slots=30", "eplb:slots=36,nodes=2,groups=4")
CASES: Cases = {
    **{spec: partial(drawn, spec) for spec in SPECS}, **{f"placement {kind}": partial(placed, kind) for kind in PLACED},
    **{one.__name__: one for one in (shadows, popular, dealt, counted, nodes, collectives, words)},
}  # fmt: skip
