"""Figures as TOML: what is refused, and how a claim is judged."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dysharp.base.errors import ConfigError
from dysharp.figures import Check, Figure, Point, in_direction, judge, list_figures, load_figure, variant_points
from dysharp.figures.verdict import Result, _outcome_of, _verdict_of
from dysharp.show.figure_tables import _reasons, verdict_text

TINY = """
title = "tiny"
source = "a test"
[points]
systems = ["dysharp", "deepep"]
models = ["S-8"]
cluster = "paper-gh200-nvl32"
gpus = 4
tokens = 32
routing = ["uniform"]
seeds = [0, 1, 2]
[[check]]
name = "faster"
metric = "speedup"
system = "dysharp"
over = "deepep"
at_least = 0.1
bound_set = "0eb98978 2026-11-21 05:46"
number_seen = "37c83703 2026-11-21 06:02"
"""


def figure_file(tmp_path: Path, text: str = TINY) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return path


def test_every_packaged_figure_loads_and_names_its_source() -> None:
    names = list_figures()
    assert {"fig2", "fig15", "fig16", "fig18", "fig19a", "fig19b", "fig19c", "windows"} <= set(names)
    assert {"imbalance-normal", "imbalance-lognormal", "imbalance-traces"} <= set(names)
    for name in names:
        figure = load_figure(name)
        assert figure.source
        assert figure.points
        assert figure.checks


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('source = "a test"', 'sorce = "a"', r'tiny.toml.sorce: unknown key; did you mean "source"'),
        ("tokens = 32", "tokns = 32", r'points.tokns: unknown key; did you mean "tokens"'),
        ('metric = "speedup"', 'metric = "spedup"', r'check\[0\].metric: found \'spedup\'; did you mean "speedup"'),
        ("at_least = 0.1", 'at_least = 0.1\nreason = "r"', r"found a reason or an ablation command alone, expected both or none"),
        ("at_least = 0.1", 'at_least = 0.1\nreason = "r"\nablation = "a"', r"found a reason without a stored value, expected regression = VALUE"),
        ("at_least = 0.1", "at_least = 0.1\nregression = 1.0", r"found regression = 1.0 and band = None, expected both or none"),
        ("0eb98978 ", "", r"check\[0\].bound_set: found '2026-11-21 05:46', expected a commit and its time such as 'f455060d 2026-11-22 10:45'"),
        ("at_least = 0.1", "at_least = 0.1\nvariants = true", r"found 0 variants, expected \[\[variants\]\] if a check has variants = true"),
        ("[[check]]", '[[variants]]\nchoices = { "machine.vcs" = 4 }\n[[check]]', r"unknown choice 'machine.vcs'; did you mean"),
        ("[[check]]", '[[variants]]\nchoice = { "machine.vcs" = 4 }\n[[check]]', r'variants\[0\].choice: unknown key; did you mean "choices"'),
        ("at_least = 0.1\n", "", r"check\[0\]: found bound_set, number_seen without a bound, expected within, at_least or at_most beside it"),
        ('systems = ["dysharp", "deepep"]', "systems = 5", r"points.systems: found 5, expected a list of systems"),
        ("tokens = 32", 'tokens = "many"', r"points.tokens: found 'many', expected a whole number or a list"),
        ("at_least = 0.1", 'at_least = "x"', r"check\[0\].at_least: found 'x', expected a valid number"),
        ('name = "faster"\n', "", r"check\[0\].name: missing, expected a value"),
        ('over = "deepep"\n', "", r"check\[0\].over: found '', expected a system with the metric speedup"),
        ('over = "deepep"', 'over = "deepe"', r'check\[0\].over: found \'deepe\'; did you mean "deepep"'),
        ('system = "dysharp"', 'system = "dysharpp"', r'check\[0\].system: found \'dysharpp\'; did you mean "dysharp"'),
        ("at_least = 0.1", "within = 0.1", r"check\[0\].within: found a tolerance without the paper's value"),
        ('metric = "speedup"\n', 'metric = "ideal_speedup"\n', r"check\[0\].over: found 'deepep'"),
        ('metric = "speedup"', 'metric = "kept"', r"check\[0\].against: found None, expected a routing with the metric kept"),
    ],
)
def test_a_bad_figure_is_refused_by_name(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in TINY
    with pytest.raises(ConfigError, match=text):
        load_figure(figure_file(tmp_path, TINY.replace(old, new)))


def test_a_figure_may_have_several_tables_of_points(tmp_path: Path) -> None:
    """Two sweeps of one study are no product."""
    second = """[[points]]
systems = ["ideal"]
models = ["M-8"]
[[check]]
"""
    several = TINY.replace("[points]", "[[points]]").replace("[[check]]\n", second, 1)
    figure, alone = load_figure(figure_file(tmp_path, several)), load_figure(figure_file(tmp_path, TINY))
    assert figure.points[:-1] == alone.points
    assert (figure.points[-1].system, figure.points[-1].model) == ("ideal", "M-8")
    with pytest.raises(ConfigError, match=r'points\[1\].modls: unknown key; did you mean "models"'):
        load_figure(figure_file(tmp_path, several.replace('models = ["M-8"]', "modls = []")))


def test_labels_name_what_differs(tmp_path: Path) -> None:
    text = TINY.replace("[[check]]", "grid = { combine_window = [16, 32] }\noptions = { compute = false }\n[[check]]")
    text = text.replace('over = "deepep"', 'reduce = "each"').replace('"speedup"', '"time_us"').replace('["dysharp", "deepep"]', '["dysharp"]')
    text = text.replace("gpus = 4", "gpus = [4, 8]")
    figure = load_figure(figure_file(tmp_path, text.replace("seeds = [0, 1, 2]\n", "")))
    results, _ = judge(figure, {p: {"time_us": 1.0} for p in figure.points})
    model = figure.points[0].model
    assert [r.point for r in results] == [f"faster: {model} {g} GPUs combine_window={w}" for g in (4, 8) for w in (16, 32)]


def test_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'figure \'fig155\': unknown; did you mean "fig15"'):
        load_figure("fig155")


EARLY, LATE = "0eb98978 2026-11-21 05:46", "37c83703 2026-11-21 06:02"
CHECK = Check("c", "speedup", "dysharp", "deepep", paper=2.0, within=0.05, bound_set=EARLY, number_seen=LATE)


def test_every_bound_of_a_packaged_figure_has_its_two_commits() -> None:
    """A blank would give no verdict; a factor of two on a grid of powers of two would not judge."""
    checks = [(name, check) for name in list_figures() for check in load_figure(name).checks if check.bounded]
    assert [(name, check.name) for name, check in checks if not (check.bound_set and check.number_seen)] == []
    assert [(name, check.name) for name, check in checks if check.metric == "knee_over_law"] == []


def judged(check: Check, *, slow: float, fast: float) -> bool:
    a, b = Point("dysharp", "S-8", "c", "uniform"), Point("deepep", "S-8", "c", "uniform")
    figure = Figure("f", "t", "s", (a, b), (check,))
    results, holds = judge(figure, {a: {"time_us": fast}, b: {"time_us": slow}})
    assert results[0].ours == pytest.approx(slow / fast)
    return holds


def outcome(check: Check, value: float) -> str:
    assert judged(check, slow=value, fast=1.0) is (_outcome_of(check, value) in ("holds", "gap has closed", "gap has shrunk"))
    return _outcome_of(check, value)


@pytest.mark.parametrize(
    ("data", "value", "verdict"),
    [
        ({}, 2.05, "reproduced"),
        ({"number_seen": ""}, 2.05, "inside"),
        ({"number_seen": EARLY}, 2.05, "set after"),
        ({"number_seen": EARLY, "bound_set": LATE}, 2.05, "set after"),
        ({"bound_set": ""}, 2.05, "inside"),
        ({"cannot_fail": "a closed form"}, 2.05, "cannot fail"),
        ({"fitted": "an input was chosen", "cannot_fail": "a closed form"}, 2.05, "fitted"),
        ({"fitted": "an input was chosen", "cannot_fail": "a closed form"}, 2.2, "gap"),
        ({"within": None, "regression": 2.0, "band": 0.5}, 2.2, "regression"),
        ({"within": None}, 2.2, ""),
    ],
)
def test_the_verdict_comes_from_the_data(data: dict[str, Any], value: float, verdict: str) -> None:
    assert _verdict_of(replace(CHECK, **data), value) == verdict


def test_outcomes() -> None:
    assert judged(CHECK, slow=2.05, fast=1.0)
    assert outcome(CHECK, 2.2) == "does not hold", "outside without a reason"
    gap = replace(CHECK, reason="r", ablation="a", regression=2.2, band=0.01)
    assert outcome(gap, 2.2) == "holds"
    assert outcome(gap, 2.05) == "gap has closed"
    assert outcome(gap, 2.15) == "gap has shrunk"
    assert outcome(gap, 5.0) == "not the stored value", "a gap that grows is seen"
    assert outcome(replace(CHECK, regression=2.05, band=0.01), 2.05) == "holds"
    assert outcome(replace(CHECK, regression=2.05, band=0.01), 2.08) == "not the stored value", "inside the tolerance, but moved"
    assert outcome(Check("c", "speedup", "dysharp", "deepep", regression=2.0, band=0.01), 2.2) == "not the stored value"


def test_regression_values_add_to_no_count_of_what_came_out() -> None:
    """A claim over several points has the worst verdict of them."""
    inside, outside = (Result("c: x", "m", None, 1.0, "at most 1", verdict, "holds", claim="c") for verdict in ("reproduced", "gap"))
    stored = Result("d", "m", None, 1.0, verdict="regression", outcome="holds", claim="d")
    assert verdict_text([inside, stored]) == "1 with a bound: 1 came out; regression values: 1 of 1 as stored"
    assert verdict_text([inside, outside]) == "1 with a bound: 1 did not come out"


def test_claims_over_all_points_are_not_judged_on_some() -> None:
    a, b = Point("dysharp", "S-8", "c", "uniform"), Point("deepep", "S-8", "c", "uniform")
    figure = Figure("f", "t", "s", (a, b, replace(a, model="M-8")), (CHECK,))
    results, holds = judge(figure, {a: {"time_us": 1.0}, b: {"time_us": 9.0}})
    assert holds
    assert results[0].verdict == "not judged"
    assert verdict_text(results) == "nothing judged: 1 number needs all points of the figure"
    assert verdict_text(results * 2) == "nothing judged: 2 numbers need all points of the figure"
    because = replace(results[0], reason="why")
    assert _reasons([because]) == []
    assert _reasons([replace(because, verdict="gap")]) == [([because.point], "why")]


def test_axes_multiply_and_sizes_may_be_lists(tmp_path: Path) -> None:
    figure = load_figure(figure_file(tmp_path, TINY.replace("tokens = 32", "tokens = [32, 64]").replace("gpus = 4", "gpus = [4, 8]")))
    assert len(figure.points) == 2 * 3 * 2 * 2
    assert {(p.gpus, p.tokens) for p in figure.points} == {(4, 32), (4, 64), (8, 32), (8, 64)}
    assert figure.points[0].label == "dysharp S-8 uniform 4 GPUs 32 tokens per GPU"


def test_kept_is_a_ratio_of_speed_ups() -> None:
    times = {("dysharp", "uniform"): 1.0, ("deepep", "uniform"): 2.0, ("dysharp", "normal:0.1"): 2.0, ("deepep", "normal:0.1"): 3.0}
    rows = {Point(system, "S-8", "c", routing): {"time_us": t} for (system, routing), t in times.items()}
    check = Check("c", "kept", "dysharp", "deepep", routing="normal:0.1", against="uniform", at_least=0.7)
    (result,), holds = judge(Figure("f", "t", "s", tuple(rows), (check,)), rows)
    assert result.ours == pytest.approx(1.5 / 2.0)
    assert holds


def test_a_check_takes_the_points_with_its_options() -> None:
    points = [Point("dysharp", "S-8", "c", "uniform", options=(("w", w),)) for w in (4, 8, 16)]
    rows = {p: {"time_us": 10.0 + i} for i, p in enumerate(points)}
    check = Check("c", "time_us", "dysharp", reduce="each", options={"w": [8, 16]})
    results, _ = judge(Figure("f", "t", "s", tuple(points), (check,)), rows)
    assert [r.ours for r in results] == [11.0, 12.0]
    assert results[0].point == "c: S-8 w=8"


def test_a_geomean_needs_positive_values() -> None:
    a, b = Point("dysharp", "S-8", "c", "uniform"), Point("deepep", "S-8", "c", "uniform")
    traffic = [{"traffic_bytes": {side: {"dispatch": n, "combine": n} for side in ("up", "down")}} for n in (2, 1)]
    figure = Figure("f", "t", "s", (a, b), (Check("c", "traffic_cut", "dysharp", "deepep"),))
    with pytest.raises(ConfigError, match=r"geomean: found -1 among the values, expected only positive ones"):
        judge(figure, dict(zip((a, b), traffic, strict=True)))


def test_a_gap_says_how_to_see_it() -> None:
    gap = replace(CHECK, reason="because", ablation="dysharp run x", regression=9.0, band=0.01)
    a, b = Point("dysharp", "S-8", "c", "uniform"), Point("deepep", "S-8", "c", "uniform")
    (result,), _ = judge(Figure("f", "t", "s", (a, b), (gap,)), {a: {"time_us": 1.0}, b: {"time_us": 9.0}})
    assert result.reason == "because. Run: dysharp run x"


def test_a_claim_without_a_point_does_not_hold() -> None:
    a = Point("deepep", "S-8", "c", "uniform")
    results, holds = judge(Figure("f", "t", "s", (a, replace(a, system="dysharp")), (CHECK,)), {a: {"time_us": 1.0}})
    assert results[0].ours is None
    assert results[0].outcome == "no point was run"
    assert not holds


def test_points_may_have_directions(tmp_path: Path) -> None:
    figure = load_figure(figure_file(tmp_path, TINY.replace("tokens = 32", 'tokens = 32\ndirection = ["fwd", "both"]')))
    assert [p.direction for p in figure.points if p.seed == 0] == ["fwd", "fwd", "both", "both"]
    last = figure.points[-1]
    assert last.command()[last.command().index("--direction") + 1] == "both"
    assert last.label.endswith("both")
    assert "--direction" not in figure.points[0].command()
    with pytest.raises(ConfigError, match=r"points.direction: found 'up'; expected one of both, bwd, fwd"):
        load_figure(figure_file(tmp_path, TINY.replace("tokens = 32", 'tokens = 32\ndirection = "up"')))


def test_nothing_is_claimed_of_another_pass(tmp_path: Path) -> None:
    figure = load_figure(figure_file(tmp_path))
    assert in_direction(figure, "fwd") == figure
    other = in_direction(figure, "bwd")
    assert {p.direction for p in other.points} == {"bwd"}
    assert other.title == "tiny; with --direction bwd"
    rows = {p: {"time_us": 100.0 if p.system == "dysharp" else 1.0} for p in other.points}
    results, holds = judge(other, rows)
    assert holds
    assert [r.verdict for r in results] == [""]
    assert not judge(figure, {replace(p, direction="fwd"): row for p, row in rows.items()})[1]
    closed = load_figure("fig2")
    assert {p.direction for p in in_direction(closed, "both").points} == {"fwd"}


VARIANTS = """[[variants]]
choices = { "dysharp.replica_form" = "extension" }
systems = ["dysharp"]
[[variants]]
choices = { "machine.vcs_per_class" = 4 }
[[check]]"""


def test_variants_run_only_what_they_change(tmp_path: Path) -> None:
    text = TINY.replace("[0, 1, 2]", "[0]").replace("[[check]]", VARIANTS).replace("at_least = 0.1", "at_least = 0.1\nvariants = true")
    figure = load_figure(figure_file(tmp_path, text.replace('"deepep"]', '"deepep", "nvls"]')))
    ours, deepep, _ = figure.points
    points = variant_points(figure, figure.points)
    extension = replace(ours, choices=(("dysharp.replica_form", "extension"),))
    fewer, slower = (replace(p, choices=(("machine.vcs_per_class", 4),)) for p in (ours, deepep))
    assert points == [extension, deepep, fewer, slower], "no check names nvls"
    rows = {ours: 10.0, deepep: 20.0, extension: 12.0, fewer: 10.0, slower: 0.5, figure.points[2]: 1.0}
    results, holds = judge(figure, {p: {"time_us": t} for p, t in rows.items()})
    assert holds, "a variant claims nothing"
    assert [(r.point, r.ours, r.verdict, r.outcome) for r in results] == [
        ("faster", 2.0, "reproduced", "holds"),
        ("faster; dysharp.replica_form=extension", pytest.approx(20 / 12), "other choice", "within"),
        ("faster; machine.vcs_per_class=4", pytest.approx(0.05), "other choice", "outside"),
    ]
    assert not in_direction(figure, "bwd").variants


def test_a_variant_may_touch_one_fidelity_only() -> None:
    figure = load_figure("fig15-channels")
    points = variant_points(figure, figure.points)
    assert {p.choices for p in points if p.fidelity == "packet"} == {()}
    assert {dict(p.choices)["machine.vcs_per_class"] for p in points if p.fidelity == "burst"} == {2, 4}


def test_burst_level_over_packet_level() -> None:
    burst = Point("deepep", "S-8", "c", "uniform", tokens=8)
    packet = replace(burst, fidelity="packet", options=(("fabric.al_entries", 0),))
    check = Check("c", "over_packet", "deepep", reduce="each", at_least=0.97, bound_set=EARLY)
    rows = {burst: {"time_us": 9.0}, packet: {"time_us": 10.0}, replace(packet, system="comet"): {"time_us": 1.0}}
    (result,), holds = judge(Figure("f", "t", "s", tuple(rows), (check,)), rows)
    assert (result.ours, holds) == (0.9, False)


def test_every_bound_of_a_packaged_figure_has_its_commit_and_every_stored_value_holds() -> None:
    for name in list_figures():
        figure = load_figure(name)
        assert any(check.judged for check in figure.checks), name
        for check in figure.checks:
            assert not check.bounded or check.bound_set, (name, check.name)
            if check.regression is not None:
                assert _outcome_of(check, check.regression) == "holds", (name, check.name)


def test_free_choices_are_an_axis(tmp_path: Path) -> None:
    figure = load_figure(figure_file(tmp_path, TINY.replace("seeds = [0, 1, 2]", 'choices = { "gemm.tile_rows" = [64, 128] }')))
    assert {p.choices for p in figure.points} == {(("gemm.tile_rows", 64),), (("gemm.tile_rows", 128),)}
    assert len(figure.points) == 4


def test_a_free_choice_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gemm.tile_rows.*found 7, expected 64 to 256"):
        load_figure(figure_file(tmp_path, TINY.replace("seeds = [0, 1, 2]", 'choices = { "gemm.tile_rows" = [7] }')))


def sized(*times: float) -> dict[Point, dict[str, float]]:
    return {Point("dysharp", "S-8", "c", "uniform", gpus=4 * 2**i): {"time_us": t} for i, t in enumerate(times)}


def test_growth_is_the_smallest_step_of_a_model() -> None:
    rows = sized(2.0, 3.0, 3.3)
    check = Check("c", "time_us", "dysharp", reduce="growth", at_least=1.0)
    (result,), holds = judge(Figure("f", "t", "s", tuple(rows), (check,)), rows)
    assert result.ours == pytest.approx(1.1)
    assert holds
    falls = sized(2.0, 3.0, 2.9)
    assert not judge(Figure("f", "t", "s", tuple(falls), (check,)), falls)[1]


def test_two_points_have_a_growth() -> None:
    rows = {Point("dysharp", "S-8", "c", "uniform", tokens=n): {"time_us": float(n)} for n in (128, 256)}
    check = Check("c", "time_us", "dysharp", reduce="growth", at_least=2.0)
    results, _ = judge(Figure("f", "t", "s", tuple(rows), (check,)), rows)
    assert [(r.ours, r.outcome) for r in results] == [(2.0, "holds")]


def test_growth_needs_two_points() -> None:
    rows = sized(2.0)
    with pytest.raises(ConfigError, match=r"growth: found one point per model, expected at least two"):
        judge(Figure("f", "t", "s", tuple(rows), (Check("c", "time_us", "dysharp", reduce="growth"),)), rows)


def test_a_check_takes_the_points_of_its_size() -> None:
    rows = sized(2.0, 3.0, 7.0)
    results, _ = judge(Figure("f", "t", "s", tuple(rows), (Check("c", "time_us", "dysharp", reduce="median", gpus=8),)), rows)
    assert [r.ours for r in results] == [3.0]


def test_a_size_without_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"check\[0\].gpus: found 5, expected one of the points: 4"):
        load_figure(figure_file(tmp_path, TINY + "gpus = 5\n"))


def test_link_use_is_the_mean_of_both_directions() -> None:
    point = Point("dysharp", "S-8", "c", "uniform")
    rows = {point: {"utilization": {"up": 0.9, "down": 0.5}}}
    checks = tuple(Check(name, name, "dysharp", reduce="min") for name in ("up_use", "down_use", "link_use"))
    results, _ = judge(Figure("f", "t", "s", (point,), checks), rows)
    assert [r.ours for r in results] == pytest.approx([0.9, 0.5, 0.7])


def test_use_ratio_compares_busy_links() -> None:
    full, basic = (Point(system, "S-8", "c", "uniform") for system in ("dysharp", "dysharp-basic"))
    rows = {full: {"utilization": {"up": 0.9, "down": 0.7}}, basic: {"utilization": {"up": 0.5, "down": 0.3}}}
    check = Check("c", "use_ratio", "dysharp", "dysharp-basic", reduce="min", at_least=1.0)
    (result,), holds = judge(Figure("f", "t", "s", (full, basic), (check,)), rows)
    assert result.ours == pytest.approx(2.0)
    assert holds
