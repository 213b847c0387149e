"""What `advise` ranks, tunes and says of libraries, by machine, model and phase: digests of plain values.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from dysharp.base.errors import DysharpError
from dysharp.measured.intervals import Interval
from dysharp.measured.trust import eager_is_known
from dysharp.planning.advice.advise import Advice, _answer_lines, percent
from dysharp.planning.advice.candidates import candidates, nothing_to_rank, options_to_run
from dysharp.planning.advice.libraries import advise_libraries
from dysharp.planning.advice.prediction import AdviceRuns, Predicted
from dysharp.planning.advice.tuning import KNOBS, _grid, _has_knob, _values_of, default_of, search
from dysharp.planning.advice.what_if import WhatIf, _sizes, _trials, what_ifs
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.phase import get_phase
from dysharp.runs.request import Request, make_request, make_workload, takes
from dysharp.systems import all_systems, get_system
from tests.stored_values import Cases, Digests, Table, digests

STORED = Table(__file__)
MACHINES = ("hw-dgx-h100", "hw-dgx-b200-x2", "hw-gb200-nvl72", "hw-mi300x", "hw-mi355x-x2", "hw-hgx-h20", "hw-dgx-h100-x8")
MODELS = ("deepseek-v3", "deepseek-v2-lite", "mixtral-8x7b")
"""Machines and models of the rankings."""


@takes(RequestArgs)
def _request(**arguments: Any) -> Request:
    return make_request(arguments)  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """The value with floats of six digits, so that the last bits of a sum do not count."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def ranked(machine: str) -> list[Any]:
    """Who is ranked, with which options, and why others are not: by model, phase and direction."""
    found: list[Any] = []
    for model in MODELS:
        for phase in (None, "decode", "prefill", "train"):
            request = _request(model=model, cluster=machine, tokens=16, routing="uniform", direction="both" if phase == "train" else "fwd")
            chosen, left = candidates(None, request, None if phase is None else get_phase(phase))
            asked, given = options_to_run(chosen, replace(request, options={"deepep.n_sm": 12, "hybrid-ep.chunk": 32}))
            found.append([sorted(chosen), left, nothing_to_rank(left, request), asked, sorted(given), _sizes(request.cluster)])
    return found


def named(machine: str) -> list[Any]:
    """Each system asked for by its name."""
    request, found = _request(model="deepseek-v3", cluster=machine, tokens=16, routing="uniform"), []
    for name in (*all_systems(), ""):
        try:
            chosen, left = candidates([name] if name else [], request, get_phase("decode"))
            found.append([sorted(chosen), left])
        except DysharpError as error:
            found.append([str(error)])
    return found


def _fake(settings: Sequence[Any]) -> list[Any]:
    """Results of jobs: errors and refusals apart, a time from the numbers of the setting."""
    out: list[Any] = []
    for place, job in enumerate(settings):
        sizes = job.sizes or (1,)
        value = sum(v * (3 + i) for i, v in enumerate(x for x in job.given.values() if isinstance(x, int)))
        rows = tuple(SimpleNamespace(time_us=float((value * 37) % 11 + n), tokens_per_gpu=n) for n in sizes)
        out.append(DysharpError("refused") if place % 5 == 3 else rows)
    return out


def tuned(machine: str) -> list[Any]:
    """The knobs of every system: values, grids, defaults."""
    found: list[Any] = []
    request = _request(model="deepseek-v3", cluster=machine, gpus=8, tokens=16, routing="uniform")
    for name, one in all_systems().items():
        knobs = [knob for knob in KNOBS if _has_knob(one, request, {}, knob)]
        found.append([name, knobs, [_has_knob(one, request, {"form": "paper"}, knob) for knob in KNOBS]])
        found.append([[_values_of(one, request, knob), default_of(one, knob)] for knob in knobs])
        found.append([_grid(one, request, knobs[:n]) for n in range(1, len(knobs) + 1)])
    workload, systems = make_workload(request), {name: one for name, one in all_systems().items() if one.has_real_form}
    searched = search(_fake, workload, systems, {name: {} for name in systems})
    return [*found, *([name, one.to_dict()] for name, one in searched.items())]


def _fake_us(case: Any, fitted: object) -> float:
    """A number that differs between any two calls, for the time of a call, which takes a simulation."""
    return 1.0 + int(hashlib.blake2b(repr(case).encode(), digest_size=2).hexdigest(), 16) / 7


def libraries(machine: str) -> list[Any]:
    """Round trips of all libraries, with invented times."""
    asked = [("deepseek-v3", "drained", (1, 128, 129, 256, 257, 512, 513), (4, 8, 16)), ("deepseek-v2-lite", "graph", (300,), (2, 8, 16, 24, 32))]
    found: list[Any] = []
    for model, regime, tokens, gpus in asked:
        try:
            with patch("dysharp.planning.advice.libraries.program_us", _fake_us):
                done = advise_libraries(model, [machine], tokens=tokens, gpus=gpus, regime=regime)
            found.append([done.to_dict(), [cell.pools for cell in done.cells]])
        except DysharpError as error:
            found.append(str(error))
    return found


def _told(jobs: Sequence[Any]) -> list[Any]:
    """Invented predictions of jobs; every seventh is refused."""
    out: list[Any] = []
    for place, job in enumerate(jobs):
        options = {f.name: f.default for f in dataclasses.fields(get_system(job.system).options)} | dict(job.given)
        row = SimpleNamespace(system=job.system, form=("paper", "real")[place % 3 > 0], options=options)
        out.append(DysharpError("refused") if place % 7 == 5 else SimpleNamespace(row=row, time_us=90.0 + 37 * place % 23))
    return out


def changes(machine: str) -> list[Any]:
    """The what-ifs of a best system with invented times: what is run, and what is said."""
    found: list[Any] = []
    for system, given, tried in (("deepep", {"n_sm": 20, "dispatch": "rows"}, {20: 100.0, 24: 98.0}), ("mori", {"dispatch": "fp8"}, {})):
        for placement in ("auto", "eplb"):
            request = _request(model="deepseek-v2-lite", cluster=machine, tokens=4, routing="uniform", placement=placement)
            runs = AdviceRuns(request, None)  # type: ignore[arg-type]
            defaults = {f.name: f.default for f in dataclasses.fields(get_system(system).options)}
            row = SimpleNamespace(system=system, options=defaults | given, window={})
            best: Any = SimpleNamespace(row=row, tried=tried, time_us=100.0)
            trials, left = _trials(runs, best)
            jobs = [(t.name, t.assumes, t.note, job) for t in trials for job in (t.job, t.more_sms) if job is not None]
            found.append([[*words, j.system, j.given, j.sizes, j.workload.request.cluster, j.workload.request.placement] for *words, j in jobs])
            with patch.object(AdviceRuns, "predict", lambda self, jobs, like: _told(jobs)):
                done, without = what_ifs(runs, best)
            found.append([[w.change, w.short, w.assumes, w.note, w.speedup, w.difference_us] for w in done] + [left, without, runs.header])
    return found


def _invented(system: str, us: float, wide: float | None, **more: Any) -> Predicted:
    """A prediction with invented numbers, no two of which are equal."""
    part = {"gemm1": 0.21 * us, "gemm2": 0.17 * us, "dispatch": 0.26 * us, "combine": 0.11 * us, "other": 0.05 * us, "around": 0.2 * us}
    sides = {"sm_max": 0.33, "up_max": 0.42, "down_max": 0.44}
    row: dict[str, Any] = {
        "system": system, "layer_us": us, "time_us": 0.9 * us, "program_us": 0.8 * us, "bound_us": 0.4 * us, "bound_resource": "gpu[3].memory",
        "options": {}, "path_us": part, "window": None, "utilization": sides, "dropped_rows": 0, "dropped_share": 0.0, "form": "real", "gpus": 6,
        "surroundings_us": {"permute_us": 3.0, "cast_us": 5.0, "host_us": 7.0}, "tokens_per_gpu": 17, "phases_us": {}, "exposed_comm_us": 13.0,
        "warnings": (),
    } | more.pop("row", {})  # fmt: skip
    interval = None if wide is None else Interval(1 - wide, 1 - wide / 2, 1 + wide / 2, 1 + wide, 0.07, near=True)
    known: dict[str, Any] = {"interval": interval, "families": ("a", "b"), "warnings": ("w",), "has_eager": wide is not None, "tried": {}} | more
    return Predicted(row=SimpleNamespace(**row), tokens=23, formats="Dispatch FP8", **known)  # type: ignore[arg-type]


def said() -> list[Any]:
    """The sentences of advice on invented predictions."""
    tried = _invented("deepep", 100.0, 0.2, tried={20: 100.0, 24: 98.0}, edge="fewest", row={"options": {"n_sm": 20}, "window": {"apart": 0.1}})
    fused = _invented("megamoe", 110.0, 0.3, row={"bound_resource": "gpu[1].up"})
    none, slow = _invented("mori", 90.0, None), _invented("nccl-ep", 115.0, None, row={"options": {"n_sm": 16}})
    drops = _invented("tutel", 80.0, None, row={"dropped_rows": 5, "dropped_share": 0.031})
    free = _invented("ideal", 70.0, None, row={"form": "paper"})
    ifs = [WhatIf(f"{name}-style replicas", "a", one, 100.0, "n") for name, one in (("EPLB", none), ("x", slow), ("ideal", free), ("near", tried))]
    found: list[Any] = [one.to_dict() for one in (tried, fused, none, slow, drops, free)] + [one.to_dict() for one in [_wider(ifs[0])]]
    for best, ties, others in ((tried, [fused], [none, slow, drops]), (fused, [], []), (none, [], [slow, tried, none]), (drops, [tried], [drops])):
        found += [_answer_lines(best, ties, shown, others) for shown in (ifs, ifs[:2], [])]
    for ranking, rest in (((tried, fused), (none,)), ((fused, slow), ()), ((), (slow, drops))):
        done = Advice(ranking, rest, {"s": "why"}, (), tuple(ifs[:1]), {}, ("h",), None, "host", {})
        found += [[one.system for one in done.ties()], str(done), repr(done), done.best.system, done.answer]
    shares = (0.0049, -0.0049, 0.005, -0.005, 0.0149, 0.015, -0.015, 0.3)
    return [*found, [percent(x) for x in shares], [eager_is_known(one.row) for one in (tried, fused, none, slow, free)]]


def _wider(change: WhatIf) -> Any:
    row = change.predicted.row
    row.cluster, row.gpus = "c", 5
    return change


def row(make: Callable[[], list[Any]]) -> dict[str, Digests]:
    """A digest of each entry."""
    return {"digests": digests({str(at): plain(one) for at, one in enumerate(make())})}


KINDS = (ranked, named, tuned, libraries, changes)
CASES: Cases = {
    **{f"{kind.__name__} {machine}": partial(row, partial(kind, machine)) for kind in KINDS for machine in MACHINES}, "said": partial(row, said),
}  # fmt: skip
