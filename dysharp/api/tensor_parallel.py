"""Systems of tensor-parallel sub-layers inside steps and serving: what a sub-layer takes beside its GEMMs and norms, from Rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

from dysharp.errors import ConfigError, nearest
from dysharp.runs.run import run
from dysharp.serving.work import SubLayerCurve
from dysharp.specs import Cluster, choice
from dysharp.specs.whole import WholeModel
from dysharp.steps.practice import SubLayers
from dysharp.systems.collectives import all_tensor_parallel
from dysharp.workload.sublayer import SubLayer

SIZES = (1024, 4096, 16384)
"""Tokens of the Rows of serving; between them a straight line, below them the engine's own all-reduce (the paper has prefill alone)."""
NORM_BYTES = 3
"""Times that a norm moves a row: sum and residual read, one written."""


def _ends(model: WholeModel) -> tuple[tuple[int, int], tuple[int, int]]:
    """Columns of the GEMMs before and behind each of both exchanges of a layer, over all GPUs: (L1, L2)."""
    a, first = model.attention, model.dense_hidden * (model.dense_matrices - 1)
    queries = (a.heads + a.kv_heads) * a.qk_dim + a.kv_heads * a.value_dim
    return (a.heads * a.value_dim, first), (model.dense_hidden, queries)


def check_tensor_system(system: str, model: WholeModel, tp: int) -> None:
    """Raises ConfigError for an unknown system, and for what its sub-layers do not describe: experts, MLA, one GPU."""
    if system not in all_tensor_parallel():
        raise ConfigError(f"tensor system: found {system[:60]!r}{nearest(system, all_tensor_parallel())}")
    if model.layer is not None or model.attention.mla:
        found = "experts" if model.layer is not None else "MLA"
        raise ConfigError(f"tensor system {system}: found {model.name} with {found}, expected a dense model with plain attention")
    if tp < 2:
        raise ConfigError(f"tensor system {system}: found tp={tp}, expected at least 2 GPUs that share a layer")


def _beside(system: str, cluster: Cluster, work: SubLayer, normed: float) -> float:
    """Microseconds of a sub-layer beside both GEMMs and the norm of `normed` of its rows, which others count."""
    row = run(system, workload=work, cluster=cluster, gpus=work.gpus)
    gemms = sum(work.flops) / (cluster.peak_flops_per_us("bf16") * float(choice("tp.gemm_part").value))
    return max(0.0, row.time_us - gemms - normed * NORM_BYTES * work.size / cluster.hbm_bytes_per_us)


def _work(name: str, model: WholeModel, tp: int, tokens: int, ends: tuple[int, int]) -> SubLayer:
    inner, outer = (max(1, width // tp) for width in ends)
    return SubLayer(f"{name} of {model.name}", tp, tokens, model.hidden, inner, outer)


def step_sub_layers(system: str, model: WholeModel, cluster: Cluster, tp: int, tokens: int) -> SubLayers:
    """L1 and L2 forward, L3 and L4 backward, of a micro-batch of `tokens` tokens. A GPU norms its own rows."""
    check_tensor_system(system, model, tp)
    one, two = _ends(model)
    works = zip(("L1", "L2", "L3", "L4"), (one, two, one[::-1], two[::-1]), strict=True)
    l1, l2, l3, l4 = (_beside(system, cluster, _work(name, model, tp, tokens, ends), 1 / tp) for name, ends in works)
    return SubLayers(system, (l1, l2), (l3, l4))


def serving_curves(system: str, model: WholeModel, cluster: Cluster) -> Callable[[int], SubLayerCurve]:
    """The curves of prefill by the number of GPUs that share a layer, each made once. Every GPU norms all rows."""
    check_tensor_system(system, model, 2)

    @functools.cache
    def curve(tp: int) -> SubLayerCurve:
        times = [tuple(_beside(system, cluster, _work(name, model, tp, size, ends), 1.0) for size in SIZES) for name, ends in
                 zip(("L1", "L2"), _ends(model), strict=True)]  # fmt: skip
        return SubLayerCurve(SIZES, times[0], times[1])

    return curve
