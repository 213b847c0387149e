"""The family map: which measured rows belong to which family, and what is expected of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dysharp.analysis import layer_queries, queries
from dysharp.analysis.measured import Measurement
from dysharp.analysis.queries import Query

ASK: Mapping[str, Callable[[Measurement], Query]] = {
    "deepep-dispatch": queries.deepep_normal,
    "deepep-combine": queries.deepep_normal,
    "deepep-ll": queries.deepep_ll,
    "trtllm-a2a": queries.trtllm,
    "nccl": queries.nccl,
    "dense-gemm": queries.gemm,
    "grouped-gemm": queries.grouped,
    "fused-layer": layer_queries.fused,
    "layer": layer_queries.layer,
}
"""Families, in the order they are printed."""
BEYOND: Mapping[str, Callable[[Measurement], bool]] = {
    "inswitch-allreduce": lambda row: row.kind == "inswitch_allreduce",
    "custom-allreduce": lambda row: row.kind == "custom_allreduce",
    "hybrid-ep": lambda row: row.kind in ("ep_dispatch", "ep_combine") and row.system in ("Hybrid-EP", "HybridEP"),
}
"""Families beyond the bars: `beyond.judge` has a table of its own for them; they are in no mean, coverage, bar, fit or hold-out."""
OTHER_MACHINES = ("MI300X", "MI355X", "Ascend", "PCIe", "L20", "IB", "EFA", "multi-node", "4x8 H800", "+ CX7")
"""Text in the hardware column: no NVIDIA GPU, or more than one NVLink domain."""
NORMAL = ("DeepEP-normal", "DeepEP-normal V1", "DeepEP")
NCCL_KINDS = ("nccl_all_gather", "nccl_all_reduce", "nccl_reduce_scatter", "nccl_alltoall")
LAYER_KINDS = ("moe_layer", "moe_layer_fwd", "moe_layer0", "moe_layer1")


@dataclass(frozen=True, slots=True)
class Bars:
    """What the product promises (percent, ratios): checked by `validate --check`."""

    macro_median: float = 6.0
    """Mean over families of their median absolute errors."""
    macro_p90: float = 18.0
    family_median: float = 12.0
    """No family's median above it."""
    hold_out_ratio: float = 1.5
    """Median error with the group held out, over the fitted one."""
    constants: int = 39
    """Most fitted numbers."""
    coverage: float = 90.0
    """Of the rows of these families on NVIDIA machines in one NVLink domain."""


BARS = Bars()


def family_of(row: Measurement) -> str | None:
    """The family of a row, None when it belongs to none."""
    return next((family for family, belongs in BELONGS.items() if belongs(row)), None)


def beyond_of(row: Measurement) -> str | None:
    """The family beyond the bars of a row, None when it belongs to none."""
    return next((family for family, belongs in BEYOND.items() if belongs(row)), None)


def _above_one_mib(row: Measurement) -> bool:
    try:
        return queries.message_bytes(row) > 1 << 20
    except queries.Unsupported:
        return "large" in str(row.config) or "gpus" in row.config


def _is_normal(row: Measurement, kind: str) -> bool:
    return row.kind == kind and (row.system in NORMAL or row.system.startswith("DeepEP-normal V1 ("))


BELONGS: Mapping[str, Callable[[Measurement], bool]] = {
    "deepep-dispatch": lambda row: _is_normal(row, "ep_dispatch"),
    "deepep-combine": lambda row: _is_normal(row, "ep_combine"),
    "deepep-ll": lambda row: row.kind in ("ep_dispatch", "ep_combine") and row.system.startswith("DeepEP-LL"),
    "trtllm-a2a": lambda row: row.system.startswith("TRTLLM-NVLink"),
    "nccl": lambda row: row.kind in NCCL_KINDS and _above_one_mib(row),
    "dense-gemm": lambda row: row.kind in ("gemm_dense", "gemm_max"),
    "grouped-gemm": lambda row: row.kind.startswith("grouped_gemm"),
    "fused-layer": lambda row: row.kind == "moe_layer_fused" or (row.kind in ("moe_layer0", "moe_layer1") and row.system.startswith("COMET")),
    "layer": lambda row: row.kind in LAYER_KINDS,
}
"""Tests in order; the first that holds names the family."""


def in_scope(row: Measurement) -> bool:
    """Whether a row counts for coverage: an NVIDIA machine, one NVLink domain."""
    if any(text in row.hardware for text in OTHER_MACHINES) or row.config.get("nodes", 1) != 1 or row.config.get("link") == "IB":
        return False
    gpus = row.config.get("ep", 8)
    many = "H800/node" in row.hardware and isinstance(gpus, (int, float)) and gpus > 8
    return not many and row.config.get("bottleneck", "NVLink") == "NVLink" and "pure RDMA" not in row.system
