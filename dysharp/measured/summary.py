"""The table of validated errors that travels with the package (`specs/data/validated.toml`), from what `validate` found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.families import ASK
from dysharp.analysis.measured import Measurement
from dysharp.analysis.predictors import PREDICTORS
from dysharp.analysis.trust import OTHER
from dysharp.analysis.validation import Case, Sorted, errors_of

F64 = NDArray[np.float64]
HEAD = """Validated errors per family and GPU, in percent of the measured value, and the ranges of the rows behind them. GPU "other": rows of all
GPUs, each while its GPU was held out of the fit; a family with rows of one GPU has none. `by`: what predicted the rows. Written by
dysharp validate --data measured.csv --hold-out shape --hold-out gpu --summary validated.toml"""
RANGES: Mapping[str, tuple[str, ...]] = {
    "tokens": ("tokens_per_rank",),
    "hidden": ("hidden",),
    "gpus": ("ep", "gpus"),
    "topk": ("topk",),
    "experts": ("experts",),
    "sms": ("sms",),
    "rows_per_expert": ("m_per_group", "rows_per_expert"),
    "bytes": ("bytes",),
}
"""Name of a range -> keys of `config_json` that give it."""


def summarise(found: Sorted, predicted: F64, held: F64 | None = None) -> str:
    """The text of `validated.toml`. `predicted`: `[cases]`; `held`: the same by `calibration.held_out` "gpu", for GPUs without measurements."""
    by_group: dict[tuple[str, str], list[tuple[Case, float]]] = {}
    without: dict[str, list[tuple[Case, float]]] = {}
    for at, case in enumerate(found.cases):
        by_group.setdefault((case.family, case.query.gpu), []).append((case, float(predicted[at])))
        without.setdefault(case.family, []).append((case, float(predicted[at] if held is None else held[at])))
    lines = [f"# {line}" for line in HEAD.splitlines()]
    for family in ASK:
        mine = {gpu: rows for (name, gpu), rows in by_group.items() if name == family}
        for gpu in sorted(mine):
            lines += _entry(family, gpu, mine[gpu])
        if held is not None and len(mine) > 1:
            lines += _entry(family, OTHER, without[family])
    return "\n".join(lines) + "\n"


def _entry(family: str, gpu: str, rows: Sequence[tuple[Case, float]]) -> list[str]:
    errors = errors_of(np.array([value for _, value in rows]), np.array([case.row.value for case, _ in rows], np.float64))
    ranges = {name: _range([case.row for case, _ in rows], keys) for name, keys in RANGES.items()} if gpu != OTHER else {}
    shown = ", ".join(f"{name} = [{pair[0]:.10g}, {pair[1]:.10g}]" for name, pair in ranges.items() if pair)
    return [
        "",
        f"[{family}.{gpu}]",
        f'by = "{PREDICTORS[family]}"',
        f"n = {len(rows)}",
        f"median = {errors.median_ape:.3g}",
        f"p90 = {errors.p90_ape:.3g}",
        f"bias = {errors.bias:.3g}",
        f"ranges = {{ {shown} }}",
        *_dtypes(gpu, rows),
    ]


def _dtypes(gpu: str, rows: Sequence[tuple[Case, float]]) -> list[str]:
    """The data types of the rows, for families that have any."""
    found = sorted({dtype for case, _ in rows for dtype in case.query.dtypes}) if gpu != OTHER else []
    return [f"dtypes = {json.dumps(found)}"] if found else []


def _range(rows: Sequence[Measurement], keys: Sequence[str]) -> tuple[float, float] | None:
    found = [row.config[key] for row in rows for key in keys if isinstance(row.config.get(key), (int, float))]
    return (min(found), max(found)) if found else None
