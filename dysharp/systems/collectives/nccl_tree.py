"""NCCL's trees (`nccl-tree`)."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.compute.collectives import RING_PART, TREE_NET_US, TREE_PART, TREES, hop_us, tree_protocol
from dysharp.compute.operators import arch_of
from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.chunks import RESULT
from dysharp.systems.building.collectives.rings import NAMES, place_of
from dysharp.systems.building.collectives.trees import Trees, Way, rail_trees
from dysharp.systems.collectives.register import collective
from dysharp.workload.collective import Collective


@dataclass(frozen=True, slots=True)
class Options:
    """Options of NCCL's trees.

    | option | meaning |
    |---|---|
    | `protocol` | "ll", "ll128", "simple", or "auto": the one that NCCL's tuner takes among trees |
    """

    protocol: str = "auto"


def says(work: Collective, cluster: Cluster, options: Options) -> tuple[str, ...]:
    """The protocol, where NCCL chooses it."""
    return (f"NCCL's tuner takes protocol {list(NAMES)[_place(work, cluster, options)]}",) if options.protocol == "auto" else ()


def _place(work: Collective, cluster: Cluster, options: Options) -> int:
    if options.protocol == "auto":
        rate = cluster.scale_out.rate / 1000 if cluster.scale_out else 0.0
        return tree_protocol(cluster.own_gpu, cluster.domain_gpus, cluster.domains, work.size, rate)[0]
    return place_of(options.protocol)


@collective(
    "nccl-tree",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, trees.cc)",
    options=Options,
    operations=("all-reduce",),
    domains=True,
    says=says,
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL's tree: sums go up a chain of a node's GPUs and a binary tree between nodes, results go down."""
    at, gpu = _place(work, cluster, options), cluster.own_gpu
    protocol = TREES[at]
    part = RING_PART[arch_of(gpu)] * TREE_PART[at]
    way = Way(protocol.start_us, float(hop_us(gpu, protocol)), TREE_NET_US[at], part, TREE_PART[at])
    trees = Trees(work, cluster, rail_trees(cluster.n_gpus, cluster.domain_gpus), way)
    trees.alone()
    trees.gather(trees.reduce(), RESULT)
    return trees.build(trees.traffic)
