"""Sizes of the packet level's tables: hit rates, cost of a small table, and the law entries = rate x lifetime.

A figure sweeps one option `fabric.<entries>`, or `rat_bank_entries` of MoE-Hub. It compares each point with the largest table under equal workload
and options. The largest table is size 0 if the sweep has it: the table then makes no packet wait. Else the largest table
has the most entries: an AL TLB of any size reads memory for every first touch.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from dysharp.base import ByName
from dysharp.figures.metric import Seen, metric, quotient
from dysharp.protocol import aau, al_table, reduction
from dysharp.runs import Point

AL, REDUCTION, RAT = al_table.AL_TLB.option, reduction.REDUCTION_BUFFER.option, aau.RAT.option
KNEE = 1.01  # a table is large enough when it costs at most 1 % of the infinite table's time


def _size_of(point: Point) -> tuple[str, int] | None:
    """(option, entries) of the table that a point sweeps; None if the point sets no table.

    If a point sets both tables, the reduction table is swept.
    """
    options = dict(point.options)
    return next(((name, options[name]) for name in (REDUCTION, AL, RAT) if name in options), None)


def _infinite(point: Point) -> Point:
    """The point with an infinite table."""
    name, _ = _size_of(point) or ("", 0)
    return replace(point, options=tuple((key, 0 if key == name else value) for key, value in point.options))


def _sweep(here: Seen) -> dict[int, Seen]:
    """The points of the sweep by size; {} for a point that sets no table."""
    whole = _infinite(here.point)
    return {found[1]: replace(here, point=p) for p in here.rows if (found := _size_of(p)) and _infinite(p) == whole}


def _largest(here: Seen) -> Seen | None:
    """The point with the largest table of the sweep."""
    sizes = _sweep(here)
    return sizes[0 if 0 in sizes else max(sizes)] if sizes else None


@metric("over_infinite", "time over the largest table")
def _over_infinite(here: Seen) -> float | None:
    """Time divided by the time with the largest table."""
    base = _largest(here)
    return here.time_us / base.time_us if base else None


@metric("extra_flits", "extra flits over the largest table")
def _extra_flits(here: Seen) -> float | None:
    """Flits on the links divided by the flits with the largest table, minus one: the cost of evictions."""
    base = _largest(here)
    there = _flits(base) if base else 0
    return _flits(here) / there - 1 if there else None


@metric("knee", "smallest table within 1 % of the largest table's time (entries)")
def _knee(here: Seen) -> float | None:
    """Entries of the smallest table within 1 % of the largest table's time. None except at the largest point."""
    return _smallest(here, lambda seen: (_over_infinite(seen) or 2) <= KNEE)


@metric("hit_knee", "smallest table with almost no evictions (entries)")
def _hit_knee(here: Seen) -> float | None:
    """Entries of the smallest table with almost no evictions. None except at the largest point of each sweep.

    Reduction table: 99 % of the sessions end without an eviction. AL TLB: at most 1 % more reads of the AL Table than with the largest table.
    """

    def fits(seen: Seen) -> bool:
        if not _is_al(seen):
            return (_no_eviction_rate(seen) or 0) >= 2 - KNEE
        base = _largest(seen)
        few, there = _al_read_rate(seen), _al_read_rate(base) if base else None
        return few is not None and there is not None and few - there <= (KNEE - 1) * there

    return _smallest(here, fits)


@metric("al_hit_rate", "hit rate of the AL TLB")
def _al_hit_rate(here: Seen) -> float | None:
    """Share of lookups that the AL TLB answers at once."""
    return here.share("al_tlb", "hits", "lookups")


@metric("hit_over_infinite", "hit rate of the AL TLB over the largest table")
def _hit_over_infinite(here: Seen) -> float | None:
    base = _largest(here)
    rate, there = _al_hit_rate(here), _al_hit_rate(base) if base else None
    return rate / there if rate is not None and there else None


@metric("al_read_rate", "reads of the AL Table per lookup")
def _al_read_rate(here: Seen) -> float | None:
    """Reads of the AL Table in memory per lookup. A miss that joins a pending read does not count."""
    return here.share("al_tlb", "misses", "lookups")


metric("row_reads", "reads of memory per row")(lambda here: here.share("al_tlb", "misses", "allocated"))
metric("peak_rows", "most rows at once in the row table of a hub")(lambda here: here.block("al_tlb").get("peak_rows"))


@metric("no_read_rate", "lookups of the AL TLB that cause no read of the AL Table")
def _no_read_rate(here: Seen) -> float | None:
    """Share of lookups that cause no read of the AL Table: hits, and packets that wait for a read under way."""
    reads = _al_read_rate(here)
    return None if reads is None else 1 - reads


@metric("no_eviction_rate", "reduction sessions that are not evicted")
def _no_eviction_rate(here: Seen) -> float | None:
    """Share of reduction sessions that end without an eviction (the paper's hit rate)."""
    evicted = here.share("reduction", "evictions", "sessions")
    return None if evicted is None else 1 - evicted


@metric("arrival_rate", "arrivals at one table (1/us)")
def _arrival_rate(here: Seen) -> float | None:
    """Arrivals at one table per microsecond between the first and the last arrival.

    Reduction table: sessions at a port. AL TLB: rows at a hub, once in Dispatch and once in Combine, for runs without evictions of the AL TLB.
    """
    if _is_al(here):
        seen = _visits(here)
        return float(seen["dispatch_per_us"]) + float(seen["combine_per_us"]) if seen else None
    table, span = _sessions(here), here.phase_us("combine")
    return table["sessions"] / here.row["blocks"]["ports"] / (span["end"] - span["start"]) if table and span and span["end"] > span["start"] else None


@metric("lifetime_us", "lifetime of an entry (us)")
def _lifetime_us(here: Seen) -> float | None:
    """Mean lifetime of an entry in us.

    A session lives from its request to its result: mean number of sessions divided by their rate (Little's law). A row
    lives from its first Dispatch packet to its first Combine packet: an LRU table must keep the row until then.
    """
    if _is_al(here):
        seen = _visits(here)
        return float(seen["lifetime_us"]) if seen else None
    table = _sessions(here)
    return float(table["occupancy"]["mean"]) * here.time_us / table["sessions"] if table else None


@metric("law", "rate x lifetime (entries)")
def _law(here: Seen) -> float | None:
    """Entries = rate x lifetime, in the run with the largest table. AL TLB: at most all rows of the hub with most rows.

    The rate of an AL TLB counts each row twice. An LRU table cannot know that Combine has read a row for the last time:
    it keeps such rows as long as rows that Combine has yet to read.
    """
    rate, life = _arrival_rate(here), _lifetime_us(here)
    if not _is_largest(here) or rate is None or life is None:
        return None
    seen = _visits(here) if _is_al(here) else {}
    return min(rate * life, float(seen["rows_per_hub"])) if seen else rate * life


@metric("law_size", "smallest size of the sweep for rate x lifetime (entries)")
def _law_size(here: Seen) -> float | None:
    """The smallest swept size that holds the law's entries."""
    needed = _law(here)
    return None if needed is None else _least(size for size in _sweep(here) if size >= needed)


@metric("knee_over_law", "smallest table with almost no evictions over the law's size")
def _knee_over_law(here: Seen) -> float | None:
    """`_hit_knee` divided by `_law_size`: 1 = the law is exact, 2 or 0.5 = one step of the sweep off."""
    return quotient(_hit_knee(here), _law_size(here))


@metric("peak_sessions", "most reduction sessions at once, per port")
def _peak_sessions(here: Seen) -> float | None:
    """Sessions per port at the instant with most sessions in total: mean over the ports of all GPUs."""
    table = _sessions(here)
    return float(table["occupancy"]["max"]) / here.row["blocks"]["ports"] if table else None


def _is_al(here: Seen) -> bool:
    return (_size_of(here.point) or ("", 0))[0] in (AL, RAT)


def _is_largest(here: Seen) -> bool:
    base = _largest(here)
    return base is not None and base.point == here.point


def _smallest(here: Seen, fits: Callable[[Seen], bool]) -> float | None:
    """The least finite size of the sweep whose point `fits`. None except at the largest point."""
    return _least(size for size, seen in _sweep(here).items() if fits(seen)) if _is_largest(here) else None


def _least(sizes: Iterable[int]) -> float | None:
    """The least size but 0 (infinite)."""
    return min((float(size) for size in sizes if size), default=None)


def _visits(here: Seen) -> ByName:
    return here.block("al_tlb").get("rows") or {}


def _sessions(here: Seen) -> ByName:
    table = here.block("reduction")
    return table if table.get("sessions") else {}


def _flits(here: Seen) -> int:
    """Flits that the fabric counted. `Row.wire_flits` come from the Program, which has no evictions."""
    return sum(n for side in here.block("flits").values() for n in side.values())
