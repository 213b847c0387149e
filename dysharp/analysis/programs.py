"""Times of today's EP kernels from their Programs on the burst engine: the prediction that `validate` judges for them.

A Program is run on few tokens and continued along the line through its two largest runs: every op beyond them is one of the same kind on the
same resources. `tests/analysis/test_programs.py` holds that line against full runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dysharp.engine.burst.run import run_burst
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.systems import get_system
from dysharp.systems.software import constants_given
from dysharp.units import PS_PER_US
from dysharp.workload import make_routing

CLUSTERS = {"h100-sxm": "hw-dgx-h100", "h200-sxm": "hw-dgx-h200", "h800": "hw-dgx-h800", "b200": "hw-dgx-b200", "gb200": "hw-gb200-tray"}
"""Packaged GPU -> the cluster of one node of it."""
NEAR, FAR = 256, 512
"""Tokens per GPU of the two runs that carry the line."""


@dataclass(frozen=True, slots=True)
class EpCase:
    """One measured case: `tokens` per GPU, `n_sm` SMs of the communication kernels, FP8 rows with scales out and BF16 rows back."""

    gpu: str
    gpus: int
    hidden: int
    experts: int
    topk: int
    tokens: int
    n_sm: int
    fp8: bool = True


def deepep_us(case: EpCase, constants: Mapping[str, float]) -> tuple[float, float]:
    """(dispatch, combine) in us of DeepEP normal kernels with a cached handle, under uniform routing."""
    frozen = tuple(sorted(constants.items()))
    if case.tokens <= FAR:
        return _run(case, case.tokens, frozen)
    near, far = _run(case, NEAR, frozen), _run(case, FAR, frozen)
    more = (case.tokens - FAR) / (FAR - NEAR)
    return far[0] + more * (far[0] - near[0]), far[1] + more * (far[1] - near[1])


@lru_cache(maxsize=4096)
def _run(case: EpCase, tokens: int, constants: tuple[tuple[str, float], ...]) -> tuple[float, float]:
    cluster = load_cluster(CLUSTERS[case.gpu]).with_gpus(case.gpus)
    model = Model(
        name="measured",
        hidden=case.hidden,
        expert_hidden=128,
        n_experts=case.experts,
        topk=case.topk,
        tokens_per_gpu=tokens,
        n_matrices=2,
        element_bytes=2,
        gemm_dtype="bf16",
    )
    routing = make_routing("uniform", model, case.gpus, tokens)
    deepep = get_system("deepep")
    options = deepep.options(form="real", n_sm=case.n_sm, dispatch="fp8" if case.fp8 else "rows", compute=False)
    with constants_given(dict(constants)):
        program = deepep.plan(model, cluster, routing, "fwd", options)
    trace, _ = run_burst(program)
    received = [i for i, template in enumerate(program.templates) if template.name == "received"]
    dispatched = int(trace.done[np.isin(program.ops.template, received)].max())
    return dispatched / PS_PER_US, (trace.time_ps - dispatched) / PS_PER_US


def layer_us(model: Model, cluster: Cluster, n_sm: int, *, fp8: bool, constants: Mapping[str, float]) -> float:
    """A whole layer under DeepEP normal kernels, uniform routing, in us: transfers and GEMMs, without what surrounds them."""
    routing = make_routing("uniform", model, cluster.n_gpus, model.tokens_per_gpu)
    deepep = get_system("deepep")
    options = deepep.options(form="real", n_sm=n_sm, dispatch="fp8" if fp8 else "rows")
    with constants_given(constants):
        program = deepep.plan(model, cluster, routing, "fwd", options)
    return run_burst(program)[0].time_ps / PS_PER_US
