"""Results made by hand, without a run, for pictures, pages and screens: unequal numbers that say nothing about a system."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dysharp.analysis import Row
from dysharp.analysis.load import Load
from dysharp.analysis.timeline.tracks import Slices, Timeline, Track
from dysharp.api import Comparison
from dysharp.api.comparison import header_lines, left_out_lines, limits_sentence
from dysharp.api.training import WORDS, Step, Steps
from dysharp.base.arrays import I64
from dysharp.base.units import GiB
from dysharp.measured.intervals import Interval
from dysharp.model import layout_of
from dysharp.model.formats import formats_of
from dysharp.planning.advice.advise import Advice
from dysharp.planning.advice.prediction import Predicted
from dysharp.planning.advice.tuning import TuningSearch
from dysharp.planning.advice.what_if import WhatIf
from dysharp.program import Nature
from dysharp.runs.causes import causes
from dysharp.training.answers import split_step
from dysharp.training.cost import EpTimes
from dysharp.training.graph import StepTimes, replay, step_graph
from dysharp.training.memory import TrainingMemory, _RankMemory
from dysharp.training.schedules import make_schedule
from dysharp.training.schedules.cells import Times
from tests.figures.made_rows import numbers

NICS = ("nic out", "nic in")


class Made(dict[str, Any]):
    """A table's row: what it is asked for and does not have is a number, made of its name and the column's."""

    def __missing__(self, key: str) -> Any:
        draw = numbers(f"{self['name']} {key}")
        self[key] = int(draw(2, 60)) if key in ("n", "n_rows", "groups", "rank", "votes", "count", "counted", "total", "budget") else draw(1, 90)
        return self[key]

    def __or__(self, other: dict[str, Any]) -> Made:  # type: ignore[override]
        return Made({**self, **other})

FORMATS = formats_of("bf16").to_dict()


def made_row(system: str, *, nics: bool = False, real: bool = False, **changes: Any) -> Row:
    """A Row with every part of a critical path. `real`: of a machine one can buy, with surroundings. `nics`: over several domains."""
    draw = numbers(f"{system} {nics} {real}")
    time = draw(200, 900)
    names = [name for name in causes() if name != "surroundings_us" and (nics or not name.startswith(("nic", "spine"))) and "xgmi" not in name]
    shares = {name: draw(1, 9) for name in names}
    around = draw(20, 60) if real else 0.0
    attribution = {name: share * (time - around) / sum(shares.values()) for name, share in shares.items()} | (
        {"surroundings_us": around} if real else {}
    )
    sides = ("up", "down", *(NICS * nics))
    phases: dict[str, dict[str, float]] = {}
    for at, name in enumerate(("dispatch", "gemm1", "gemm2", "combine")):
        start, end = at * time / 5 + draw(0, 9), (at + 1.4) * time / 5 + draw(0, 9)
        phases[name] = {"start": start, "end": end, "busy": draw(0.4, 0.9) * (end - start)}
    path = {name: draw(0.1, 0.22) * time for name in (*phases, "other")}
    waits = {name: {part: [draw(0, 30) for _ in range(4)] for part in ("span", "moving", "resource", "own", "peers")} for name in phases}
    usual: dict[str, Any] = {
        "system": system, "form": "real" if real else "paper", "workload": "", "model": "made-model", "cluster": "hw-made" if real else "made",
            "gpus": 4,
        "tokens_per_gpu": 48, "topk": 3, "layer": None, "routing": "made routing", "direction": "fwd", "fidelity": "burst", "seed": 7,
        "options": {"n_sm": 13, "compute": True} if real else {"window": 24}, "time_us": time, "phases_us": phases,
        "exposed_comm_us": draw(20, 90), "traffic_bytes": {side: {name: int(draw(1e6, 9e7)) for name in ("dispatch", "combine",
            "other")} for side in sides},
        "wire_flits": {"up": int(draw(1e5, 9e5)), "down": int(draw(1e5, 9e5))},
        "utilization": {f"{side}{most}": draw(0.1, 0.5) + 0.4 * bool(most) for side in (*sides, "sm") for most in ("", "_max")},
        "bound_us": draw(0.5, 0.75) * time, "bound_resource": "gpu[2].memory", "bound_terms": {"busy_us": 0.4 * time, "latency_us": 0.1 * time},
        "workload_bound_us": 83.25, "attribution": attribution, "path_us": path, "stalls": {name: draw(1, 9) for name in ("window_us", "link_us",
            "sm_us")},
        "waiting_us": waits, "n_ops": 1234, "n_events": 5678, "wall_s": dict.fromkeys(("routing", "plan", "engine", "analysis"),
            0.25) | {"total": 1.5},
        "compile_s": 0.5, "peak_rss_mb": 99.0, "digest": "d1e2", "model_version": "0", "blocks": {}, "dropped_rows": 0, "warnings": (), "window": {},
        "surroundings_us": dict(zip(("permute_us", "activation_us", "cast_us", "launch_us", "host_us"), (9.0, 8.0, 3.0, 1.0, 41.0),
            strict=True)) if real else {},
        "skew": {}, "header": (f"{system}: {'real' if real else 'paper'} form, made", "routing: made"),
    }  # fmt: skip
    return replace(Row(**usual), **changes)


def window(row: Row) -> Row:
    """The Row as that of leading tokens."""
    whole = {
        "tokens": 48,
        "of_tokens": 640,
        "time_us": 9.5 * row.time_us,
        "us_per_token": 3.125,
        "half_window_time_us": 9.1 * row.time_us,
        "apart": 0.04,
    }
    return replace(row, window=whole | {"path_us": {name: 9.5 * us for name, us in row.path_us.items()}, "surroundings_us": row.surroundings_us})


def made_comparison(kind: str) -> Comparison:
    """ "paper", "hw" (formats, NICs, a system that drops rows, settings that were searched) or "window"."""
    hw = kind == "hw"
    rows = [made_row(name, real=hw, nics=hw) for name in (("deepep", "tutel", "hybrid-ep") if hw else ("deepep", "nvls", "dysharp", "ideal"))]
    if hw:
        rows = [rows[0], replace(rows[1], dropped_rows=20), rows[2], made_row("ideal", nics=True)]
    if kind == "window":
        rows = [rows[0], *map(window, rows[1:])]
    rows[0] = replace(rows[0], warnings=("made warning",))
    kinds = {row.form for row in rows}
    base: dict[str, Row] = {form: next(row for row in rows if row.form == form) for form in ("real", "paper") if form in kinds}
    baselines, absent = {form: row.system for form, row in base.items()}, {"comet": "made reason"} if hw else {}
    tried = (({"n_sm": 8}, 40.0), ({"n_sm": 16}, 30.0), ({"n_sm": 24}, 36.0))
    tuned = {"deepep": TuningSearch(tried, {"n_sm": 16}, 5, 12), "tutel": TuningSearch(tried, {}, 4, 6, {"n_sm": 8})}
    tuned |= {"hybrid-ep": TuningSearch((), {}, 2, 3)}
    formats = {row.system: f"Dispatch FP8, Combine BF16, weights FP4, {13 + i} SMs" for i, row in enumerate(rows)}
    return Comparison(
        tuple(rows), baselines, {row.system: base[row.form].layer_us / row.layer_us for row in rows},
        (*header_lines(rows), *left_out_lines(absent)), limits_sentence(tuple(rows), baselines), tuned if hw else {}, absent, formats if hw else {},
    )  # fmt: skip


def made_load(placement: str, gpus: int, *, nics: bool = False) -> Load:
    """Tokens of every pair, and rows."""
    draw = numbers(f"{placement} {gpus}")
    pairs = np.array([[int(draw(3, 90)) for _ in range(gpus)] for _ in range(gpus)], np.int64)
    count: I64 = np.array([int(draw(50, 90)) for _ in range(gpus)], np.int64)
    return Load(placement, f"{placement} note" if placement == "eplb" else "", pairs, count, (count // 2, count[::-1] // 3) if nics else None)


def made_prediction(system: str, wide: float | None, *, tried: bool = False, leading: bool = False, **changes: Any) -> Predicted:
    """A prediction with an error bar of `wide`."""
    row = made_row(system, real=True, **changes)
    row = window(row) if leading else row
    text = (f"{system}: made warning",)
    edge = "most" if tried else ""
    return Predicted(
        row,
        640,
        "Dispatch FP8, Combine BF16",
        None if wide is None else Interval(1 - wide, 1 - wide / 2, 1 + wide / 2, 1 + wide, wide / 2, near=True),
        ("sum",),
        text,
        wide is not None,
        {8: 700.0, 13: 650.5} if tried else {},
        edge,
    )


def made_advice(kind: str) -> Advice:
    """ "ranked" or "few" (leading tokens, nothing is ranked)."""
    few = kind == "few"
    ranked = [made_prediction("deepep", 0.125, tried=True), made_prediction("hybrid-ep", 0.25), made_prediction("megamoe", 0.03)]
    ranked.sort(key=lambda entry: entry.time_us)
    rest = [made_prediction("mori", None, leading=few), made_prediction("tutel", None, dropped_rows=30, leading=few)]
    shown = () if few else tuple(ranked)
    best = (shown or tuple(rest))[0]
    changes = tuple(
        WhatIf(name, f"{name} assumes", replace(made_prediction(best.system if real else "dysharp", 0.2), row=made_row(system, real=real)),
            best.time_us, note)
        for name, system, real, note in (
            ("EPLB-style replicas", best.system, True, "a made note"), ("overlap by rows", "comet", False, ""), ("DySHARP switches", "dysharp",
                False, ""),
            ("communication for free", "ideal", False, ""),
        )
    )  # fmt: skip
    layers = None if few else {"n": 12, "gpu": "h100", "median": 4.25, "p90": 9.5, "bias": -1.5}
    loads = tuple(made_load(name, 10 if few else 4, nics=few) for name in ("auto", "eplb"))
    return Advice(
        shown, tuple(rest), {"comet": "has no kernel (made)", "nvls": "no kernel (other)"}, loads, changes, {"EP8": "too few GPUs (8)",
            "EP16": "too few GPUs (16)"},
        ("a made workload", "routing: made", "note: left out", "warning: a made warning of the header"), layers, "host: made", FORMATS,
    )  # fmt: skip


def made_steps() -> Steps:
    """A step of three ranks under two systems, with traffic, sends and an optimizer."""
    schedule, layout = make_schedule("zb-h1", 3, 5, 1), layout_of("pp=3,ep=4,m=5,dp=4")
    found = []
    for system, factor, dropped in (("deepep", 1.25, 0), ("ideal", 1.0, 0), ("tutel", 0.75, 9)):
        ahead, back, own = (tuple(int(factor * us * 1e9) for us in part) for part in ((30, 32, 35), (41, 40, 44), (18, 17, 20)))
        cells = Times(ahead, back, own, hop=2_000_000_000)
        times = StepTimes(cells, 3_000_000_000, ((4_000_000_000, 5_000_000_000),) * 3, ((2_000_000_000,),) * 3, (7_000_000_000,) * 3)
        done = replay(step_graph(schedule, times))
        split, draw = split_step(done), numbers(system)
        shares = {name: draw(1, 9) for name in WORDS}
        shares = {name: share / sum(shares.values()) for name, share in shares.items()}
        ep = EpTimes(*(draw(10, 90) for _ in range(7)))
        found.append(Step(system, done.makespan / 1e6, draw(900, 9000), draw(100, 400), draw(0.1, 0.5), shares, ep, done, split, "real", dropped))
    lines = {"weights": 3.5 * GiB, "gradients": 7.25 * GiB, "optimizer": 0.0, "activations": 5.5 * GiB}
    ranks = tuple(_RankMemory(i, {name: (i + 1) * n for name, n in lines.items()}, {0: 2 + i}, {}, 1e9, (i,), i) for i in range(3))
    header = ("a made line", "warning: a made warning")
    gains = {"no bubble": 0.125, "no sends": 0.0005, "free EP": 0.25, "other": 0.0625}
    memory = TrainingMemory("made-model", ranks, {"buffers": 2.5 * GiB})
    return Steps("made-model", layout, schedule, 96, tuple(found), memory, gains, header, FORMATS)


def made_timeline() -> Timeline:
    """Two GPUs: links, GEMMs that overlap in one band, an acknowledgement."""
    tracks = [Track(gpu, group, name) for gpu in (0, 1) for group, name in
              (("up link", "dispatch"), ("up link", "ack"), ("operators", "gemm1 tiles"), ("operators", "host"), ("down link",
                  "combine"))]  # fmt: skip
    spans = [(track, start * (1 + track // 5), end * (1 + track // 5)) for track, pairs in enumerate((
        ((100, 300), (350, 400)), ((200, 260),), ((0, 500), (600, 900)), ((1, 2),), ((500, 740), (741, 790)),
    ) * 2) for start, end in pairs]  # fmt: skip
    track, start, end = (np.array(column) * scale for column, scale in zip(zip(*spans, strict=True), (1, 1000, 1000), strict=True))
    n = np.zeros(len(spans), np.int32)
    natures = {"dispatch": Nature.COMMUNICATION, "gemm1": Nature.COMPUTE, "combine": Nature.COMMUNICATION, "host": Nature.HOST}
    shown = tuple(cast(Any, SimpleNamespace(name=name, nature=nature)) for name, nature in natures.items())
    return Timeline(
        2, 2_000_000, tuple(tracks), ("x",), Slices(track.astype(np.int32), start, end, n, n - 1, n.astype(np.int64)), (), (), False, shown
    )


def plain(kind: type[Any], name: str, **given: Any) -> Any:
    """A dataclass whose fields that are not given are numbers, made of `name`."""
    draw = numbers(name)
    return kind(**{f.name: given[f.name] if f.name in given else draw(1, 90) for f in fields(kind) if f.init})
