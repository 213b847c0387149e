"""Figure 15 as packaged: its nine configurations at their own numbers of tokens, held to the stored values of the figure."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dysharp.figures import judge, list_figures, load_figure
from dysharp.figures.runner import run_points
from dysharp.runs.store import Store

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "dysharp" / "fig15.csv"
HEADLINE = {f"{word} over {name}" for word in ("geomean", "largest") for name in ("DeepEP", "COMET", "NVLS")}


@pytest.mark.slow
def test_the_smallest_configuration_has_the_speedups_of_the_page(tmp_path: Path) -> None:
    """For the nine, which take minutes."""
    points = {p.system: p for p in load_figure("fig15").points if p.model == "S-8" and p.system != "fusion-only" and not p.options and not p.choices}
    rows, failed = run_points(list(points.values()), Store(tmp_path))
    assert failed == {}
    time_us = {name: rows[point]["time_us"] for name, point in points.items()}
    with PAGE.open(newline="") as file:
        shown = {r["metric"].rpartition(" ")[2]: r["ours"] for r in csv.DictReader(file) if r["point"].endswith(": S-8")}
    assert len(shown) == 6
    assert {name: f"{time_us[name] / time_us['dysharp']:.3f}" for name in shown} == shown


@pytest.fixture(scope="session")
def one_store() -> Store:
    """The store of `dysharp reproduce`, keyed by inputs and code: a point of several figures runs once, and a run that was cut goes on."""
    return Store.default()


@pytest.mark.long
def test_the_nine_configurations_give_the_stored_headline(one_store: Store) -> None:
    figure = load_figure("fig15")
    rows, failed = run_points(figure.points, one_store)
    assert failed == {}
    results, _ = judge(figure, rows)
    ours = {r.point: (r.ours, r.outcome) for r in results if r.verdict != "other choice"}
    print({name: ours[name] for name in HEADLINE})
    assert {name: ours[name][1] for name in HEADLINE} == dict.fromkeys(HEADLINE, "holds")
    assert {r.point: r.outcome for r in results if not r.holds} == {}


def test_the_headline_can_fail_by_half_a_per_cent() -> None:
    checks = {c.name: c for c in load_figure("fig15").checks}
    assert all((checks[name].band or 1) <= 0.005 and checks[name].variants for name in HEADLINE)
    assert {c.paper for name, c in checks.items() if name in HEADLINE} == {2.26, 1.78, 4.25, 2.77, 1.94, 6.93}


@pytest.mark.long
@pytest.mark.parametrize("name", list_figures())
def test_every_figure_keeps_its_bounds_and_stored_values(name: str, one_store: Store) -> None:
    """As `dysharp reproduce NAME --check --no-variants`; the gate does it for figures that two minutes allow."""
    figure = load_figure(name)
    rows, failed = run_points(figure.points, one_store)
    assert failed == {}
    results, _ = judge(figure, rows)
    assert {r.point: (r.outcome, r.ours, r.stored) for r in results if not r.holds} == {}
