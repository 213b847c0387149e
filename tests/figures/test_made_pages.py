"""Regression values: verdicts at and beside every bound, and the tables and pages of results made by hand, each held as a file of text in `made/`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console

from dysharp.base.errors import ConfigError
from dysharp.figures import Check, Figure, in_direction, load_figure, run_points, runner
from dysharp.figures.check import unclaimed
from dysharp.figures.figure import Variant, product_points
from dysharp.figures.metrics import hub_shares
from dysharp.figures.tornado import HEADLINES, Tornado
from dysharp.figures.verdict import Result, _bound_words, _outcome_of, _reduce, _variant_point, _verdict_of
from dysharp.figures.window_map import _default_windows
from dysharp.runs.point import Point
from dysharp.show.figure_tables import figure_markdown, print_figure, verdict_text
from dysharp.show.paper_page import MANY, Section, claims_csv, paper_page, results_csv
from tests.figures.made_rows import made_row
from tests.show.held import Lines, lines_of, stored_lines

FOLDER = Path(__file__).with_name("made")
EARLY, LATE = "0eb98978 2026-11-21 05:46", "37c83703 2026-11-21 06:02"
BOUNDS: tuple[dict[str, Any], ...] = (
    {}, {"paper": 2.0, "within": 0.25}, {"at_least": 1.5}, {"at_most": 2.5}, {"paper": 4.0, "at_least": 1.5, "at_most": 2.5}, {"paper": 2.0},
)  # fmt: skip
DATA: tuple[dict[str, Any], ...] = (
    {}, {"bound_set": EARLY}, {"bound_set": EARLY, "number_seen": LATE}, {"bound_set": LATE, "number_seen": EARLY}, {"fitted": "x"},
    {"cannot_fail": "x"}, {"regression": 3.0, "band": 0.125}, {"regression": 3.0, "band": 0.125, "reason": "why", "ablation": "run x"},
)  # fmt: skip
VALUES = (1.25, 1.5, 1.75, 2.5, 2.625, 2.6875, 3.375, 3.5)


def verdicts() -> Lines:
    """A check in a line: its bound, then its verdict and outcome for each of `VALUES`."""
    for bound, data in product(BOUNDS, DATA):
        check = Check("c", "time_us", "deepep", **bound, **data)
        told = (f"{value:g} {_verdict_of(check, value)}/{_outcome_of(check, value)}" for value in VALUES)
        flags = "".join("-+"[flag] for flag in (check.bounded, check.judged, check.before, unclaimed(check).judged))
        yield f"{_bound_words(check)} | {' '.join(f'{k}={v}' for k, v in data.items())} | {flags} | {', '.join(told)}"


def results() -> list[Result]:
    def one(claim: str, at: str, paper: float | None, ours: float | None, bound: str, verdict: str, outcome: str = "holds", **more: str) -> Result:
        return Result(f"{claim}{at}", f"speed-up of {claim}", paper, ours, bound, verdict, outcome, claim=claim, **more)

    why = {"reason": "the paper says nothing. Run: dysharp reproduce fig9", "stored": "2 +- 1 %"}
    return [
        one("over A", "", 2.0, 2.125, "within 10 % of 2", "reproduced", bound_set=EARLY, number_seen=LATE),
        one("faster than B", "", None, 1.5, "at least 1", "set after", bound_set=LATE, number_seen=EARLY),
        one("faster than C, too", "", None, 1.25, "at least 1", "set after"), one("faster than D", "", None, 1.75, "at least 1", "set after"),
        one("each", ": S-8", 3.0, 2.0, "within 5 % of 3", "gap", **why), one("each", ": M-8", 3.0, 4.0, "within 5 % of 3", "gap", **why),
        one("each", ": L-8", 3.0, 9.0, "within 5 % of 3", "gap", **why), one("few", ": S-8", None, 7.0, "at most 8", "cannot fail"),
        one("few", ": M-8", None, None, "at most 8", "not judged", "no point was run"), one("wide", "", 5.0, 6.0, "within 9 % of 5", "gap",
            "does not hold"),
        one("fit", "", 5.0, 5.25, "within 9 % of 5", "fitted"), one("old", "", None, 5.25, "at most 6", "inside"),
        one("kept", "", None, 3.5, "", "regression", "not the stored value", stored="3 +- 1 %"), one("kept too", "", None, 4.5, "", "regression",
            stored="4.5 +- 1 %"),
        one("plain", "", 7.5, 8.5, "", "", ""), one("later", "", None, 1.0, "at most 2", "not judged", ""),
        one("over A", "; hub.al_misses=32", 2.0, 3.0, "within 10 % of 2", "other choice", "outside"),
        one("over A", "; hub.al_misses=4096", 2.0, 2.0625, "within 10 % of 2", "other choice", "within"),
        one("over A", "; machine.vcs_per_class=4", 2.0, 1.0, "within 10 % of 2", "other choice", "outside"),
    ]  # fmt: skip


def figure(name: str, paper: str = "dysharp") -> Figure:
    return Figure(name, f"title of {name}", "DySHARP, figure 9", (), (), f"text of {name}", paper=paper, headline=("over A", "wide"))


def shown(paper: str, found: list[Result]) -> Lines:
    out = Console(file=io.StringIO(), width=130, color_system=None, highlight=False, markup=False)
    with out.capture() as captured:
        print_figure(figure("fig9", paper), found, out)
    return captured.get().splitlines()


def sections() -> list[Section]:
    """A figure with all kinds of lines, one with as many lines as a page prints, one with more, one without a paper."""
    many = [replace(results()[0], point=f"claim {i}", claim=f"claim {i}", ours=2.0 + i / 8) for i in range(MANY + 1)]
    return [
        Section(figure("made"), results()[-6:-3], False), Section(figure("fig11"), many, True), Section(figure("fig10"), [*many[1:], results()[13]],
            False),
        Section(figure("fig9"), results(), True),
    ]  # fmt: skip


def tornado(of: str) -> Lines:
    """The first bars on made Rows."""
    asked = Tornado("S-8", HEADLINES[of], tokens=96)
    points = asked.all_points()
    rows = {p: made_row(p) for p in points}
    bars = asked.bars(rows)[:9]
    columns, lines = asked.table(rows, bars)
    yield from (" | ".join(line) for line in (columns, *lines))
    yield from (f"{r.point} | {r.metric} | {r.ours:.4f} | {r.bound} | {r.verdict}" for r in asked.results(rows, bars)[:9])
    yield from (asked.figure().title, f"{len(points)} points: {'; '.join(p.label for p in points[:4])}")


def windows() -> Lines:
    for model, cluster in product(("S-8", "M-32", "L-8"), ("paper-gh200-nvl32", "paper-dgx-h100")):
        yield f"{model} {cluster} {_default_windows(Point('dysharp', model, cluster, 'uniform'))}"


def points() -> Lines:
    """The product of two tables of points, the points of a variant, and those of another pass."""
    axes: dict[str, Any] = {
        "systems": ["dysharp", "deepep"], "models": ["S-8", "M-8"], "cluster": ["paper-nvl72"], "gpus": [8, 16], "tokens": 96, "seeds": [3, 4],
        "options": {"dysharp.combine_window": 16, "cluster.link_GBps": 900}, "grid": {"dysharp.dispatch_window": [32, 64]}, "defaults": True,
    }  # fmt: skip
    found = product_points(axes, "made")
    yield f"{len(found)} points"
    yield from map(repr, found[:6])
    yield from (repr(_variant_point(p, Variant((("gemm.tile_rows", 64),), systems=("deepep",)))) for p in found[:4])
    whole = load_figure("fig15")
    other = in_direction(whole, "bwd")
    judged = [sum(c.judged for c in each.checks) for each in (other, whole)]
    yield f"{other.title} {len(other.points)} {other.points[0].label} {len(other.variants)} {judged}"
    yield " ".join(f"{how} {_reduce([4.0, 1.0, 16.0, 2.0], how):.5g}" for how in ("geomean", "median", "max", "min"))


def runs(jobs: int) -> Lines:
    """What `run_points` tells of five points, one of which is stored and one fails; with two processes the largest comes first."""
    base = Point("deepep", "S-8", "paper-gh200-nvl32", "uniform", gpus=4, tokens=16)
    asked = [base, replace(base, gpus=8), replace(base, tokens=4096), replace(base, model="M-16", gpus=None), replace(base, model="no such model")]
    told: list[str] = []
    kept: dict[Point, dict[str, Any]] = {asked[1]: {"time_us": 1.0}}
    store: Any = SimpleNamespace(get=kept.get, put=kept.__setitem__, folder="kept")

    def ended(tasks: list[Any], n: int) -> Iterator[tuple[int, Any]]:
        told.append(f"{n} processes: {'; '.join(task.key for task in tasks)}")
        yield from ((i, ConfigError("a made fault") if "no such" in task.key else {"time_us": 10.0 + i}) for i, task in enumerate(tasks))

    with patch.object(runner, "in_processes", ended), patch.object(runner, "sources_changed", lambda: False):
        rows, failed = run_points([*asked, base], store, jobs, lambda *now: told.append(" ".join(map(str, now[:3])) + f" {now[3]:.5f}"))
    return [*told, *(f"{p.label}: {row}" for p, row in rows.items()), *failed.values(), str(len(kept))]


def shares() -> Lines:
    """Shares of a row's time from the parts of three rows, for both forms whose thread blocks poll."""
    asked: list[Any] = []

    def parts(program: Any, _: Any) -> Any:
        factor = 1.0 + len(program[0])  # the form's name
        return np.array([[1e6, 2e6, 4e6], [9e6, 3e6, 5e6], [2e6, 8e6, factor * 1e6]])

    def planned(*args: Any, **keys: Any) -> list[Any]:
        asked.append((args, keys))
        return [args]

    burst = SimpleNamespace(run_burst=lambda program: (program,))
    with (
        patch.dict("sys.modules", {"dysharp.engine.burst.run": burst}),
        patch.object(hub_shares, "planned", planned),
        patch.object(hub_shares, "_parts_ps", parts),
    ):
        for form, routing in (("mh-base", ""), ("mh-pkt", "uniform")):
            found = hub_shares._hub_shares(Point("hub-shares", "S-8", "paper-dgx-h800", routing, 3, 8, 96), hub_shares._PollingForm(form))
            yield " ".join(f"{name} {value:.6g}" for name, value in found.items())
    yield from map(str, asked)


TEXTS: dict[str, Callable[[], Lines]] = {
    "verdicts": verdicts, "shares": shares, "runs": lambda: [*runs(1), *runs(2)], "points": points, "windows": windows,
    "tornado-dysharp": lambda: tornado("dysharp"),
        "tornado-moe-hub": lambda: tornado("moe-hub"),
    "screen": lambda: shown("dysharp", results()), "screen-beyond": lambda: shown("", results()[12:14]), "screen-bare": lambda: shown("",
        results()[:1]),
    "markdown": lambda: figure_markdown(figure("fig9"), results()).splitlines(), "sentence": lambda: [verdict_text(results()[:2]),
        verdict_text(results()[13:])],
    "page": lambda: paper_page("DySHARP", "made", sections(), "dysharp made", "0").splitlines(),
    "csv": lambda: [*results_csv(results()).splitlines(), *claims_csv(sections()[::3]).splitlines()],
}  # fmt: skip


SLOW = ("tornado-moe-hub", "windows")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TEXTS])
def test_the_text_of_made_results(name: str) -> None:
    assert lines_of(TEXTS, name) == stored_lines(FOLDER, name)
