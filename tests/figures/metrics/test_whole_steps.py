"""Training steps of the papers: layers made by hand, against arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from dysharp.figures import judge, load_figure, variant_points
from dysharp.figures.figure import Variant
from dysharp.figures.metric import Rows, Seen, all_metrics
from dysharp.figures.metrics import whole_steps
from dysharp.figures.verdict import _variant_point
from dysharp.runs.point import Point
from dysharp.specs.choices import Scalar, choices_overridden

BASE = Point("dysharp", "L-8", "paper-gh200-nvl32", "uniform")
FIGURES = ("fig14", "fig28", "fig29", "fig31")


def row(time: float, exposed: float = 0.0) -> dict[str, Any]:
    """A layer that sends all the time."""
    phases = {"dispatch": {"start": 0.0, "end": time / 2, "busy": time / 2}, "combine": {"start": time / 2, "end": time, "busy": time / 2}}
    return {"time_us": time, "exposed_comm_us": exposed, "phases_us": phases}


def value(metric: str, rows: Rows, over: str = "", at: Point = BASE) -> float | None:
    return all_metrics()[metric].value(Seen(at, rows, over))


def both(times: float = 2.0) -> Rows:
    """DySHARP, whose links bind it, and DeepEP that takes `times` as long and exposes what is more."""
    return {BASE: row(5000.0, 3000.0), replace(BASE, system="deepep"): row(times * 5000.0, 3000.0 + (times - 1) * 5000.0)}


def test_a_backward_pass_is_the_longer_of_links_and_gemms() -> None:
    """Two matrices of L-8 take 1.944 ms at the FP8 peak, so twice as much backward."""
    gemms = 2 * 2 * 8192 * 8 * 7168 * 2048 * 2 / 1979e6
    long, short = whole_steps._layer_times(Seen(BASE, {BASE: row(5000.0)})), whole_steps._layer_times(Seen(BASE, {BASE: row(2780.0, 800.0)}))
    assert long is not None
    assert long.backward == 5000.0
    assert short is not None
    assert short.backward == pytest.approx(gemms, rel=0.001)
    assert (short.forward_exposed, short.backward_exposed) == (800.0, 0.0)


def test_few_tokens_grow_along_the_line_to_one_sequence() -> None:
    """From 512 and 1024 tokens to 8192: eight times 300 us, and the start of 10 us once."""
    half, full = replace(BASE, tokens=512), replace(BASE, tokens=1024)
    rows: Rows = {half: row(160.0, 20.0), full: row(310.0, 40.0)}
    assert whole_steps._forward_times(Seen(full, rows)) == pytest.approx((2410.0, 320.0, 2410.0))
    assert whole_steps._forward_times(Seen(half, rows)) is None
    assert value("step_speedup", rows, "deepep", full) is None


def test_another_pass_has_no_step() -> None:
    back = replace(BASE, direction="bwd")
    assert whole_steps._layer_times(Seen(back, {back: row(5000.0)})) is None


def test_work_beside_the_layer_brings_the_ratio_nearer_to_one() -> None:
    """(times + X) / (1 + X), X = work beside the layer over DySHARP's layer; sends and gradients, equal for both, take up to 4 % more of it."""
    rows = both(2.0)
    layer, beside = value("both_passes_speedup", rows, "deepep"), value("beside_share", rows)
    step = value("step_speedup", rows, "deepep")
    assert layer == pytest.approx(2.0)
    assert layer
    assert beside
    assert step
    alone = (layer + beside) / (1 + beside)
    assert 0.96 * alone < step < alone
    with choices_overridden({"step.nic_rate": 100}):
        faster = value("step_speedup", rows, "deepep")
    assert faster
    assert step < faster < alone


def test_projections_and_attention_are_counted_by_hand() -> None:
    """L-8: four projections of 7168 x 7168, causal attention over 8192 tokens, forward once, backward twice and 2.5 times; the router in BF16."""
    found = value("beside_share", {BASE: row(5000.0)})
    tokens, hidden, peak = 8192, 7168, 1979e6
    pairs = tokens * (tokens + 1) / 2
    products = 3 * 4 * 2 * tokens * hidden * hidden + 3 * 2 * 2 * tokens * hidden * 256
    attention = 3.5 * 2 * 2 * hidden * pairs
    assert found == pytest.approx((products + attention) / peak / 10000, rel=0.02)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("choice", "grows"),
    [
        ({"paper_step.attention": "mla"}, True), ({"paper_step.attention_rate": "bf16"}, True), ({"paper_step.attention_rate": "flash"}, True),
        ({"paper_step.causal": "no"}, True), ({"paper_step.operators": "all"}, True),
    ],
)  # fmt: skip
def test_more_beside_the_layer_lowers_a_gain(choice: dict[str, Scalar], grows: bool) -> None:
    rows = both()
    plain, share = value("step_speedup", rows, "deepep"), value("beside_share", rows)
    with choices_overridden(choice):
        other, larger = value("step_speedup", rows, "deepep"), value("beside_share", rows)
    assert plain
    assert other
    assert share
    assert larger
    assert (larger > share) == grows
    assert (other < plain) == grows


def test_a_head_on_the_last_stage_is_equal_for_all_systems() -> None:
    rows = both()
    plain = value("step_speedup", rows, "deepep")
    with choices_overridden({"paper_step.vocab": 129280}):
        head = value("step_speedup", rows, "deepep")
    assert plain
    assert head
    assert 1 < head < plain


def test_weight_gradients_in_order_add_their_gemms_to_a_forward_pass() -> None:
    with choices_overridden({"paper_step.weights": "order"}):
        found = whole_steps._layer_times(Seen(BASE, {BASE: row(5000.0, 3000.0)}))
    assert found is not None
    gemms = 2 * 8192 * 8 * 7168 * 2048 * 2 / 1979e6
    assert found.backward == pytest.approx(5000 + gemms, rel=0.001)
    assert found.backward_exposed == pytest.approx(5000 - gemms, rel=0.001)


def test_dualpipe_hides_what_deepep_exposes_and_loses_sms() -> None:
    rows = both(3.0)
    deepep, dualpipe = value("step_speedup", rows, "deepep"), value("step_over_dualpipe", rows)
    assert deepep
    assert dualpipe
    assert 1 < dualpipe < deepep
    assert value("step_over_dualpipe", {BASE: row(5000.0)}) is None  # no layers of DeepEP
    there = Seen(replace(BASE, system="deepep"), rows)
    one, other = whole_steps.step_us(there), whole_steps.step_us(there, dualpipe=True)
    assert one
    assert other
    assert other < one


@pytest.mark.slow
def test_free_inputs_do_not_run_a_layer_again_and_reach_the_metric() -> None:
    figure = load_figure("fig14")
    names = [name for variant in figure.variants for name, _ in variant.choices]
    assert all(_variant_point(p, v) == p for v in figure.variants for p in figure.points)
    assert set(variant_points(figure, figure.points)) <= set(figure.points)
    assert {"paper_step.attention", "paper_step.layers", "paper_step.micro_batches", "paper_step.weights", "step.nic_rate"} <= set(names)
    points = tuple(both())
    check = replace(next(c for c in figure.checks if c.name == "mean over DeepEP"), regression=None, band=None, reason="", ablation="")
    variants = tuple(v for v in figure.variants if v in (Variant((("paper_step.attention", "mla"),)), Variant((("paper_step.weights", "order"),))))
    small = replace(figure, points=points, checks=(check,), models=("L-8",), variants=variants)
    lines, _ = judge(small, both())
    ours = [line.ours for line in lines]
    assert len(ours) == 3
    assert len(set(ours)) == 3
    with choices_overridden({"paper_step.attention": "mla"}):
        assert ours[1] == value("step_speedup", both(), "deepep")


@pytest.mark.parametrize("name", FIGURES)
def test_every_model_of_a_figure_has_one_step(name: str) -> None:
    """So a check has one value per model and cluster."""
    figure = load_figure(name)
    rows: Rows = {p: row(10.0 + (p.tokens or 0)) for p in figure.points}
    with_step = [p for p in figure.points if whole_steps._layer_times(Seen(p, rows))]
    assert len(with_step) == len(_names(with_step))
    assert _names(with_step) == _names(figure.points)
    assert {c.metric for c in figure.checks if c.bounded} == {"step_speedup", "step_over_dualpipe"}


def test_figure_14_runs_no_layer_that_figure_15_does_not_have() -> None:
    assert set(load_figure("fig14").points) <= set(load_figure("fig15").points)


def _names(points: Iterable[Point]) -> set[tuple[str, str, str]]:
    return {(p.system, p.model, p.cluster) for p in points}


def test_the_fourteen_published_ratios_are_bounded() -> None:
    """DySHARP's text: largest and mean over seven baselines."""
    checks = [c for c in load_figure("fig14").checks if c.paper]
    assert sorted(c.paper or 0 for c in checks) == sorted([2.31, 5.12, 2.11, 1.98, 1.85, 1.79, 1.88, 1.93, 3.38, 1.84, 1.72, 1.63, 1.59, 1.66])
    assert {c.within for c in checks} == {0.1}
    assert all(bool(c.fitted) == (c.reduce == "geomean" and bool(c.over)) for c in checks)
