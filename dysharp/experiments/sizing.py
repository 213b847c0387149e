"""Sizes of the packet level's tables: hit rates, what a small table costs, and the law entries = rate x lifetime.

A figure sweeps one option `fabric.<entries>` of its points and compares each point with the largest table of the same workload and other options:
0 (the block makes nothing wait) where the sweep has it, else the most entries (an AL TLB reads memory for every first touch however large it is).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dysharp.experiments.figure import Point

Rows = dict[Point, dict[str, Any]]
KNEE = 1.01  # a table is large enough when it costs at most 1 % of the infinite table's time


def size_of(point: Point) -> tuple[str, int] | None:
    """The table a point sets and its entries; None where it sets none."""
    return next(((name, value) for name, value in point.options if name.startswith("fabric.") and name.endswith("_entries")), None)


def with_size(point: Point, entries: int) -> Point:
    """The same point with another size of its table."""
    name, _ = size_of(point) or ("", 0)
    return replace(point, options=tuple((key, entries if key == name else value) for key, value in point.options))


def largest(point: Point, rows: Rows) -> Point:
    """The point of the same sweep with the largest table."""
    sizes = [found[1] for p in rows if (found := size_of(p)) and with_size(p, 0) == with_size(point, 0)]
    return with_size(point, 0 if 0 in sizes else max(sizes, default=0))


def over_infinite(point: Point, rows: Rows) -> float | None:
    """Time over that with the largest table."""
    base = rows.get(largest(point, rows)) if size_of(point) else None
    return None if base is None else float(rows[point]["time_us"]) / float(base["time_us"])


def extra_flits(point: Point, rows: Rows) -> float | None:
    """Flits on the links over those with the largest table, less one: what evictions add."""
    base = rows.get(largest(point, rows)) if size_of(point) else None
    if base is None:
        return None
    here, there = (_flits(row) for row in (rows[point], base))
    return here / there - 1 if there else None


def knee(point: Point, rows: Rows) -> float | None:
    """Entries of the smallest table within 1 % of the largest one, at the largest point of each sweep; None elsewhere."""
    if size_of(point) is None or point != largest(point, rows):
        return None
    sweep = {found[1]: p for p in rows if (found := size_of(p)) and with_size(p, 0) == with_size(point, 0) and found[1]}
    fits = [entries for entries, p in sweep.items() if (ratio := over_infinite(p, rows)) is not None and ratio <= KNEE]
    return float(min(fits)) if fits else None


def al_hit_rate(point: Point, rows: Rows) -> float | None:
    """Lookups of the AL TLB that it answers at once."""
    return _part(rows[point], "al_tlb", "hits", "lookups")


def al_read_rate(point: Point, rows: Rows) -> float | None:
    """Reads of the AL Table in memory per lookup: misses that did not join one under way."""
    return _part(rows[point], "al_tlb", "misses", "lookups")


def no_eviction_rate(point: Point, rows: Rows) -> float | None:
    """Sessions of the reduction tables that end without an eviction (the paper's hit rate)."""
    evicted = _part(rows[point], "reduction", "evictions", "sessions")
    return None if evicted is None else 1 - evicted


def session_lifetime_us(point: Point, rows: Rows) -> float | None:
    """Mean time a session is in its table: mean sessions in all tables over the rate at which they come (Little)."""
    table = rows[point].get("blocks", {}).get("reduction")
    return float(table["occupancy"]["mean"]) * float(rows[point]["time_us"]) / table["sessions"] if table and table["sessions"] else None


def peak_sessions(point: Point, rows: Rows) -> float | None:
    """Most sessions at once, mean over the ports of all GPUs (the sum over ports at its largest instant)."""
    table = rows[point].get("blocks", {}).get("reduction")
    return float(table["occupancy"]["max"]) / rows[point]["blocks"]["ports"] if table and table["sessions"] else None


def _flits(row: dict[str, Any]) -> float:
    """What the fabric counted; a Row's `wire_flits` are those of the Program, which knows no evictions."""
    return float(sum(n for side in row["blocks"]["flits"].values() for n in side.values()))


def _part(row: dict[str, Any], block: str, part: str, whole: str) -> float | None:
    table = row.get("blocks", {}).get(block)
    return float(table[part]) / table[whole] if table and table[whole] else None


MEASURES = {
    "al_hit_rate": al_hit_rate,
    "al_read_rate": al_read_rate,
    "no_eviction_rate": no_eviction_rate,
    "extra_flits": extra_flits,
    "over_infinite": over_infinite,
    "session_lifetime_us": session_lifetime_us,
    "peak_sessions": peak_sessions,
    "knee": knee,
}
UNITS = {
    "al_hit_rate": "hit rate of the AL TLB",
    "al_read_rate": "reads of the AL Table per lookup",
    "no_eviction_rate": "reduction sessions that are not evicted",
    "extra_flits": "extra flits over the largest table",
    "over_infinite": "time over the largest table",
    "session_lifetime_us": "lifetime of a reduction session (us)",
    "peak_sessions": "most reduction sessions at once, per port",
    "knee": "smallest table within 1 % of the largest (entries)",
}
