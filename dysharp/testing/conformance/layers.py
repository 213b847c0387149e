"""Small layers for the conformance suite."""

from dataclasses import dataclass, replace

import numpy as np

from dysharp.specs import Cluster, Model, load_cluster
from dysharp.systems import System
from dysharp.workload import Routing, make_routing

TINY = Model(name="tiny", hidden=512, expert_hidden=256, n_experts=16, topk=4, tokens_per_gpu=24, n_matrices=2, element_bytes=2, gemm_dtype="fp8")
WIDE = replace(TINY, name="wide", hidden=1000, n_experts=32, topk=8, n_matrices=3)
REAL = "hw-dgx-h100"


@dataclass(frozen=True, slots=True)
class SmallLayer:
    """A named workload."""

    name: str
    model: Model
    cluster: Cluster
    routing: Routing


def paper_cluster(n_gpus: int) -> Cluster:
    """The paper's cluster with `n_gpus` GPUs."""
    return load_cluster("paper-gh200-nvl32").with_gpus(n_gpus)


def dropping(routing: Routing, every: int) -> Routing:
    """`routing` without every `every`-th choice and without all choices of token 1."""
    gone = np.arange(routing.slot.size).reshape(routing.slot.shape) % every == 0
    gone[1] = True
    return replace(routing, expert=np.where(gone, np.int32(-1), routing.expert), slot=np.where(gone, np.int32(-1), routing.slot))


def small_layers() -> dict[str, SmallLayer]:
    """Layers by name: even, skewed, with dropped choices, on one GPU, and on an hw cluster."""
    layers = (
        SmallLayer("uniform", TINY, paper_cluster(4), make_routing("uniform", TINY, 4, 24)),
        SmallLayer("lognormal", WIDE, paper_cluster(4), make_routing("lognormal:0.65", WIDE, 4, 24, seed=1)),
        SmallLayer("dropped", TINY, paper_cluster(4), dropping(make_routing("uniform", TINY, 4, 24, seed=2), 3)),
        SmallLayer("one GPU", TINY, paper_cluster(1), make_routing("uniform", TINY, 1, 24, seed=3)),
        SmallLayer("real", TINY, load_cluster(REAL).with_gpus(4), dropping(make_routing("lognormal:0.65", TINY, 4, 24, seed=5), 5)),
    )
    return {layer.name: layer for layer in layers}


def layers_of(system: System) -> list[SmallLayer]:
    """The layers for a system. Only a system with a real form runs on the hw cluster."""
    return [layer for layer in small_layers().values() if layer.name != "real" or system.has_real_form]
