"""Sizes of the packet level's tables: hit rates, what a small table costs, and the law entries = rate x lifetime.

A figure sweeps one option `fabric.<entries>` of its points and compares each point with the largest table of the same workload and other options:
0 (the block makes nothing wait) where the sweep has it, else the most entries (an AL TLB reads memory for every first touch however large it is).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dysharp.experiments.figure import Point

Rows = dict[Point, dict[str, Any]]
AL, REDUCTION = "fabric.al_entries", "fabric.reduction_entries"
KNEE = 1.01  # a table is large enough when it costs at most 1 % of the infinite table's time


def size_of(point: Point) -> tuple[str, int] | None:
    """The table a point sweeps and its entries; None where it sets none. Beside a reduction table the AL TLB's size is only a setting."""
    options = dict(point.options)
    return next(((name, options[name]) for name in (REDUCTION, AL) if name in options), None)


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
    """Entries of the smallest table within 1 % of the largest one's time, at the largest point of each sweep; None elsewhere."""
    return _smallest(point, rows, lambda p: (over_infinite(p, rows) or 2) <= KNEE)


def hit_knee(point: Point, rows: Rows) -> float | None:
    """Entries of the smallest table that evicts as good as nothing: 99 % of its sessions end by themselves, or it reads the AL Table at most
    1 % more often than the largest one does; at the largest point of each sweep, None elsewhere.
    """

    def fits(p: Point) -> bool:
        if not _is_al(p):
            return (no_eviction_rate(p, rows) or 0) >= 2 - KNEE
        here, there = al_read_rate(p, rows), al_read_rate(largest(p, rows), rows)
        return here is not None and there is not None and here - there <= (KNEE - 1) * there

    return _smallest(point, rows, fits)


def _smallest(point: Point, rows: Rows, fits: Callable[[Point], bool]) -> float | None:
    if size_of(point) is None or point != largest(point, rows):
        return None
    sizes = [entries for entries, p in _sweep(point, rows).items() if fits(p)]
    return float(min(sizes)) if sizes else None


def _sweep(point: Point, rows: Rows) -> dict[int, Point]:
    """The points of one sweep by their size, without the infinite one (0)."""
    return {found[1]: p for p in rows if (found := size_of(p)) and with_size(p, 0) == with_size(point, 0) and found[1]}


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


def arrival_rate(point: Point, rows: Rows) -> float | None:
    """What comes to one table per microsecond while anything comes: sessions to a port, rows to a hub (Dispatch and Combine each count).

    Rows: only of a run without evictions of the AL TLB.
    """
    row = rows[point]
    if _is_al(point):
        seen = _visits(row)
        return None if seen is None else float(seen["dispatch_per_us"]) + float(seen["combine_per_us"])
    table, span = _sessions(row), row.get("phases_us", {}).get("combine")
    return table["sessions"] / row["blocks"]["ports"] / (span["end"] - span["start"]) if table and span and span["end"] > span["start"] else None


def lifetime_us(point: Point, rows: Rows) -> float | None:
    """How long it stays: a session from its request to its result (mean sessions in all tables over the rate at which they come, Little);
    a row from the first packet of Dispatch to the first of Combine, between which an LRU table must keep it for Combine to hit.
    """
    row = rows[point]
    if _is_al(point):
        seen = _visits(row)
        return None if seen is None else float(seen["lifetime_us"])
    table = _sessions(row)
    return float(table["occupancy"]["mean"]) * float(row["time_us"]) / table["sessions"] if table else None


def law(point: Point, rows: Rows) -> float | None:
    """Entries = rate x lifetime, in the run with the largest table; of an AL TLB at most the rows of the whole run at its fullest hub.

    An LRU table does not know that a row is done with: it keeps the rows that Combine has read as long as those that it will read, so both
    count in the rate.
    """
    if size_of(point) is None or point != largest(point, rows):
        return None
    rate, life = arrival_rate(point, rows), lifetime_us(point, rows)
    if rate is None or life is None:
        return None
    seen = _visits(rows[point]) if _is_al(point) else None
    return rate * life if seen is None else min(rate * life, float(seen["rows_per_hub"]))


def law_size(point: Point, rows: Rows) -> float | None:
    """The smallest size of the sweep that holds the law's entries."""
    needed = law(point, rows)
    fits = [] if needed is None else [entries for entries in _sweep(point, rows) if entries >= needed]
    return float(min(fits)) if fits else None


def knee_over_law(point: Point, rows: Rows) -> float | None:
    """Table that evicts nearly nothing over the size that the law asks for: 1 = the law names it, 2 and 0.5 = one step of a sweep by two off."""
    found, expected = hit_knee(point, rows), law_size(point, rows)
    return found / expected if found and expected else None


def peak_sessions(point: Point, rows: Rows) -> float | None:
    """Most sessions at once, mean over the ports of all GPUs (the sum over ports at its largest instant)."""
    table = _sessions(rows[point])
    return float(table["occupancy"]["max"]) / rows[point]["blocks"]["ports"] if table else None


def _is_al(point: Point) -> bool:
    return (size_of(point) or ("", 0))[0] == AL


def _visits(row: dict[str, Any]) -> dict[str, Any] | None:
    seen: dict[str, Any] | None = row.get("blocks", {}).get("al_tlb", {}).get("rows")
    return seen


def _sessions(row: dict[str, Any]) -> dict[str, Any] | None:
    table: dict[str, Any] | None = row.get("blocks", {}).get("reduction")
    return table if table and table["sessions"] else None


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
    "arrival_rate": arrival_rate,
    "lifetime_us": lifetime_us,
    "law": law,
    "law_size": law_size,
    "knee_over_law": knee_over_law,
    "peak_sessions": peak_sessions,
    "knee": knee,
    "hit_knee": hit_knee,
}
UNITS = {
    "al_hit_rate": "hit rate of the AL TLB",
    "al_read_rate": "reads of the AL Table per lookup",
    "no_eviction_rate": "reduction sessions that are not evicted",
    "extra_flits": "extra flits over the largest table",
    "over_infinite": "time over the largest table",
    "arrival_rate": "arrivals at one table (1/us)",
    "lifetime_us": "lifetime of what is in it (us)",
    "law": "rate x lifetime (entries)",
    "law_size": "smallest size of the sweep for rate x lifetime (entries)",
    "knee_over_law": "table that evicts nearly nothing over that size",
    "peak_sessions": "most reduction sessions at once, per port",
    "knee": "smallest table within 1 % of the largest's time (entries)",
    "hit_knee": "smallest table that evicts nearly nothing (entries)",
}
