"""Families beyond the bars, judged by Programs in a table of their own: all-reduces through the switch and between peers (docs/design/0008), and
the kernels of Hybrid-EP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.analysis.allreduce_queries import allreduce
from dysharp.analysis.families import BEYOND, beyond_of, in_scope
from dysharp.analysis.measured import Measurement
from dysharp.analysis.predict import NO_FORM
from dysharp.analysis.predictors import Ask, check_cluster, ep_case, whole
from dysharp.analysis.programs import AllReduceCase
from dysharp.analysis.queries import SCALED_FP8, Query, Unsupported, dtype_of, gpu_of, number
from dysharp.analysis.validation import BEYOND_BARS, Case, Sorted, errors_of
from dysharp.compute.transfer import expected_copies

ALL = "all"
BY = "program"
HYBRID = "hybrid-ep"
KERNELS_ALONE = ("Kernel only", "Only Kernel Time")
MOST_HYBRID_GPUS = 16
MOST_BYTES = 1 << 34
"""Between all pairs of GPUs."""


def split(found: Sorted) -> tuple[Sorted, list[Measurement]]:
    """`found` without the rows of these families, and these."""
    kept = tuple(m for m in found.missing if m.reason != BEYOND_BARS)
    return Sorted(found.cases, kept), [m.row for m in found.missing if m.reason == BEYOND_BARS]


def judge(rows: Sequence[Measurement], constants: Mapping[str, float], jobs: int = 1) -> list[dict[str, Any]]:
    """One entry per family, system and hardware and one per family (system "all"): errors in percent, of the Programs and of the closed form, and
    why rows are `unpredicted`."""
    mine = [row for row in rows if beyond_of(row) is not None]
    asked, reasons = _sorted(mine)
    found, predicted = Sorted(tuple(asked), ()).answered(constants, jobs)
    reasons |= {m.row.id: m.reason for m in found.missing}
    closed, measured = found.batch().values(constants) if found.cases else predicted, found.measured()
    keys = dict.fromkeys(key for row in mine for key in _keys(row))
    out = []
    for key in sorted(keys, key=lambda key: (list(BEYOND).index(key[0]), key[1] != ALL, key)):
        at = np.array([i for i, case in enumerate(found.cases) if key in _keys(case.row)], np.int64)
        why = [reasons[row.id] for row in mine if row.id in reasons and key in _keys(row)]
        entry: dict[str, Any] = dict(zip(("family", "system", "hardware"), key, strict=True)) | {"by": BY, "n": len(at), "n_rows": len(at) + len(why)}
        errors, form = (errors_of(p[at], measured[at]) if len(at) and np.isfinite(p[at]).all() else None for p in (predicted, closed))
        for name in ("median_ape", "p90_ape", "bias"):
            entry[name] = getattr(errors, name, None)
        entry["closed_median_ape"] = getattr(form, "median_ape", None)
        out.append(entry | {"unpredicted": "; ".join(f"{why.count(reason)} {reason}" for reason in dict.fromkeys(why))})
    return out


def _keys(row: Measurement) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    family = str(beyond_of(row))
    return (family, ALL, ""), (family, row.system, row.hardware)


def _sorted(rows: Sequence[Measurement]) -> tuple[list[Case], dict[str, str]]:
    """(cases, id -> why there is none)."""
    cases, reasons = [], {}
    for row in rows:
        try:
            cases.append(case_of(row))
        except Unsupported as reason:
            reasons[row.id] = str(reason)
    return cases, reasons


def case_of(row: Measurement) -> Case:
    """A row with its query and its Program. Raises `Unsupported` with the reason."""
    if not in_scope(row):
        raise Unsupported("no NVIDIA machine of one NVLink domain")
    family = str(beyond_of(row))
    unit = ("GB/s",) if family == HYBRID else ("us", "ms")
    if not row.value or row.unit not in unit:
        raise Unsupported(f"no value in {' or '.join(unit)}")
    if family == HYBRID:
        return _hybrid(row)
    query = allreduce(row)
    return Case(row, family, query, _ask(query))


def _hybrid(row: Measurement) -> Case:
    """Kernels of Hybrid-EP alone; rates count the rows that arrive."""
    if row.config.get("measure") not in KERNELS_ALONE:
        raise Unsupported("times of torch calls: what the host adds was not measured apart")
    gpus = number(row, "ep")
    if gpus > MOST_HYBRID_GPUS:
        raise Unsupported(f"more than {MOST_HYBRID_GPUS} GPUs: a run takes minutes")
    dispatch, bf16 = row.kind == "ep_dispatch", dtype_of(row, "dtype", expected=("fp8", "bf16")) == "bf16"
    asked = Query(NO_FORM, gpu_of(row), (), {"tokens": number(row, "tokens_per_rank"), "gpus": gpus}, shape=f"n={gpus:g}")
    case = ep_case(row, asked, whole(number(row, "sms"), "SMs"), fp8=not bf16)
    received = case.tokens * expected_copies(case.gpus, case.experts, case.topk) * case.hidden * (2.0 if bf16 else SCALED_FP8)
    query = replace(asked, work=received / 1e3)
    return Case(row, HYBRID, query, Ask(HYBRID, case, (("kernels", True),), 0 if dispatch else 1))


def _ask(query: Query) -> Ask:
    n = query.numbers
    gpus = whole(n["gpus"], "GPUs")
    check_cluster(query.gpu, gpus)
    if gpus * gpus * n["bytes"] > MOST_BYTES:
        raise Unsupported("more than a million trains")
    return Ask("allreduce", AllReduceCase(query.gpu, gpus, query.words[0], whole(n["bytes"], "bytes"), int(n["in_flight"])), (), 0)
