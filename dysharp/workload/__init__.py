"""Workloads: `Routing`, which expert every token needs, where it lives, and the bytes that follow from it."""

from __future__ import annotations

from dysharp.workload.closed import UniformTraffic, uniform_p, uniform_R, uniform_traffic
from dysharp.workload.describe import GpuRow, LayerRow, describe, describe_routing
from dysharp.workload.make import make_routing, routing_from
from dysharp.workload.pairs import Pairs, pairs
from dysharp.workload.routing import (
    DistinctGpus,
    Imbalance,
    Placement,
    Routing,
    distinct_gpus,
    imbalance,
    needed_gpus,
    rows_per_expert,
    rows_per_slot,
)
from dysharp.workload.traces import packaged_traces
from dysharp.workload.traffic import SCHEMES, Direction, Traffic, traffic

__all__ = [
    "SCHEMES",
    "Direction",
    "DistinctGpus",
    "GpuRow",
    "Imbalance",
    "LayerRow",
    "Pairs",
    "Placement",
    "Routing",
    "Traffic",
    "UniformTraffic",
    "describe",
    "describe_routing",
    "distinct_gpus",
    "imbalance",
    "make_routing",
    "needed_gpus",
    "packaged_traces",
    "pairs",
    "routing_from",
    "rows_per_expert",
    "rows_per_slot",
    "traffic",
    "uniform_R",
    "uniform_p",
    "uniform_traffic",
]
