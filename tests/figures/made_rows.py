"""Rows made of the names of their points, without a run: unequal numbers, equal in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from dysharp.figures.metric import Rows, all_calculated
from dysharp.figures.origin import origin_of
from dysharp.runs.point import Point

RUN = ("hub-shares", "hub-units")
"""Calculated systems whose Rows take long; they have made Rows, too."""


def numbers(name: str) -> Callable[[float, float], float]:
    """A function that gives the next number between two, by the name alone."""
    count = 0

    def draw(low: float, high: float) -> float:
        nonlocal count
        count += 1
        raw = hashlib.blake2b(f"{name} {count}".encode(), digest_size=6).digest()
        return round(low + (high - low) * int.from_bytes(raw) / 2**48, 4)

    return draw


def made_row(point: Point) -> dict[str, Any]:
    """What metrics read of a Row."""
    draw = numbers(repr(point))
    time = draw(300, 900)
    phases, at = {}, draw(1, 9)
    for name in ("dispatch", "gemm1", "gemm2", "combine"):
        start, end = at, at + draw(time / 8, time / 5)
        phases[name], at = {"start": start, "end": end, "busy": draw(0.5, 0.9) * (end - start)}, end - draw(1, 20)
    lookups, use = int(draw(4000, 9000)), [draw(0, 1) for _ in range(9)]
    blocks = {
        "al_tlb": {
            "lookups": lookups, "hits": int(draw(0.2, 0.9) * lookups), "misses": int(draw(0.01, 0.1) * lookups), "allocated": int(draw(300, 900)),
            "peak_rows": int(draw(20, 200)),
            "rows": {"dispatch_per_us": draw(10, 60), "combine_per_us": draw(10, 60), "lifetime_us": draw(1, 5), "rows_per_hub": int(draw(90, 500))},
        },
        "reduction": {"sessions": int(draw(3000, 5000)), "evictions": int(draw(0, 80)), "occupancy": {"mean": draw(5, 30), "max": int(draw(40, 90))}},
        "ports": int(draw(4, 9)),
        "flits": {side: {"data": int(draw(1000, 2000)), "header": int(draw(100, 200))} for side in ("up", "down")},
        "merging": {"wait_us": draw(1, 4), "table_KiB": draw(10, 90), "load_wait_us": draw(1, 4), "sum_wait_us": draw(1, 4)},
        "links": {"up_use": use},
    }  # fmt: skip
    return {
        "time_us": time, "exposed_comm_us": draw(0.1, 0.6) * time, "bound_us": draw(0.5, 0.95) * time, "phases_us": phases,
        "utilization": {"up": draw(0.2, 0.9), "down": draw(0.2, 0.9)}, "blocks": blocks, "dropped_rows": 0,
        "traffic_bytes": {side: {name: int(draw(1e8, 9e9)) for name in ("dispatch", "combine", "other")} for side in ("up", "down")},
    }  # fmt: skip


def made_rows(points: Iterable[Point]) -> Rows:
    """Made Rows of simulated systems, and the Rows of calculated ones."""
    quick, rows = {name for name in all_calculated() if name not in RUN}, {}
    for point in points:
        if point.system in RUN:
            draw = numbers(repr(point))
            rows[point] = {
                key: draw(0.1, 0.9)
                for key in (
                    "map_reads_per_row",
                    "packet_payload",
                    "open_rows",
                    "dispatch_us",
                    "producer_share",
                    "network_share",
                    "consumer_share",
                    "kept_consumer",
                )
            }
        else:
            rows[point] = origin_of(point.system).row(point) if point.system in quick else made_row(point)
    return rows
