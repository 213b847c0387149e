"""Small layers for the tests of systems: those of the conformance suite, and one on more GPUs than one word has bits."""

from __future__ import annotations

from dysharp.specs import Cluster, Model
from dysharp.testing.conformance.case import TINY, WIDE, dropping, paper_cluster, small_layers
from dysharp.workload import Routing, make_routing

__all__ = ["TINY", "WIDE", "cluster", "dropping", "layers"]
cluster = paper_cluster


def layers() -> dict[str, tuple[Model, Cluster, Routing]]:
    """Layers by name."""
    small = {layer.name: (layer.model, layer.cluster, layer.routing) for layer in small_layers().values()}
    return small | {"32 GPUs": (WIDE, cluster(32), make_routing("uniform", WIDE, 32, 6, seed=4))}
