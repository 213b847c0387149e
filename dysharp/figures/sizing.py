"""Sizes of the packet level's tables: hit rates, cost of a small table, and the law entries = rate x lifetime.

A figure sweeps one option `fabric.<entries>`, or `rat_bank_entries` of MoE-Hub. It compares each point with the largest table under equal workload
and options. The largest table is size 0 if the sweep has it: the table then makes no packet wait. Else the largest table
has the most entries: an AL TLB of any size reads memory for every first touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dysharp.runs.point import Point

Rows = dict[Point, dict[str, Any]]
AL, REDUCTION, RAT = "fabric.al_entries", "fabric.reduction_entries", "rat_bank_entries"
KNEE = 1.01  # a table is large enough when it costs at most 1 % of the infinite table's time


def size_of(point: Point) -> tuple[str, int] | None:
    """(option, entries) of the table that a point sweeps; None if the point sets no table.

    If a point sets both tables, the reduction table is swept.
    """
    options = dict(point.options)
    return next(((name, options[name]) for name in (REDUCTION, AL, RAT) if name in options), None)


def with_size(point: Point, entries: int) -> Point:
    """The point with `entries` as the size of its table."""
    name, _ = size_of(point) or ("", 0)
    return replace(point, options=tuple((key, entries if key == name else value) for key, value in point.options))


def largest(point: Point, rows: Rows) -> Point:
    """The point with the largest table of the sweep."""
    sizes = [found[1] for p in rows if (found := size_of(p)) and with_size(p, 0) == with_size(point, 0)]
    return with_size(point, 0 if 0 in sizes else max(sizes, default=0))


def over_infinite(point: Point, rows: Rows) -> float | None:
    """Time divided by the time with the largest table."""
    base = rows.get(largest(point, rows)) if size_of(point) else None
    return None if base is None else float(rows[point]["time_us"]) / float(base["time_us"])


def extra_flits(point: Point, rows: Rows) -> float | None:
    """Flits on the links divided by the flits with the largest table, minus one: the cost of evictions."""
    base = rows.get(largest(point, rows)) if size_of(point) else None
    if base is None:
        return None
    here, there = (_flits(row) for row in (rows[point], base))
    return here / there - 1 if there else None


def knee(point: Point, rows: Rows) -> float | None:
    """Entries of the smallest table within 1 % of the largest table's time. None except at the largest point."""
    return _smallest(point, rows, lambda p: (over_infinite(p, rows) or 2) <= KNEE)


def hit_knee(point: Point, rows: Rows) -> float | None:
    """Entries of the smallest table with almost no evictions. None except at the largest point of each sweep.

    Reduction table: 99 % of the sessions end without an eviction. AL TLB: at most 1 % more reads of the AL Table than
    with the largest table.
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
    """The points of one sweep by size, without size 0 (infinite)."""
    return {found[1]: p for p in rows if (found := size_of(p)) and with_size(p, 0) == with_size(point, 0) and found[1]}


def al_hit_rate(point: Point, rows: Rows) -> float | None:
    """Share of lookups that the AL TLB answers at once."""
    return _part(rows[point], "al_tlb", "hits", "lookups")


def hit_over_infinite(point: Point, rows: Rows) -> float | None:
    """Hit rate of the AL TLB divided by the hit rate with the largest table."""
    base = largest(point, rows)
    here, there = al_hit_rate(point, rows), al_hit_rate(base, rows) if base in rows else None
    return here / there if here is not None and there else None


def al_read_rate(point: Point, rows: Rows) -> float | None:
    """Reads of the AL Table in memory per lookup. A miss that joins a pending read does not count."""
    return _part(rows[point], "al_tlb", "misses", "lookups")


def row_reads(point: Point, rows: Rows) -> float | None:
    """Reads of memory per row that took its place in a row table."""
    return _part(rows[point], "al_tlb", "misses", "allocated")


def peak_rows(point: Point, rows: Rows) -> float | None:
    """Most rows at once in the row table of a hub."""
    table = rows[point].get("blocks", {}).get("al_tlb")
    return float(table["peak_rows"]) if table else None


def no_read_rate(point: Point, rows: Rows) -> float | None:
    """Share of lookups that cause no read of the AL Table: hits, and packets that wait for a read under way."""
    reads = al_read_rate(point, rows)
    return None if reads is None else 1 - reads


def no_eviction_rate(point: Point, rows: Rows) -> float | None:
    """Share of reduction sessions that end without an eviction (the paper's hit rate)."""
    evicted = _part(rows[point], "reduction", "evictions", "sessions")
    return None if evicted is None else 1 - evicted


def arrival_rate(point: Point, rows: Rows) -> float | None:
    """Arrivals at one table per microsecond between the first and the last arrival.

    Reduction table: sessions at a port. AL TLB: rows at a hub, once in Dispatch and once in Combine, for runs without
    evictions of the AL TLB.
    """
    row = rows[point]
    if _is_al(point):
        seen = _visits(row)
        return None if seen is None else float(seen["dispatch_per_us"]) + float(seen["combine_per_us"])
    table, span = _sessions(row), row.get("phases_us", {}).get("combine")
    return table["sessions"] / row["blocks"]["ports"] / (span["end"] - span["start"]) if table and span and span["end"] > span["start"] else None


def lifetime_us(point: Point, rows: Rows) -> float | None:
    """Mean lifetime of an entry in us.

    A session lives from its request to its result: mean number of sessions divided by their rate (Little's law). A row
    lives from its first Dispatch packet to its first Combine packet: an LRU table must keep the row until then.
    """
    row = rows[point]
    if _is_al(point):
        seen = _visits(row)
        return None if seen is None else float(seen["lifetime_us"])
    table = _sessions(row)
    return float(table["occupancy"]["mean"]) * float(row["time_us"]) / table["sessions"] if table else None


def law(point: Point, rows: Rows) -> float | None:
    """Entries = rate x lifetime, in the run with the largest table. AL TLB: at most all rows of the hub with most rows.

    The rate of an AL TLB counts each row twice. An LRU table cannot know that Combine has read a row for the last time:
    it keeps such rows as long as rows that Combine has yet to read.
    """
    if size_of(point) is None or point != largest(point, rows):
        return None
    rate, life = arrival_rate(point, rows), lifetime_us(point, rows)
    if rate is None or life is None:
        return None
    seen = _visits(rows[point]) if _is_al(point) else None
    return rate * life if seen is None else min(rate * life, float(seen["rows_per_hub"]))


def law_size(point: Point, rows: Rows) -> float | None:
    """The smallest swept size that holds the law's entries."""
    needed = law(point, rows)
    fits = [] if needed is None else [entries for entries in _sweep(point, rows) if entries >= needed]
    return float(min(fits)) if fits else None


def knee_over_law(point: Point, rows: Rows) -> float | None:
    """`hit_knee` divided by `law_size`: 1 = the law is exact, 2 or 0.5 = one step of the sweep off."""
    found, expected = hit_knee(point, rows), law_size(point, rows)
    return found / expected if found and expected else None


def peak_sessions(point: Point, rows: Rows) -> float | None:
    """Sessions per port at the instant with most sessions in total: mean over the ports of all GPUs."""
    table = _sessions(rows[point])
    return float(table["occupancy"]["max"]) / rows[point]["blocks"]["ports"] if table else None


def _is_al(point: Point) -> bool:
    return (size_of(point) or ("", 0))[0] in (AL, RAT)


def _visits(row: dict[str, Any]) -> dict[str, Any] | None:
    seen: dict[str, Any] | None = row.get("blocks", {}).get("al_tlb", {}).get("rows")
    return seen


def _sessions(row: dict[str, Any]) -> dict[str, Any] | None:
    table: dict[str, Any] | None = row.get("blocks", {}).get("reduction")
    return table if table and table["sessions"] else None


def _flits(row: dict[str, Any]) -> float:
    """Flits that the fabric counted. `Row.wire_flits` come from the Program, which has no evictions."""
    return float(sum(n for side in row["blocks"]["flits"].values() for n in side.values()))


def _part(row: dict[str, Any], block: str, part: str, whole: str) -> float | None:
    table = row.get("blocks", {}).get(block)
    return float(table[part]) / table[whole] if table and table[whole] else None


MEASURES = {
    "al_hit_rate": al_hit_rate,
    "hit_over_infinite": hit_over_infinite,
    "al_read_rate": al_read_rate,
    "no_read_rate": no_read_rate,
    "row_reads": row_reads,
    "peak_rows": peak_rows,
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
    "hit_over_infinite": "hit rate of the AL TLB over the largest table",
    "al_read_rate": "reads of the AL Table per lookup",
    "no_read_rate": "lookups of the AL TLB that cause no read of the AL Table",
    "row_reads": "reads of memory per row",
    "peak_rows": "most rows at once in the row table of a hub",
    "no_eviction_rate": "reduction sessions that are not evicted",
    "extra_flits": "extra flits over the largest table",
    "over_infinite": "time over the largest table",
    "arrival_rate": "arrivals at one table (1/us)",
    "lifetime_us": "lifetime of an entry (us)",
    "law": "rate x lifetime (entries)",
    "law_size": "smallest size of the sweep for rate x lifetime (entries)",
    "knee_over_law": "smallest table with almost no evictions over the law's size",
    "peak_sessions": "most reduction sessions at once, per port",
    "knee": "smallest table within 1 % of the largest table's time (entries)",
    "hit_knee": "smallest table with almost no evictions (entries)",
}
