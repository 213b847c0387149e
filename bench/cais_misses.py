"""Every number of CAIS that misses its bound, and what one mechanism less, or an ideal one, makes of it.

    python bench/cais_misses.py [--csv FILE] [--rows FILE]

An ablation changes one thing in all systems that have it, and the numbers are judged anew over all points; the other reading counts as one. A miss
is named after the ablation that closes most of its gap: the log of ours over the published value, or over the bound where the paper has a sentence
alone. `--rows`: a JSON file that keeps finished points. Figures and arithmetic: docs/papers/cais.md.
"""

from __future__ import annotations

import argparse
import copy
import csv
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from dysharp.analysis.bound import pool_busy_ps
from dysharp.analysis.load import up_use
from dysharp.analysis.phases import utilization
from dysharp.engine.burst.run import run_burst
from dysharp.figures.figure import Figure, load_figure
from dysharp.figures.metrics import sub_layers
from dysharp.figures.verdict import GAP, judge
from dysharp.program import Discipline
from dysharp.runs.point import Point
from dysharp.specs import choices, load_cluster
from dysharp.specs.choices import Choice
from dysharp.systems.building.tp import sublayer
from dysharp.systems.building.tp.ways import Ways
from dysharp.systems.collectives import get_collective
from dysharp.systems.tp import cais, overlap
from dysharp.workload.sublayer import parse_sub_layer

FIGURES = ("cais-fig12-stated", "cais-fig12-fig2", "cais-fig11-stated", "cais-fig11-fig2", "cais-fig15", "cais-fig16", "cais-fig2")
RATIOS = FIGURES[:4]
CAIS = ("cais", "cais-partial", "cais-base")
RINGS = ("coconet", "fuselib", "t3")
IN_SWITCH = ("tp-nvls", "sp-nvls", "coconet-nvls", "fuselib-nvls", "t3-nvls")
ALL = (*CAIS, *RINGS, *IN_SWITCH, "ladm")
"""LADM comes last: it takes most of the time, and launches and jitter leave it as it is."""
READING = "reading"
ARITHMETIC = 4.2
"""Two rings over both GEMMs, as the paper's ratios and its use of links have it together."""
FOUND = {"bf16": 0.6922, "fp32": 1.780}
"""The same number here, by what moves (figure 2)."""


@dataclass(frozen=True)
class Ablation:
    """`systems` run anew; `choices`: free choices; `options`: of systems that have them; `cluster`: fields; `inside`: a context."""

    name: str
    text: str
    systems: tuple[str, ...] = ALL
    choices: dict[str, float] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    cluster: dict[str, int] = field(default_factory=dict)
    inside: Callable[[], object] = ExitStack
    rate: bool = False


@contextmanager
def apart() -> Iterator[None]:
    """The first GEMM's tiles count when all of a GPU have ended; the second GEMM begins when all of its rows are there."""
    first, second = Ways.gemm1, Ways.gemm2

    def gemm1(build: Ways, begun: np.ndarray, *, together: bool = False) -> np.ndarray:
        done = first(build, begun, together=together)
        every = build.all_of("whole", done.reshape(build.n, -1))
        return np.broadcast_to(every[:, None, None], done.shape)

    def gemm2(build: Ways, src: str = sublayer.GATHERED) -> np.ndarray:
        blocks = second(build, src)
        gate = build.joins("all there", build.gpus)
        build.wait(blocks, gate[:, None])
        return np.broadcast_to(gate[:, None], blocks.shape)

    with patch.object(Ways, "gemm1", gemm1), patch.object(Ways, "gemm2", gemm2):
        yield


@contextmanager
def halves() -> Iterator[None]:
    """The first GEMM has one half of the SMs, norms and the second GEMM have the other."""
    begin = sublayer.TpBuilder.__init__

    def init(build: Ways, *given: object) -> None:
        begin(build, *given)
        half = np.array([build.b.pool(g, build.slots - build.slots // 2, "half") for g in build.gpus.tolist()], np.int32)
        build._on_sms |= {name: build.issuers(name, Discipline.READY_FIFO, pools=half) for name in ("norm", "gemm2")}
        one = np.array([build.b.pool(g, build.slots // 2, "other half") for g in build.gpus.tolist()], np.int32)
        build._on_sms["gemm1"] = build.issuers("gemm1", Discipline.READY_FIFO, pools=one)

    with patch.object(sublayer.TpBuilder, "__init__", init):
        yield


@contextmanager
def barriers() -> Iterator[None]:
    """`cais` and `cais-partial` with CAIS-Base's barriers, each with its coordination and channels."""

    def fused(work: object, cluster: object, options: object, channels: tuple[str, ...]) -> object:
        with patch.object(cais, "SHARED", channels):
            return cais.base(work, cluster, options)

    with patch.object(cais, "_fused", fused):
        yield


@contextmanager
def any_value(values: dict[str, float]) -> Iterator[None]:
    """Free choices at values that may be outside their range, as an ideal mechanism is."""

    def unchecked(c: Choice, value: float) -> Choice:
        made = copy.copy(c)
        object.__setattr__(made, "value", value)
        return made

    with patch.object(choices, "_with_value", unchecked), choices.choices_overridden(values):
        yield


@contextmanager
def no_gradients() -> Iterator[None]:
    """A layer is its sub-layers alone."""

    def layer_us(here: object, layers: tuple[str, ...]) -> float | None:
        seen = sub_layers._seen_at(here, layers)
        return None if seen is None else sum(one.time_us for one in seen)

    with patch.object(sub_layers, "layer_us", layer_us):
        yield


def no_acks() -> object:
    """Stores and reads without acknowledgements."""
    return patch.object(sublayer, "STORE", replace(sublayer.STORE, ack=0, source_ack=0))


def loaded_16_times() -> object:
    """LADM loads each row 16 times."""
    return patch.object(overlap, "gemm_gang", lambda _: 16)


NORMS, LAUNCHES = {"tp.norm_passes": 0.001}, {"tp.launch_skew_us": 0.001, "tp.launch_gap_us": 0.001}
ABLATIONS = (
    Ablation("norms", "norms cost nothing", choices=NORMS),
    Ablation("launches", "all GPUs start at once, no gap between kernels", ALL[:-1], choices=LAUNCHES),
    Ablation("jitter", "thread blocks take equal times", ALL[:-1], choices={"tp.jitter": 0.0}),
    Ablation("table", "a place for each sum and load, no window of pulls", (*CAIS, *IN_SWITCH), cluster={"reduction_buffer_bytes": 0}),
    Ablation("pipeline", "CAIS with barriers between its kernels, coordinated", CAIS[:2], inside=barriers),
    Ablation("overlap", "baselines move behind whole GEMMs and compute when all is there", (*RINGS, *IN_SWITCH[2:]), inside=apart),
    Ablation("split", "CAIS's GEMMs have half of the SMs each", CAIS[:2], inside=halves),
    Ablation("windows", "CAIS without throttling", CAIS[:2], options={"throttle": False}),
    Ablation("merging", "CAIS-Base coordinated, tables of any size", ("cais-base",),
             options={"prelaunch": True, "preaccess": True, "throttle": True}, cluster={"reduction_buffer_bytes": 0}),
    Ablation("cache", "LADM loads each row 16 times", ("ladm",), inside=loaded_16_times),
    Ablation("pieces", "CoCoNet in 32 parts, its collective on one SM", ("coconet", "coconet-nvls"), options={"chunks": 32, "comm_sms": 1}),
    Ablation("acks", "no acknowledgements", RINGS, inside=no_acks),
    Ablation("gradients", "a layer is its sub-layers alone", (), inside=no_gradients),
    Ablation("rate", f"GEMMs so fast that rings over computation are {ARITHMETIC}", rate=True),
    Ablation("all", "rate, norms, gradients, launches, merging at once", choices=NORMS | LAUNCHES, inside=no_gradients, rate=True,
             cluster={"reduction_buffer_bytes": 0}),
)  # fmt: skip


def changed(point: Point, ablation: Ablation) -> Point:
    """The point under `ablation`: the rate of GEMMs is a choice that metrics read as well."""
    if not ablation.rate:
        return point
    dtype = "fp32" if point.model.endswith(":fp32") else "bf16"
    was = float(dict(point.choices).get("tp.gemm_part", 0.7))
    return replace(point, choices=(("tp.gemm_part", was * ARITHMETIC / FOUND[dtype]),))


def row_of(point: Point, ablation: Ablation) -> dict:
    """What the metrics of these figures read of a Row."""
    cluster = replace(load_cluster(point.cluster).with_gpus(point.gpus or 8), **ablation.cluster)
    work, system = parse_sub_layer(point.model, point.gpus or 8), get_collective(point.system)
    names = system.options.__dataclass_fields__
    with any_value(dict(point.choices) | ablation.choices), ablation.inside():
        program = system.plan(work, cluster, system.options(**{name: value for name, value in ablation.options.items() if name in names}))
        trace = run_burst(program)[0]
    use = utilization(program, trace, pool_busy_ps(program))
    return {
        "time_us": trace.time_ps / 1e6,
        "utilization": {side: use[side] for side in ("up", "down")},
        "blocks": {"links": {"up_use": up_use(program, trace) if point.system in CAIS else []}},
    }


def judged(figure: Figure, rows: Callable[[Point], dict], ablation: Ablation) -> dict[str, tuple[float, str, float]]:
    """{name of a number: (ours, verdict, what it should be)} of a figure with rows of `ablation`."""
    points = tuple(changed(point, ablation) for point in figure.points)
    with ablation.inside():
        results, _ = judge(replace(figure, points=points), {point: rows(point) for point in points})
    target = {c.name: c.paper or c.at_least or c.at_most for c in figure.checks}
    return {r.point: (r.ours, r.verdict, target.get(r.claim)) for r in results if r.ours is not None}


def other_reading(words: str) -> str:
    """The name of a figure or of a number at the other reading."""
    return words.replace("stated", "fig2") if "stated" in words else words.replace("-fig2", "-stated").replace(", fig2", ", stated")


def closes(ours: float, ablated: float, wanted: float) -> float:
    """Part of the gap that an ablation closes; 1: all of it. Below 0: it opens further."""
    return 1 - abs(math.log(ablated / wanted)) / abs(math.log(ours / wanted))


def measured(kept: Path | None) -> dict[str, dict[str, dict[str, tuple[float, str, float]]]]:
    """{ablation, "" for none: {figure: numbers}}."""
    stored = json.loads(kept.read_text()) if kept and kept.exists() else {}
    figures, out = {name: load_figure(name) for name in FIGURES}, {}

    def rows(point: Point, ablation: Ablation) -> dict:
        used = ablation if point.system in ablation.systems else replace(ablation, name="", inside=ExitStack, choices={}, options={}, cluster={})
        key = f"{used.name}|{point}"
        if key not in stored:
            stored[key] = row_of(point, used)
        return stored[key]

    for ablation in (Ablation("", "", ()), *ABLATIONS):
        print(ablation.name or "as it is", file=sys.stderr, flush=True)
        out[ablation.name] = {name: judged(figure, functools.partial(rows, ablation=ablation), ablation) for name, figure in figures.items()}
        if kept:
            kept.write_text(json.dumps(stored))
    return out


def main() -> None:
    """Print misses by the ablation that closes most of them, then what each ablation makes of all 60 ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--rows", type=Path)
    asked = parser.parse_args()
    found, texts = measured(asked.rows), {one.name: one.text for one in ABLATIONS} | {READING: "the other reading of communication over computation"}
    names, table = list(texts), []
    for figure in FIGURES:
        for number, (ours, verdict, wanted) in found[""][figure].items():
            if verdict != GAP:
                continue
            there = {name: found[name][figure][number][0] for name in names[:-1]}
            there[READING] = found[""][other_reading(figure) if figure != "cais-fig2" else figure][other_reading(number)][0]
            share = {name: closes(ours, there[name], wanted) for name in names if name != "all"}
            best = max(share, key=lambda name: share[name])
            table.append([figure, number, wanted, ours, best, share[best], *(there[name] for name in names)])
    table.sort(key=lambda line: names.index(line[4]))
    head = ["figure", "number", "published", "ours", "mechanism", "closes", *names]
    written = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in line] for line in table]
    if asked.csv:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *written])
    for name in names:
        if lines := [line for line in written if line[4] == name]:
            print(f"{name} ({texts[name]}): {len(lines)} misses")
            for line in lines:
                print(f"  {line[0]}, {line[1]}: published {line[2]}, ours {line[3]}, with it {line[6 + names.index(name)]} (closes {line[5]})")
    for name in ("", *names[:-1]):
        inside = [sum(v != GAP for _, v, w in found[name][figure].values() if w) for figure in RATIOS]
        print(f"{name or 'as it is':10s} inside of 20, 20, 40, 40 ratios: {inside}")


if __name__ == "__main__":
    main()
