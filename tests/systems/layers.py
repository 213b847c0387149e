"""Small layers for the tests of systems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dysharp.specs import Cluster, Model, load_cluster
from dysharp.workload import Routing, make_routing

TINY = Model(
    name="tiny",
    hidden=512,
    expert_hidden=256,
    n_experts=16,
    topk=4,
    tokens_per_gpu=24,
    n_matrices=2,
    element_bytes=2,
    gemm_dtype="fp8",
)
WIDE = replace(TINY, name="wide", hidden=1000, n_experts=32, topk=8, n_matrices=3)


def cluster(n_gpus: int) -> Cluster:
    """`n_gpus` of the paper's machine."""
    return load_cluster("paper-gh200-nvl32").with_gpus(n_gpus)


def dropping(routing: Routing, every: int) -> Routing:
    """Every `every`-th choice dropped, and all choices of token 1."""
    gone = np.arange(routing.slot.size).reshape(routing.slot.shape) % every == 0
    gone[1] = True
    return replace(
        routing,
        expert=np.where(gone, np.int32(-1), routing.expert),
        slot=np.where(gone, np.int32(-1), routing.slot),
    )


def layers() -> dict[str, tuple[Model, Cluster, Routing]]:
    """Layers by name: even, skewed, with dropped choices, on one GPU, on more GPUs than one word has bits, on a real machine."""
    return {
        "uniform": (TINY, cluster(4), make_routing("uniform", TINY, 4, 24)),
        "lognormal": (WIDE, cluster(4), make_routing("lognormal:0.65", WIDE, 4, 24, seed=1)),
        "dropped": (TINY, cluster(4), dropping(make_routing("uniform", TINY, 4, 24, seed=2), 3)),
        "one GPU": (TINY, cluster(1), make_routing("uniform", TINY, 1, 24, seed=3)),
        "real": (TINY, load_cluster("hw-dgx-h100").with_gpus(4), dropping(make_routing("lognormal:0.65", TINY, 4, 24, seed=5), 5)),
        "32 GPUs": (WIDE, cluster(32), make_routing("uniform", WIDE, 32, 6, seed=4)),
    }
