"""Figures 25 and 26: measures of table sizes on rows made by hand, the files, and that a size reaches the fabric."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.figures import load_figure
from dysharp.figures.metric import Seen, all_metrics
from dysharp.figures.metrics import sizing
from dysharp.figures.origin import row_of
from dysharp.runs.point import Point

BASE = Point("dysharp", "S-8", "paper-gh200-nvl32", "uniform", tokens=64, fidelity="packet")


def point(entries: int, window: int = 16, name: str = "al_entries") -> Point:
    return replace(BASE, options=(("dispatch_window", window), (f"fabric.{name}", entries)))


def row(time: float, flits: int = 100, **blocks: Any) -> dict[str, Any]:
    counted = {"up": {"store": flits, "ack": 3}, "down": {"copy": 2 * flits - 3}}
    return {"time_us": time, "blocks": {"flits": counted, **blocks}}


def value(metric: str, at: Point, rows: dict[Point, dict[str, Any]]) -> float | None:
    return all_metrics()[metric].value(Seen(at, rows))


def test_knee_is_the_smallest_size_within_one_per_cent() -> None:
    times = {64: 30.0, 128: 20.3, 256: 20.2, 512: 20.1, 0: 20.0}
    rows = {point(n): row(t) for n, t in times.items()} | {point(n, window=64): row(2 * t) for n, t in times.items()}
    assert [value("knee", p, rows) for p in rows] == [None, None, None, None, 256.0] * 2
    assert value("over_infinite", point(64), rows) == pytest.approx(1.5)
    assert value("over_infinite", point(0), rows) == 1.0
    assert value("knee", replace(BASE, options=()), {replace(BASE, options=()): row(1.0)}) is None


def test_without_an_infinite_point_the_largest_table_is_the_base() -> None:
    rows = {point(n): row(t) for n, t in {64: 25.0, 512: 20.1, 65536: 20.0}.items()}
    assert value("over_infinite", point(64), rows) == pytest.approx(1.25)
    assert [value("knee", p, rows) for p in rows] == [None, None, 512.0]


def test_rates() -> None:
    blocks = {
        "al_tlb": {"lookups": 100, "hits": 60, "misses": 30},
        "reduction": {"sessions": 50, "evictions": 5, "occupancy": {"mean": 10.0, "max": 24}},
        "ports": 8,
    }
    p = point(8, name="reduction_entries")
    rows = {p: row(20.0, flits=120, **blocks), sizing._infinite(p): row(20.0, flits=100, **blocks)}
    assert value("al_hit_rate", p, rows) == 0.6
    assert value("al_read_rate", p, rows) == 0.3
    assert value("no_read_rate", p, rows) == 0.7
    assert value("hit_over_infinite", p, rows) == 1.0
    assert value("no_eviction_rate", p, rows) == 0.9
    assert value("extra_flits", p, rows) == pytest.approx(0.2)
    assert value("lifetime_us", p, rows) == 4.0  # 10 sessions at 2.5 per us
    assert value("peak_sessions", p, rows) == 3.0


@pytest.mark.parametrize(("name", "option"), [("fig25", "fabric.al_entries"), ("fig26", "fabric.reduction_entries")])
def test_figures_sweep_their_table_at_packet_level(name: str, option: str) -> None:
    figure = load_figure(name)
    assert {p.fidelity for p in figure.points} == {"packet"}
    assert all(sizing._size_of(p) == (option, dict(p.options)[option]) for p in figure.points)
    rows: dict[Point, dict[str, Any]] = {p: {} for p in figure.points}
    bases = {base.point for p in rows if (base := sizing._largest(Seen(p, rows)))}
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
    assert (value("extra_flits", points[0], rows) or 0) > 0
    assert (value("no_eviction_rate", points[0], rows) or 1) < 1 == value("no_eviction_rate", points[1], rows)


def test_a_point_with_both_tables_sweeps_the_reduction_table() -> None:
    both = replace(BASE, options=(("fabric.al_entries", 0), ("fabric.reduction_entries", 32)))
    assert sizing._size_of(both) == ("fabric.reduction_entries", 32)


def test_law_of_rows_counts_both_operators_and_no_more_rows_than_there_are() -> None:
    def rows_of(per_hub: int) -> dict[Point, dict[str, Any]]:
        visits = {"dispatch_per_us": 60.0, "combine_per_us": 40.0, "lifetime_us": 2.0, "rows_per_hub": per_hub}
        reads = {64: 60, 128: 31, 256: 30, 65536: 30}
        return {point(n): row(20.0, al_tlb={"lookups": 2000, "misses": m, "rows": visits if n == 65536 else None}) for n, m in reads.items()}

    large = point(65536)
    rows = rows_of(1000)
    assert value("law", large, rows) == 200.0
    assert [value("law", p, rows) for p in rows][:3] == [None] * 3
    assert (value("law_size", large, rows), value("hit_knee", large, rows), value("knee_over_law", large, rows)) == (256.0, 256.0, 1.0)
    assert value("law", large, rows_of(150)) == 150.0


def test_law_of_sessions_is_their_rate_in_combine_times_their_lifetime() -> None:
    p = point(0, name="reduction_entries")
    table = {"sessions": 400, "evictions": 0, "occupancy": {"mean": 20.0, "max": 60}}
    rows = {p: row(10.0, reduction=table, ports=8) | {"phases_us": {"combine": {"start": 4.0, "end": 9.0}}}}
    assert value("arrival_rate", p, rows) == 10.0  # a port, in each of 5 us
    assert value("lifetime_us", p, rows) == 0.5
    assert value("law", p, rows) == 5.0


@pytest.mark.parametrize(("name", "sizes"), [("al_entries", (64, 128, 256, 512, 65536)), ("reduction_entries", (8, 16, 32, 64, 0))])
def test_the_law_names_the_knee_within_a_step(name: str, sizes: tuple[int, ...]) -> None:
    windows = (("combine_window", 32), ("compute", False), ("dispatch_window", 16))
    other = (("fabric.al_entries", 0),) if name == "reduction_entries" else ()
    points = [replace(BASE, gpus=4, tokens=64, options=tuple(sorted((*windows, *other, (f"fabric.{name}", n))))) for n in sizes]
    rows = {p: row_of(p) for p in points}
    large = points[-1]
    print(name, {measure: value(measure, large, rows) for measure in ("law", "law_size", "hit_knee", "knee")})
    assert 0.5 <= (value("knee_over_law", large, rows) or 0) <= 2
    assert (value("knee", large, rows) or 0) <= 2 * (value("law_size", large, rows) or 0)  # in time a table may be too small and cost nothing


@pytest.mark.parametrize(
    ("options", "fidelity", "text"),
    [
        ({"fabric.al_entris": 4}, "packet", 'option fabric.al_entris: unknown; did you mean "al_entries"?'),
        ({"fabric.al_entries": -1}, "packet", r"option fabric.al_entries: found -1, expected at least 0 \(0 = infinite\)"),
        ({"fabric.al_entries": "many"}, "packet", "option fabric.al_entries: found 'many', expected a whole number"),
        ({"fabric.al_entries": 4}, "burst", 'option \'fabric.al_entries\': found fidelity "burst", expected "packet"'),
    ],
)
def test_wrong_sizes(options: dict[str, Any], fidelity: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        dysharp.run("dysharp", model="S-8", gpus=4, tokens=8, routing="uniform", fidelity=fidelity, options=options)
