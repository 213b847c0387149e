"""Tables beside the bars: families beyond the bars, whose measurements are in no mean, coverage, bar, fit or hold-out; the papers' simulators, and
how far the sources of one kernel differ: no prediction can be nearer to all of them than they are to each other.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np

from dysharp.base import F64, Rows, frozen
from dysharp.measured.families.nccl import CollectiveCase
from dysharp.measured.family import Classified, Constants, Missing, Parsed, all_families
from dysharp.measured.predictions import ClosedForms, errors_of, measured_values

ALL = "all"
Key = tuple[str, str, str]


def beyond_errors(classified: Classified, constants: Constants, predicted: F64) -> Rows:
    """One entry per family (system "all") and one per family, system and hardware.

    | field | holds |
    |---|---|
    | `between` | `Family.between`: "" for families of one NVLink domain |
    | `by` | predictor |
    | `n`, `n_rows` | predictions, measurements |
    | `median_ape`, `p90_ape`, `bias` | errors in percent (`predictions.Errors`); None without predictions |
    | `closed_median_ape` | error of the closed form; None without one |
    | `unpredicted` | why measurements have no prediction, with their number |

    `predicted`: `[parsed]` predictions of the measurements beyond the bars (`predictions.predict`).
    """
    order = list(all_families())
    classified = classified.beyond_bars()
    measured, closed = measured_values(classified.parsed), ClosedForms(classified.parsed).values(constants)
    entries = []
    for key in sorted({key for entry in classified.entries for key in _keys(entry)}, key=lambda key: (order.index(key[0]), key[1] != ALL, key)):
        members = np.array([i for i, entry in enumerate(classified.parsed) if key in _keys(entry)], np.int64)
        reasons = [entry.reason for entry in classified.missing if key in _keys(entry)]
        own, form = (
            errors_of(values[members], measured[members]) if len(members) and np.isfinite(values[members]).all() else None
            for values in (predicted, closed)
        )
        entries.append(
            dict(zip(("family", "system", "hardware"), key, strict=True))
            | {"between": all_families()[key[0]].between}
            | {"by": all_families()[key[0]].predictor, "n": len(members), "n_rows": len(members) + len(reasons)}
            | {name: getattr(own, name, None) for name in ("median_ape", "p90_ape", "bias")}
            | {"closed_median_ape": getattr(form, "median_ape", None)}
            | {"unpredicted": "; ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))}
        )
    return entries


def _keys(entry: Parsed | Missing) -> tuple[Key, Key]:
    name = entry.family.name if entry.family is not None else ""
    return (name, ALL, ""), (name, entry.measurement.system, entry.measurement.hardware)


MB = 1e6
H100 = "h100-sxm"


@frozen
class _Claim:
    """A paper's mean absolute error of its simulator, in percent; which of our measurements are of that kind. The papers' own rows are not public."""

    paper: str
    kind: str
    mape: float
    alike: Callable[[Parsed], bool]


def _family(*names: str) -> Callable[[Parsed], bool]:
    return lambda entry: entry.family.name in names and entry.case.gpu == H100


def _all_to_all(entry: Parsed) -> bool:
    case = entry.case
    return isinstance(case, CollectiveCase) and case.kind == "alltoall" and 0.5 * MB <= case.n_bytes <= 256 * (1 << 20)


CLAIMS = (
    _Claim("DySHARP", "GEMMs on H100", 6.0, _family("dense-gemm", "grouped-gemm")),
    _Claim("DySHARP", "DeepEP on H100", 6.0, _family("deepep-dispatch", "deepep-combine", "deepep-ll")),
    _Claim("MoE-Hub", "NCCL all-to-all", 4.36, _all_to_all),
)
"""All-to-all of 0.5 to 256 MB, here from 1 MiB, on Hopper and Blackwell. Sources: DySHARP (arXiv 2605.05607), methodology: "within 6 %";
MoE-Hub, methodology: 4.36 %."""


def beside_simulators(parsed: Sequence[Parsed], predicted: F64, measured: F64) -> Rows:
    """One entry per claim: `published_mape` of the paper's simulator, and n, mape, median_ape, p90_ape and bias here (percent)."""
    rows = []
    for claim in CLAIMS:
        members = np.array([i for i, entry in enumerate(parsed) if claim.alike(entry)], dtype=np.int64)
        if len(members):
            ours = asdict(errors_of(predicted[members], measured[members]))
            rows.append({"paper": claim.paper, "measured": claim.kind, "published_mape": claim.mape} | ours)
    return rows


Times = dict[str, dict[Any, list[float]]]


def disagreements(parsed: Sequence[Parsed]) -> Rows:
    """One entry per family and pair of sources that measured the same cases.

    | field | holds |
    |---|---|
    | `source`, `other` | the source with more cases in the family, and the other one |
    | `n` | cases that both measured |
    | `least`, `median`, `most` | by how much the times of `other` are longer, in percent |
    """
    entries = []
    for family in dict.fromkeys(entry.family.name for entry in parsed):
        times = _times([entry for entry in parsed if entry.family.name == family])
        order = sorted(times, key=lambda source: (-len(times[source]), source))
        for source, other in combinations(order, 2):
            both = [case for case in times[source] if case in times[other]]
            if both:
                longer = [100 * (float(np.median(times[other][case])) / float(np.median(times[source][case])) - 1) for case in both]
                spread = {"least": min(longer), "median": float(np.median(longer)), "most": max(longer)}
                entries.append({"family": family, "source": source, "other": other, "n": len(both)} | spread)
    return entries


def source_of(text: str) -> str:
    """The project that a measurement was found in: the column `source` without version, file and thread."""
    return re.split(r"[@:#\s]", text.removeprefix("https://").removeprefix("github.com/"), maxsplit=1)[0]


def _times(parsed: Sequence[Parsed]) -> Times:
    """Times in us by source and case."""
    times: Times = {}
    for entry in parsed:
        times.setdefault(source_of(entry.measurement.source), {}).setdefault(entry.case, []).append(entry.measured_us)
    return times
