"""Rows of the pseudo-system `closed-form`: uniform routing in formulas, nothing is simulated."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dysharp.errors import ConfigError
from dysharp.experiments.figure import CLOSED_FORM, Point
from dysharp.specs import load_cluster, load_model
from dysharp.workload import uniform_traffic


def closed_row(point: Point) -> dict[str, Any]:
    """Fields of `workload.UniformTraffic` (vectors per token, shares and ratios) for the point's model, GPUs and option `topk`."""
    assert point.system == CLOSED_FORM
    options = dict(point.options)
    model = load_model(point.model)
    topk = options.pop("topk", model.topk)
    if options or isinstance(topk, bool) or not isinstance(topk, int):
        raise ConfigError(f"{point.label}: found options {dict(point.options)}, expected topk (a whole number) or none")
    gpus = load_cluster(point.cluster).n_gpus if point.gpus is None else point.gpus
    return asdict(uniform_traffic(model.n_experts, gpus, topk))
