"""What `dysharp routing` prints, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from dysharp.errors import ConfigError
from dysharp.workload import GpuRow, LayerRow


def counts_of(text: str) -> list[int]:
    """`"8,16"` as GPU counts; raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise ConfigError(f"--gpus: found {text[:60]!r}, expected GPU counts such as 8,16,32")
    return list(dict.fromkeys(int(part) for part in parts))


def routing_dict(source: str, rows: Sequence[LayerRow]) -> dict[str, Any]:
    """`experts topk tokens` (None where layers differ or it is not known), `layers` one by one, and over all layers by GPU count
    `imbalance` (copies and tokens, largest over mean: mean and max of the layers) and `distinct_gpus` (mean, uniform routing)."""
    by_count: dict[int, list[GpuRow]] = {}
    for row in rows:
        for gpu in row.gpus:
            by_count.setdefault(gpu.n_gpus, []).append(gpu)
    return {
        "source": source,
        "experts": _common(row.n_experts for row in rows),
        "topk": _common(row.topk for row in rows),
        "tokens": _common(row.n_tokens for row in rows),
        "layers": [dataclasses.asdict(row) for row in rows],
        "imbalance": {str(n): _imbalance(gpus) for n, gpus in by_count.items()},
        "distinct_gpus": {str(n): _distinct(gpus) for n, gpus in by_count.items()},
    }


def _common(values: Iterable[int | None]) -> int | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _imbalance(gpus: Sequence[GpuRow]) -> dict[str, float | None]:
    return {
        "copies_max_mean": _mean(g.copies_max_mean for g in gpus),
        "copies_max_mean_worst": max(g.copies_max_mean for g in gpus),
        "tokens_max_mean": _mean(g.tokens_max_mean for g in gpus),
    }


def _distinct(gpus: Sequence[GpuRow]) -> dict[str, float | None]:
    return {"mean": _mean(g.distinct_gpus for g in gpus), "uniform": _mean(g.distinct_gpus_uniform for g in gpus)}
