"""NCCL with its own choice of algorithm and protocol (`nccl`)."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.compute.collectives import NVLS, in_switch, ring_protocol, ring_tuned_us, tree_protocol
from dysharp.errors import ConfigError, nearest
from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.rings import NAMES
from dysharp.systems.collectives import nccl_ring, nccl_tree
from dysharp.systems.collectives.register import collective, get_collective
from dysharp.workload.collective import OPERATIONS, Collective

ON, OFF, AUTO = "on", "off", "auto"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of NCCL.

    | option | meaning |
    |---|---|
    | `nvls` | "auto": by the number of GPUs; "on", "off": NCCL_NVLS_ENABLE with any number of GPUs |
    """

    nvls: str = AUTO

    def __post_init__(self) -> None:
        if self.nvls not in (AUTO, ON, OFF):
            raise ConfigError(f"option nccl.nvls: found {self.nvls!r}{nearest(self.nvls, (AUTO, ON, OFF))}")


def choice(work: Collective, cluster: Cluster, options: Options) -> tuple[str, str]:
    """(algorithm, protocol) that NCCL takes: "ring", "tree", "nvls" or "peers", and a name of `NAMES`."""
    names, gpu = list(NAMES), cluster.own_gpu
    if work.operation == "all-to-all":
        return "peers", "simple"
    passes = 2 if work.operation == "all-reduce" else 1
    if cluster.domains > 1 and work.operation == "all-reduce":
        assert cluster.scale_out is not None
        rate = cluster.scale_out.rate / 1000
        tree, tree_us = tree_protocol(gpu, cluster.domain_gpus, cluster.domains, work.size, rate)
        ring, ring_us = ring_tuned_us(gpu, cluster.domain_gpus, cluster.domains, work.size, rate)
        return ("tree", names[tree]) if tree_us < ring_us else ("ring", names[ring])
    may = work.operation == "all-reduce" and cluster.domains == 1 and in_switch(gpu, work.gpus, {ON: True, OFF: False}.get(options.nvls))
    chosen = int(ring_protocol(gpu, passes, work.gpus, work.size, in_switch=may))
    return ("nvls", "simple") if chosen == NVLS else ("ring", names[chosen])


def says(work: Collective, cluster: Cluster, options: Options) -> tuple[str, ...]:
    """The choice."""
    algorithm, protocol = choice(work, cluster, options)
    return (f"NCCL's tuner takes {algorithm} with protocol {protocol}",)


@collective("nccl", source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc)", options=Options, operations=OPERATIONS, domains=True, says=says)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL: the algorithm and the protocol that its tuner takes."""
    algorithm, protocol = choice(work, cluster, options)
    if algorithm == "ring":
        return nccl_ring.plan(work, cluster, nccl_ring.Options(protocol))
    if algorithm == "tree":
        return nccl_tree.plan(work, cluster, nccl_tree.Options(protocol))
    other = get_collective("nccl-nvls" if algorithm == "nvls" else "nccl-a2a")
    return other.plan(work, cluster, other.options())
