"""Pictures and pages of papers: the numbers of a picture, what the summary says, and which files are written."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import bounds
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.figures import Check, Figure, Point, judge, list_figures, load_figure
from dysharp.figures.figure import BEYOND, Drawing, Variant
from dysharp.figures.series import _Series, series_of
from dysharp.figures.verdict import _variant_point
from dysharp.show.figure_plots import plot_series
from dysharp.show.markdown import escaped
from dysharp.show.paper_page import Section, _joined, _kinds, headline, paper_page, results_csv

MODELS = ("S-8", "M-8")
PAGES = Path(__file__).resolve().parents[2] / "docs" / "papers"
TIMES = {("deepep", "S-8"): 4.0, ("deepep", "M-8"): 9.0, ("dysharp", "S-8"): 2.0, ("dysharp", "M-8"): 1.0}
DATED = {"bound_set": "0eb98978 2026-11-21 05:46", "number_seen": "37c83703 2026-11-21 06:02"}
CHECKS = (
    Check("over DeepEP", "speedup", "dysharp", "deepep", paper=4.0, within=0.1, **DATED),
    Check("over COMET", "speedup", "dysharp", "comet", paper=2.0),
)


def figure(kind: str = "bars", checks: tuple[Check, ...] = CHECKS) -> Figure:
    points = tuple(Point(system, model, "c", "uniform") for system, model in TIMES)
    return Figure("f", "a title", "a source", points, checks, paper="dysharp", drawing=Drawing(kind, "speedup", "model", over="deepep"))


def rows(drawn: Figure) -> dict[Point, dict[str, float]]:
    return {p: {"time_us": TIMES[p.system, p.model], "exposed_comm_us": 0.5} for p in drawn.points}


def test_a_picture_has_the_mean_beside_the_published_means() -> None:
    drawn = figure()
    series = series_of(drawn, rows(drawn))
    assert series is not None
    assert series.places == ("S-8", "M-8", "mean")
    assert series.values["dysharp"] == pytest.approx((2.0, 9.0, 18**0.5))
    assert series.published == {"dysharp": 4.0}  # comet: published, but no point draws it
    axes = plot_series(series, drawn.title)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["S-8", "M-8", "mean"]
    assert len(axes.containers) == 2


def test_parts_of_a_bar_add_up_to_its_time_over_the_baseline() -> None:
    drawn = figure("parts")
    one = replace(drawn, drawing=Drawing("parts", "speedup", "system", over="deepep", models=("S-8",)))
    series = series_of(one, rows(one))
    assert series is not None
    assert series.places == ("deepep", "dysharp")
    assert [sum(v or 0 for v in column) for column in zip(*series.values.values(), strict=True)] == pytest.approx([1.0, 0.5])
    assert series.values["exposed communication"] == pytest.approx((0.125, 0.125))
    assert series.unit == "time over that of deepep"


def test_a_figure_without_rows_has_no_picture() -> None:
    assert series_of(figure(), {}) is None


def test_the_summary_counts_claims_and_names_what_does_not_hold() -> None:
    drawn = figure()
    results, _ = judge(drawn, rows(drawn))
    page = paper_page("A paper", "a", [Section(drawn, results, picture=True)], "dysharp reproduce f", "5")
    assert "| over DeepEP | within 10 % of 4 | 4.243 | reproduced |" in page
    assert "![f](a/f.svg)" in page
    assert "Of 1 claims (published values, and sentences of the paper as this page reads them) 1 came out: 1 published numbers" in page
    far, _ = judge(drawn, {p: {"time_us": 1.0} for p in drawn.points})
    assert "**gap: does not hold**" in paper_page("A paper", "a", [Section(drawn, far, picture=False)], "c", "5")


def test_a_reason_stands_once_and_points_of_one_check_share_a_line() -> None:
    """The reason names each number that it explains; three points with one bound and one verdict are one line."""
    known = Check("low", "speedup", "dysharp", "deepep", "each", at_least=3.0, regression=2.0, band=0.1, reason="because", ablation="show f")
    inside = Check("all", "time_us", "deepep", reduce="each", at_most=20.0, **DATED)
    models = ("S-8", "M-8", "L-8")
    drawn = replace(figure(checks=(known, inside)), points=tuple(Point(s, m, "c", "uniform") for s in ("deepep", "dysharp") for m in models))
    fake = {p: {"time_us": {"S-8": 4.0, "M-8": 8.0, "L-8": 12.0}[p.model] / (2 if p.system == "dysharp" else 1)} for p in drawn.points}
    results, holds = judge(drawn, fake)
    assert holds
    page = paper_page("A paper", "a", [Section(drawn, results, picture=False)], "c", "5")
    assert "| all (3 points) | at most 20 | 4.000 to 12.000 | reproduced |" in page
    assert "| low (3 points) | at least 3 | 2.000 | **gap** |" in page
    assert "| 3 numbers, the farthest: f, low: S-8 (at least 3; 2.000) | because | `show f` |" in page
    assert page.count("because") == 1


def test_csv_has_a_line_per_result() -> None:
    drawn = figure()
    results, _ = judge(drawn, rows(drawn))
    lines = results_csv(results).splitlines()
    assert lines[0] == "point,metric,paper,ours,bound,verdict,outcome,bound_set,number_seen,stored,reason"
    assert len(lines) == 1 + len(results)


@pytest.mark.slow
def test_pages_are_written_by_the_command(tmp_path: Path) -> None:
    asked = ["reproduce", "fig2", "fig19a", "--store", str(tmp_path / "store"), "--pages", str(tmp_path / "pages")]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    written = sorted(str(p.relative_to(tmp_path / "pages")) for p in (tmp_path / "pages").rglob("*.*"))
    assert written == ["claims.csv", "dysharp.md", "dysharp/fig19a.csv", "dysharp/fig19a.svg", "dysharp/fig2.csv", "dysharp/fig2.svg"]
    assert "Of 9 claims (" in (tmp_path / "pages" / "dysharp.md").read_text()
    for name in ("dysharp/fig19a.csv", "dysharp/fig2.csv"):
        assert (tmp_path / "pages" / name).read_text() == (PAGES / name).read_text(), "write it anew: dysharp reproduce --all --pages docs/papers"


def test_the_shipped_pages_have_each_reason_of_a_gap_once() -> None:
    """A gap that has closed has no reason on the page any more."""
    with (PAGES / "claims.csv").open(newline="") as file:
        gaps = {(line["figure"], line["claim"]) for line in csv.DictReader(file) if line["verdict"] == "gap"}
    assert gaps
    for name in list_figures():
        drawn = load_figure(name)
        page = (PAGES / f"{drawn.paper or BEYOND}.md").read_text()
        for reason in {check.reason for check in drawn.checks if check.reason}:
            open_ = any(check.reason == reason and (name, check.name) in gaps for check in drawn.checks)
            assert open_ <= page.count(f"| {escaped(reason)} |") <= 1, f"{name}: {reason}"


def test_the_shipped_pages_are_those_of_todays_checks() -> None:
    """Without a run: the stored numbers, and bounds and verdicts as the checks say now."""
    told = {path.name: path.read_text(encoding="utf-8") == text for path, text in bounds.pages().items()}
    assert [name for name, same in told.items() if not same] == [], "write them anew: python bench/bounds.py --pages"


def test_claims_that_came_out_are_counted_by_their_kind() -> None:
    told = _kinds(["within 5 % of 2", "within 1 % of 3", "at least 1", "at least 1, at most 1.2", "at most 2"])
    assert told == ": 2 published numbers within a width, 1 orders alone (at least 1), 2 others"
    assert _kinds([]) == ""


def test_every_figure_of_a_paper_can_be_drawn() -> None:
    for name in ("fig15", "fig16", "fig16g", "fig17", "fig18", "fig20", "fig21", "fig22", "fig23", "fig24", "fig30"):
        drawn = load_figure(name)
        assert drawn.paper == "dysharp"
        fake = {p: {"time_us": 2.0, "exposed_comm_us": 1.0, "utilization": {"up": 0.5, "down": 0.5}} for p in drawn.points}
        series = series_of(drawn, fake)
        assert series is not None, name
        assert len(series.places) > 1, name
        plot_series(series, drawn.title)


def test_an_unknown_kind_of_picture_is_refused(tmp_path: Path) -> None:
    text = 'title = "t"\nsource = "s"\n[points]\nsystems = ["dysharp"]\nmodels = ["S-8"]\n[drawing]\nkind = "pie"\nmetric = "time_us"\nx = "model"\n'
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"drawing.kind: found 'pie'"):
        load_figure(path)


def test_a_destination_that_is_no_folder_is_refused_before_any_point_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = CliRunner().invoke(cli, ["reproduce", "fig2", "--store", str(tmp_path / "store"), "--pages", str(tmp_path / "file")])
    assert isinstance(result.exception, ConfigError)
    assert "expected a folder to write to" in str(result.exception)
    assert not (tmp_path / "store").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_long_names_of_places_are_turned_and_long_legends_take_lines() -> None:
    """Recorded routings have names of 30 letters."""
    places = tuple(f"loads:deepseek-v2-lite:layer={i}" for i in range(4))
    short, long = (
        plot_series(_Series("bars", axis, {name: (1.0,) * 4 for name in names}, {}, "routing", "time"), "title")
        for axis, names in ((("a", "b", "c", "d"), ("x", "y")), (places, places))
    )
    assert [axes.get_xticklabels()[0].get_rotation() for axes in (short, long)] == [0.0, 30.0]
    assert [axes.figure.legends[0]._ncols for axes in (short, long)] == [5, 2]


@pytest.mark.slow
def test_a_page_keeps_the_figures_that_a_command_does_not_run(tmp_path: Path) -> None:
    """Their lines come from the CSV files beside the page."""
    pages, store = tmp_path / "pages", ["--store", str(tmp_path / "store"), "--pages", str(tmp_path / "pages")]
    assert CliRunner().invoke(cli, ["reproduce", "fig2", "fig19a", *store]).exit_code == 0
    both, claims = (pages / "dysharp.md").read_text(), (pages / "claims.csv").read_text()
    assert CliRunner().invoke(cli, ["reproduce", "fig2", *store]).exit_code == 0
    assert (pages / "dysharp.md").read_text().split("\n", 3)[3] == both.split("\n", 3)[3]  # but for the command
    assert (pages / "claims.csv").read_text() == claims


def test_lines_that_differ_in_the_other_system_alone_share_one() -> None:
    lines = [(f"faster than {name}", "at least 1", ours, "reproduced") for name, ours in (("A", "1.1"), ("B, 2", "1.2"), ("C", "1.3"))]
    gap, two = ("faster than D", "at least 1", "0.9", "**gap**"), [("over E", "at least 1", "2", "reproduced")] * 3
    assert _joined([*lines, gap, *two]) == [("faster than", "at least 1", "A 1.1; B, 2 1.2; C 1.3", "reproduced"), gap, *two]


def test_the_headline_is_a_band_over_inferred_choices() -> None:
    """A paper's choice is shown and is not in the band. A value outside the bound is bold and is counted."""
    check = replace(CHECKS[0], reduce="geomean", variants=True)
    variants = [Variant((("hub.al_misses", n),)) for n in (32, 4096)] + [Variant((("machine.vcs_per_class", 4),))]
    drawn = replace(figure(checks=(check,)), variants=tuple(variants), headline=(check.name,))
    found, here = dict[Point, dict[str, float]](), rows(drawn)
    for factor, variant in zip((0.5, 1.1, 0.1), variants, strict=True):
        for p in drawn.points:
            found[_variant_point(p, variant)] = here[p] | {"time_us": here[p]["time_us"] * (1 if p.system == "deepep" else 1 / factor)}
    results, _ = judge(drawn, found | here)
    page = "\n".join(headline(drawn.headline, results))
    assert "Headline, with the band over the inferred choices: over DeepEP 4.243, 2.121 to 4.667." in page
    assert "At 3 of 3 other values at least one of these numbers leaves its published band (bold)." in page
    assert "| `hub.al_misses=32` | inferred | **2.121** |" in page
    assert "| `machine.vcs_per_class=4` | paper | **0.424** |" in page
    assert headline(("no such claim",), results) == []
