"""NCCL with its own choice of algorithm and protocol (`nccl`), its rings (`nccl-ring`) and its trees (`nccl-tree`)."""

import numpy as np

from dysharp.base.errors import ConfigError, check_word
from dysharp.costs import collectives as times
from dysharp.costs.operators import arch_of
from dysharp.program import Program, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.rings import NAMES, place_of, ring_program, rings_of
from dysharp.systems.building.collectives.steps import RESULT, VECTOR
from dysharp.systems.building.collectives.trees import Trees, Way, rail_trees
from dysharp.systems.collective_system import collective
from dysharp.systems.collectives import get_collective
from dysharp.workload.collective import OPERATIONS, Collective

TRAINS, BULK = "trains", "bulk"


@frozen
class RingOptions:
    """Options of NCCL's rings.

    | option | meaning |
    |---|---|
    | `protocol` | "ll", "ll128", "simple", or "auto": the one that NCCL's tuner takes among rings |
    | `ops` | "trains": an op is a train of a link. "bulk": an op is what one step passes on, in one domain; few ops for many GiB, and no timeline |
    """

    protocol: str = "auto"
    ops: str = TRAINS

    def __post_init__(self) -> None:
        check_word(self.ops, (TRAINS, BULK), f"option nccl-ring.ops: found {self.ops!r}")


def _ring_place(work: Collective, cluster: Cluster, options: RingOptions) -> int:
    """Place of a run's protocol in `PROTOCOLS`. Raises ConfigError for an unknown name."""
    passes = 2 if work.operation == "all-reduce" else 1
    return int(times.ring_protocol(cluster.own_gpu, passes, work.gpus, work.size)) if options.protocol == "auto" else place_of(options.protocol)


def ring_says(work: Collective, cluster: Cluster, options: RingOptions) -> tuple[str, ...]:
    """The protocol, where NCCL chooses it."""
    return _says(options.protocol, _ring_place(work, cluster, options))


def _says(protocol: str, at: int) -> tuple[str, ...]:
    return (f"NCCL's tuner takes protocol {list(NAMES)[at]}",) if protocol == "auto" else ()


@collective(
    "nccl-ring",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, src/device)",
    options=RingOptions,
    operations=("all-reduce", "all-gather", "reduce-scatter", "broadcast"),
    domains=True,
    says=ring_says,
)
def ring(work: Collective, cluster: Cluster, options: RingOptions) -> Program:
    """NCCL's ring: at each step every GPU passes one share on to the next GPU; over several NVLink domains a ring per rail."""
    at, bulk = _ring_place(work, cluster, options), options.ops == BULK
    if bulk and (cluster.domains > 1 or work.operation == "broadcast"):
        where = "broadcast" if work.operation == "broadcast" else f"{cluster.domains} NVLink domains"
        raise ConfigError(f"option nccl-ring.ops: found 'bulk' with {where}, expected 'trains' (a chunk goes on when it has arrived)")
    return broadcast(work, cluster, at) if work.operation == "broadcast" else ring_program(work, cluster, times.PROTOCOLS[at], bulk=bulk)


def broadcast(work: Collective, cluster: Cluster, at: int) -> Program:
    """Chunks go around the rings from GPU 0 to the GPU before it."""
    gpu, protocol = cluster.own_gpu, times.PROTOCOLS[at]
    start, part = times.start_us(gpu, cluster.fitted, protocol), protocol.part
    way = Way(start, float(times.hop_us(gpu, protocol)), times.NET_STEPS_US[at], times.RING_PART[arch_of(gpu)] * part, part)
    rings = rings_of(cluster)
    parents = np.empty_like(rings)
    np.put_along_axis(parents, rings, np.roll(rings, 1, axis=1), axis=1)
    parents[:, 0] = -1
    chains = Trees(work, cluster, parents, way)
    chains.keep_root()
    chains.gather({}, VECTOR)
    return chains.build(chains.traffic)


@frozen
class TreeOptions:
    """Options of NCCL's trees.

    | option | meaning |
    |---|---|
    | `protocol` | "ll", "ll128", "simple", or "auto": the one that NCCL's tuner takes among trees |
    """

    protocol: str = "auto"


def tree_says(work: Collective, cluster: Cluster, options: TreeOptions) -> tuple[str, ...]:
    """The protocol, where NCCL chooses it."""
    return _says(options.protocol, _tree_place(work, cluster, options))


def _tree_place(work: Collective, cluster: Cluster, options: TreeOptions) -> int:
    if options.protocol == "auto":
        rate = cluster.scale_out.rate / 1000 if cluster.scale_out else 0.0
        return times.tree_protocol(cluster.own_gpu, cluster.domain_gpus, cluster.domains, work.size, rate)[0]
    return place_of(options.protocol)


@collective(
    "nccl-tree",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, trees.cc)",
    options=TreeOptions,
    operations=("all-reduce",),
    domains=True,
    says=tree_says,
)
def tree(work: Collective, cluster: Cluster, options: TreeOptions) -> Program:
    """NCCL's tree: sums go up a chain of a node's GPUs and a binary tree between nodes, results go down."""
    at, gpu = _tree_place(work, cluster, options), cluster.own_gpu
    protocol = times.TREES[at]
    part = times.RING_PART[arch_of(gpu)] * times.TREE_PART[at]
    way = Way(protocol.start_us, float(times.hop_us(gpu, protocol)), times.TREE_NET_US[at], part, times.TREE_PART[at])
    trees = Trees(work, cluster, rail_trees(cluster.n_gpus, cluster.domain_gpus), way)
    trees.alone()
    trees.gather(trees.reduce(), RESULT)
    return trees.build(trees.traffic)


ON, OFF, AUTO = "on", "off", "auto"


@frozen
class Options:
    """Options of NCCL.

    | option | meaning |
    |---|---|
    | `nvls` | "auto": by the number of GPUs; "on", "off": NCCL_NVLS_ENABLE with any number of GPUs |
    """

    nvls: str = AUTO

    def __post_init__(self) -> None:
        check_word(self.nvls, (AUTO, ON, OFF), f"option nccl.nvls: found {self.nvls!r}")


def choice(work: Collective, cluster: Cluster, options: Options) -> tuple[str, str]:
    """(algorithm, protocol) that NCCL takes: "ring", "tree", "nvls" or "peers", and a name of `NAMES`."""
    names, gpu = list(NAMES), cluster.own_gpu
    if work.operation == "all-to-all":
        return "peers", "simple"
    passes = 2 if work.operation == "all-reduce" else 1
    if cluster.domains > 1 and work.operation == "all-reduce":
        assert cluster.scale_out is not None
        rate = cluster.scale_out.rate / 1000
        by_tree, tree_us = times.tree_protocol(gpu, cluster.domain_gpus, cluster.domains, work.size, rate)
        by_ring, ring_us = times.ring_tuned_us(gpu, cluster.domain_gpus, cluster.domains, work.size, rate)
        return ("tree", names[by_tree]) if tree_us < ring_us else ("ring", names[by_ring])
    may = work.operation == "all-reduce" and cluster.domains == 1 and times.in_switch(gpu, work.gpus, {ON: True, OFF: False}.get(options.nvls))
    chosen = int(times.ring_protocol(gpu, passes, work.gpus, work.size, in_switch=may))
    return ("nvls", "simple") if chosen == times.NVLS else ("ring", names[chosen])


def says(work: Collective, cluster: Cluster, options: Options) -> tuple[str, ...]:
    """The choice."""
    algorithm, protocol = choice(work, cluster, options)
    return (f"NCCL's tuner takes {algorithm} with protocol {protocol}",)


@collective("nccl", source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc)", options=Options, operations=OPERATIONS, domains=True, says=says)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL: the algorithm and the protocol that its tuner takes."""
    algorithm, protocol = choice(work, cluster, options)
    if algorithm == "ring":
        return ring(work, cluster, RingOptions(protocol))
    if algorithm == "tree":
        return tree(work, cluster, TreeOptions(protocol))
    other = get_collective("nccl-nvls" if algorithm == "nvls" else "nccl-a2a")
    return other.plan(work, cluster, other.options())
