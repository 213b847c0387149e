"""Families beyond the bars: all-reduces through the switch and between peers, judged by Programs in a table of their own (docs/design/0008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dysharp.analysis.allreduce_queries import allreduce
from dysharp.analysis.families import BEYOND, in_scope
from dysharp.analysis.measured import Measurement
from dysharp.analysis.predictors import Ask, check_cluster, whole
from dysharp.analysis.programs import AllReduceCase
from dysharp.analysis.queries import Query, Unsupported
from dysharp.analysis.validation import BEYOND_BARS, Case, Sorted, errors_of

ALL = "all"
BY = "program"
MOST_BYTES = 1 << 34
"""Between all pairs of GPUs."""


def split(found: Sorted) -> tuple[Sorted, list[Measurement]]:
    """`found` without the rows of these families, and these."""
    kept = tuple(m for m in found.missing if m.reason != BEYOND_BARS)
    return Sorted(found.cases, kept), [m.row for m in found.missing if m.reason == BEYOND_BARS]


def judge(rows: Sequence[Measurement], constants: Mapping[str, float], jobs: int = 1) -> list[dict[str, Any]]:
    """One entry per family, system and hardware and one per family (system "all"): errors in percent, of the Programs and of the closed form, and
    why rows are `unpredicted`."""
    mine = [row for row in rows if row.kind in BEYOND]
    asked, reasons = _sorted(mine)
    found, predicted = Sorted(tuple(asked), ()).answered(constants, jobs)
    reasons |= {m.row.id: m.reason for m in found.missing}
    closed, measured = found.batch().values(constants) if found.cases else predicted, found.measured()
    keys = dict.fromkeys(key for row in mine for key in _keys(row))
    out = []
    for key in sorted(keys, key=lambda key: (list(BEYOND.values()).index(key[0]), key[1] != ALL, key)):
        at = np.array([i for i, case in enumerate(found.cases) if key in _keys(case.row)], np.int64)
        why = [reasons[row.id] for row in mine if row.id in reasons and key in _keys(row)]
        entry: dict[str, Any] = dict(zip(("family", "system", "hardware"), key, strict=True)) | {"by": BY, "n": len(at), "n_rows": len(at) + len(why)}
        errors, form = (errors_of(p[at], measured[at]) if len(at) else None for p in (predicted, closed))
        for name in ("median_ape", "p90_ape", "bias"):
            entry[name] = getattr(errors, name, None)
        entry["closed_median_ape"] = getattr(form, "median_ape", None)
        out.append(entry | {"unpredicted": "; ".join(f"{why.count(reason)} {reason}" for reason in dict.fromkeys(why))})
    return out


def _keys(row: Measurement) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    family = BEYOND[row.kind]
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
    if not in_scope(row) or not row.value or row.unit not in ("us", "ms"):
        raise Unsupported("no time on an NVIDIA machine of one NVLink domain")
    query = allreduce(row)
    return Case(row, BEYOND[row.kind], query, _ask(query))


def _ask(query: Query) -> Ask:
    n = query.numbers
    gpus = whole(n["gpus"], "GPUs")
    check_cluster(query.gpu, gpus)
    if gpus * gpus * n["bytes"] > MOST_BYTES:
        raise Unsupported("more than a million trains")
    return Ask("allreduce", AllReduceCase(query.gpu, gpus, query.words[0], whole(n["bytes"], "bytes"), int(n["in_flight"])), (), 0)
