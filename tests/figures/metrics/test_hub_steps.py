"""MoE-Hub end to end: layers made by hand beside closed forms of an H800."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dysharp.figures import load_figure
from dysharp.figures.metric import Rows, Seen, all_metrics
from dysharp.figures.metrics import hub_steps
from dysharp.runs.point import Point
from dysharp.specs.choices import choices_overridden

HUB = Point("moe-hub", "paper-mixtral-8x7b", "paper-dgx-h800", "", tokens=512)
OTHER = replace(HUB, system="tutel", options=(("mediation", True),))
BACK = {p: replace(p, direction="bwd") for p in (HUB, OTHER)}
ROWS: Rows = {HUB: {"time_us": 1000.0}, OTHER: {"time_us": 2000.0}, BACK[HUB]: {"time_us": 1500.0}, BACK[OTHER]: {"time_us": 2200.0}}


def value(metric: str, at: Point = OTHER, rows: Rows = ROWS, over: str = "moe-hub") -> Any:
    return all_metrics()[metric].value(Seen(at, rows, over))


def test_what_is_beside_a_layer_is_added_to_both() -> None:
    ahead, behind = hub_steps.beside_us(Seen(HUB, ROWS))
    assert value("end_to_end_over") == pytest.approx((2000 + ahead) / (1000 + ahead))
    assert value("both_passes_over") == pytest.approx((4200 + ahead + behind) / (2500 + ahead + behind))
    assert value("beside_moe") == pytest.approx(ahead / (2000 + ahead))
    assert 1 < value("end_to_end_over") < 2
    assert value("end_to_end_over", BACK[OTHER]) is None
    assert value("both_passes_over", rows={HUB: ROWS[HUB], OTHER: ROWS[OTHER]}) is None


def test_mixtrals_attention_by_hand() -> None:
    """At peak: projections of 4096 x (4096 + 2 x 1024 + 4096) in BF16, which read weights; attention over 512 tokens is small."""
    with choices_overridden({"paper_step.hub_rate": "peak"}):
        ahead, behind = hub_steps.beside_us(Seen(HUB, ROWS))
    products = 2 * 512 * 4096 * (2 * 4096 + 2 * 1024) / 989.5e6
    assert products < ahead < 3 * products
    assert behind > 2 * products


def test_launches_take_time_at_short_lengths() -> None:
    plain = hub_steps.beside_us(Seen(HUB, ROWS))[0]
    with choices_overridden({"paper_step.hub_rate": "launched"}):
        launched = hub_steps.beside_us(Seen(HUB, ROWS))[0]
    with choices_overridden({"paper_step.hub_rate": "peak"}):
        peak = hub_steps.beside_us(Seen(HUB, ROWS))[0]
    assert peak < plain < launched


def test_the_best_options_count_once() -> None:
    slow = replace(OTHER, system="fastermoe", options=(("group", 4),))
    fast = replace(OTHER, system="fastermoe", options=(("group", 8),))
    rows = ROWS | {slow: {"time_us": 3000.0}, fast: {"time_us": 1800.0}}
    assert value("best_end_to_end_over", slow, rows) is None
    assert value("best_end_to_end_over", fast, rows) == value("end_to_end_over", fast, rows)


def test_the_figure_has_both_readings() -> None:
    figure = load_figure("hub-steps")
    averages = [c for c in figure.checks if c.name.startswith("average")]
    assert len(averages) == 12
    assert {(c.at_least, c.at_most) for c in averages} == {(1.21, 1.98)}
    assert {c.model for c in figure.points} == set(hub_steps.MODELS)
    bars = [c for c in figure.checks if "bar over" in c.name and c.bounded]
    assert [(c.at_least, c.paper) for c in bars] == [(1.21, None), (None, 1.98)]
