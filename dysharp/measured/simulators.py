"""Errors that the papers state of their own simulators, beside the errors here on public measurements of the same kind."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dysharp.arrays import F64
from dysharp.measured.classify import Parsed
from dysharp.measured.families.nccl import CollectiveCase
from dysharp.measured.predictions import errors_of

MB = 1e6
H100 = "h100-sxm"


@dataclass(frozen=True, slots=True)
class Claim:
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
    Claim("DySHARP", "GEMMs on H100", 6.0, _family("dense-gemm", "grouped-gemm")),
    Claim("DySHARP", "DeepEP on H100", 6.0, _family("deepep-dispatch", "deepep-combine", "deepep-ll")),
    Claim("MoE-Hub", "NCCL all-to-all", 4.36, _all_to_all),
)
"""All-to-all of 0.5 to 256 MB, here from 1 MiB, on Hopper and Blackwell. Sources: DySHARP (arXiv 2605.05607), methodology: "within 6 %";
MoE-Hub, methodology: 4.36 %."""


def beside_simulators(parsed: Sequence[Parsed], predicted: F64, measured: F64) -> list[dict[str, Any]]:
    """One entry per claim: `published_mape` of the paper's simulator, and n, mape, median_ape, p90_ape and bias here (percent)."""
    rows = []
    for claim in CLAIMS:
        members = np.array([i for i, entry in enumerate(parsed) if claim.alike(entry)], dtype=np.int64)
        if len(members):
            ours = asdict(errors_of(predicted[members], measured[members]))
            rows.append({"paper": claim.paper, "measured": claim.kind, "published_mape": claim.mape} | ours)
    return rows
