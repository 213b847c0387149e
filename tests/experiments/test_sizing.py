"""Figures 25 and 26: measures of table sizes on rows made by hand, the files, and that a size reaches the fabric."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dysharp
from dysharp.errors import ConfigError
from dysharp.experiments import load_figure, sizing
from dysharp.experiments.figure import Point
from dysharp.experiments.worker import row_of

BASE = Point("dysharp", "S-8", "paper-gh200-nvl32", "uniform", tokens=64, fidelity="packet")


def point(entries: int, window: int = 16, name: str = "al_entries") -> Point:
    return replace(BASE, options=(("dispatch_window", window), (f"fabric.{name}", entries)))


def row(time: float, flits: int = 100, **blocks: Any) -> dict[str, Any]:
    counted = {"up": {"store": flits, "ack": 3}, "down": {"copy": 2 * flits - 3}}
    return {"time_us": time, "blocks": {"flits": counted, **blocks}}


def test_knee_is_the_smallest_size_within_one_per_cent() -> None:
    times = {64: 30.0, 128: 20.3, 256: 20.2, 512: 20.1, 0: 20.0}
    rows = {point(n): row(t) for n, t in times.items()} | {point(n, window=64): row(2 * t) for n, t in times.items()}
    assert [sizing.knee(p, rows) for p in rows] == [None, None, None, None, 256.0] * 2
    assert sizing.over_infinite(point(64), rows) == pytest.approx(1.5)
    assert sizing.over_infinite(point(0), rows) == 1.0
    assert sizing.knee(replace(BASE, options=()), {replace(BASE, options=()): row(1.0)}) is None


def test_without_an_infinite_point_the_largest_table_is_the_base() -> None:
    rows = {point(n): row(t) for n, t in {64: 25.0, 512: 20.1, 65536: 20.0}.items()}
    assert sizing.over_infinite(point(64), rows) == pytest.approx(1.25)
    assert [sizing.knee(p, rows) for p in rows] == [None, None, 512.0]


def test_rates_and_the_law() -> None:
    blocks = {
        "al_tlb": {"lookups": 100, "hits": 60, "misses": 30},
        "reduction": {"sessions": 50, "evictions": 5, "occupancy": {"mean": 10.0, "max": 24}},
        "ports": 8,
    }
    p = point(8, name="reduction_entries")
    rows = {p: row(20.0, flits=120, **blocks), sizing.with_size(p, 0): row(20.0, flits=100, **blocks)}
    assert sizing.al_hit_rate(p, rows) == 0.6
    assert sizing.al_read_rate(p, rows) == 0.3
    assert sizing.no_eviction_rate(p, rows) == 0.9
    assert sizing.extra_flits(p, rows) == pytest.approx(0.2)
    assert sizing.lifetime_us(p, rows) == 4.0  # 10 sessions at 2.5 per us
    assert sizing.peak_sessions(p, rows) == 3.0


@pytest.mark.parametrize(("name", "option"), [("fig25", "fabric.al_entries"), ("fig26", "fabric.reduction_entries")])
def test_figures_sweep_their_table_at_packet_level(name: str, option: str) -> None:
    figure = load_figure(name)
    assert {p.fidelity for p in figure.points} == {"packet"}
    assert all(sizing.size_of(p) == (option, dict(p.options)[option]) for p in figure.points)
    rows: dict[Point, dict[str, Any]] = {p: {} for p in figure.points}
    bases = {sizing.largest(p, rows) for p in rows}
    assert bases <= set(figure.points)
    assert {dict(p.options)[option] for p in bases} == ({0} if name == "fig26" else {65536})
    words = figure.points[0].command()
    assert f"{option}={dict(figure.points[0].options)[option]}" in words
    assert words[words.index("--fidelity") + 1] == "packet"


def test_a_size_reaches_the_fabric_and_costs_what_it_adds() -> None:
    points = [replace(BASE, gpus=4, tokens=24, options=(("fabric.reduction_entries", n),)) for n in (1, 0)]
    rows = {p: row_of(p) for p in points}
    small, infinite = (rows[p]["blocks"] for p in points)
    assert small["config"]["reduction_entries"] == 1
    assert small["reduction"]["evictions"] > infinite["reduction"]["evictions"] == 0
    assert (sizing.extra_flits(points[0], rows) or 0) > 0
    assert (sizing.no_eviction_rate(points[0], rows) or 1) < 1 == sizing.no_eviction_rate(points[1], rows)


@pytest.mark.parametrize(
    ("options", "fidelity", "text"),
    [
        ({"fabric.al_entris": 4}, "packet", 'option fabric.al_entris: unknown; did you mean "al_entries"?'),
        ({"fabric.al_entries": -1}, "packet", r"option fabric.al_entries: found -1, expected at least 0 \(0 = infinite\)"),
        ({"fabric.al_entries": "many"}, "packet", "option fabric.al_entries: found 'many', expected a whole number"),
        ({"fabric.al_entries": 4}, "burst", "option 'fabric.al_entries': found fidelity \"burst\", expected \"packet\""),
    ],
)
def test_wrong_sizes(options: dict[str, Any], fidelity: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        dysharp.run("dysharp", model="S-8", gpus=4, tokens=8, routing="uniform", fidelity=fidelity, options=options)
