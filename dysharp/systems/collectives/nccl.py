"""NCCL: its own choice of algorithm and protocol (`nccl`), its rings, trees and all-to-all (`nccl-ring`, `nccl-tree`, `nccl-a2a`), and NVLS.

On one node NCCL uses NVLS (`nccl-nvls`) for all-reduces only; its all-gathers and reduce-scatters are rings. Channels take turns at chunks, and all
GPUs exchange flags once a turn. `costs.collectives.nvls_rounds` has the bytes of a turn and its time, `nvls_loads` the loads that threads of a GPU
have under way. Two turns fill and empty the pipeline: they have no transfers here, because a chunk is then copied inside its GPU.
"""

import numpy as np

from dysharp.base import PS_PER_US, ConfigError, Texts, check_word, nearest
from dysharp.costs import arch_of
from dysharp.costs import collectives as times
from dysharp.program import BETWEEN_NET, I32, I64, NIC, Kind, Program, Tail, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.collectives.kernels import Kernel
from dysharp.systems.building.collectives.rings import NAMES, ring_program, rings_of
from dysharp.systems.building.collectives.steps import RESULT, SCRATCH, SUM, VECTOR, Steps, reaching
from dysharp.systems.building.collectives.trees import Trees, Way, rail_trees
from dysharp.systems.building.layer import RDMA
from dysharp.systems.collective_system import NoOptions, collective
from dysharp.workload import OPERATIONS, Collective

RELAY = f"{SCRATCH}first"


@collective("nccl-a2a", source="https://github.com/NVIDIA/nccl (src/enqueue.cc, PXN)", operations=("all-to-all",), domains=True)
def _all_to_all(work: Collective, cluster: Cluster, options: NoOptions) -> Program:
    """NCCL's all-to-all: every GPU stores its parts to all peers; a part for another node leaves at the GPU of the receiver's rail (PXN)."""
    return _AllToAll(work, cluster).program()


class _AllToAll(Steps):
    """An all-to-all under construction."""

    def program(self) -> Program:
        """The Program. The flight and the acknowledgement of a store are parts of the start's time."""
        chunks, size = self.chunks, self.cluster.domain_gpus
        late = 2 * self.flight_ps if self.n > 1 else 0
        net_us = times.NET_STEPS_US[times.PROTOCOLS.index(times.SIMPLE)] if self.cluster.domains > 1 else 0.0
        start_us = net_us + float(times.alltoall_start_us(self.cluster.own_gpu, self.cluster.fitted, self.work.size, max(self.work.shares)))
        begun = self.start("launch", round(start_us * PS_PER_US) - late)
        self.senders = self.ready("exchange")
        self.declare("exchange", 0, "up", "down", *NIC.sides)
        node, to = chunks.vector, chunks.share
        order = np.lexsort((chunks.place, (to - node) % self.n, node))
        order = order[np.argsort(node[order], kind="stable")]
        rail = node - node % size + to % size
        far, stays = node // size != to // size, node == to
        self.send(order[(~far & ~stays)[order]], node, to, VECTOR, RESULT, begun)
        self.send(order[(far & (rail == node))[order]], node, to, VECTOR, RESULT, begun, BETWEEN_NET)
        two = order[(far & (rail != node))[order]]
        if len(two):
            rows, tiles = self.arrivals("relay", rail[two], chunks.size[two])
            self.send(two, node, rail, VECTOR, RELAY, begun, row=rows)
            self.wait(self.send(two, rail, to, RELAY, RESULT, begun, BETWEEN_NET), tiles, Tail.TILE_READY)
        kept = np.flatnonzero(stays)
        self.keep(VECTOR, RESULT, kept, to[kept], begun[to[kept]])
        return self.build()

    def send(self, chunk: I64, node: I32, to: I32, src: str, dst: str, after: I32, net: int = 0, row: I32 | None = None) -> I32:
        """Chunks from `node[chunk]` to `to[chunk]`."""
        if not len(chunk):
            return np.zeros(0, np.int32)
        framing = RDMA if net else reaching("store", self.costs.value("link.fraction"), ack=1)
        template = self.template("exchange", Kind.PUT, "exchange", "copy", framing, src=src, dst=dst, net=net)
        op = self.move(template, node[chunk], chunk, self.senders[node[chunk]], to[chunk], row=row)
        self.wait(op, after[node[chunk]])
        self.declare("exchange", int(self.chunks.size[chunk].sum()), *(NIC.sides if net else ("up", "down")))
        return op


@frozen
class _NvlsOptions:
    """Options of NCCL's NVLS; its chunks follow from the size.

    | option | values |
    |---|---|
    | `held` | whether a GPU has no more loads under way than NCCL's threads hold (`nvls_loads`); without it, all of a turn |
    """

    held: bool = True


@collective(
    "nccl-nvls",
    source="https://github.com/NVIDIA/nccl (src/transport/nvls.cc, src/enqueue.cc)",
    options=_NvlsOptions,
    operations=("all-reduce",),
    switch="it multicasts and adds there",
)
def nvls(work: Collective, cluster: Cluster, options: _NvlsOptions) -> Program:
    """NCCL's NVLS all-reduce: every GPU pulls the sum of its part of a chunk and sends it to all, turn by turn."""
    gpu, m = cluster.own_gpu, cluster.fitted
    build = Kernel(work, cluster, times.nvls_loads(gpu, work.gpus) if options.held else 0)
    block, fill_us = (float(value) for value in times.nvls_rounds(gpu, m, work.gpus, work.size))
    build.store = reaching("store", times.ring_part(gpu) * times.NVLS_PART[arch_of(gpu)], ack=1)
    hardware = build.b.hardware
    # The exchange is from end to end of a turn: a load and a store of the Program are parts of it.
    simulated = 4 * hardware.lat + hardware.responder + 2 * hardware.lat + hardware.ack
    flags = max(1, round(float(times.sync_us(gpu, m, work.gpus)) * PS_PER_US) - simulated)
    build.then(build.start("launch", round((times.SIMPLE.start_us + fill_us) * PS_PER_US)))
    size, share, waiters = build.chunks.size, build.chunks.share, build.issuers("turn", slots=1)
    before = np.cumsum(size) - size - np.array(work.first)[share]  # bytes of the share before the chunk
    turn = before * work.gpus // round(block)
    for number in range(int(turn.max(initial=0)) + 1):
        mine = np.flatnonzero(turn == number)
        exchange = build.delay("turn", flags, waiters)
        build.wait(np.tile(exchange, build.n), np.repeat(build.before, build.n))
        build.before = exchange
        node, pull = build.pull(share[mine], mine, SUM)
        node, store = build.multicast(node, mine, SUM, pull)
        build.then(build.join("turn.done", Batch(op=store, node=node)))
    return build.build()


TRAINS, BULK = "trains", "bulk"


@frozen
class _RingOptions:
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


def _ring_place(work: Collective, cluster: Cluster, options: _RingOptions) -> int:
    """Place of a run's protocol in `PROTOCOLS`. Raises ConfigError for an unknown name."""
    passes = 2 if work.operation == "all-reduce" else 1
    return int(times.ring_protocol(cluster.own_gpu, passes, work.gpus, work.size)) if options.protocol == "auto" else _place_of(options.protocol)


def _place_of(name: str) -> int:
    """Place of the protocol called `name` among protocols. Raises ConfigError for an unknown name."""
    if name not in NAMES:
        raise ConfigError(f"protocol: found {name!r}{nearest(name, ('auto', *NAMES))}")
    return list(NAMES).index(name)


def _says(protocol: str, at: int) -> Texts:
    return (f"NCCL's tuner takes protocol {list(NAMES)[at]}",) if protocol == "auto" else ()


@collective(
    "nccl-ring",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, src/device)",
    options=_RingOptions,
    operations=("all-reduce", "all-gather", "reduce-scatter", "broadcast"),
    domains=True,
    says=lambda work, cluster, options: _says(options.protocol, _ring_place(work, cluster, options)),
)
def _ring(work: Collective, cluster: Cluster, options: _RingOptions) -> Program:
    """NCCL's ring: at each step every GPU passes one share on to the next GPU; over several NVLink domains a ring per rail."""
    at, bulk = _ring_place(work, cluster, options), options.ops == BULK
    if bulk and (cluster.domains > 1 or work.operation == "broadcast"):
        where = "broadcast" if work.operation == "broadcast" else f"{cluster.domains} NVLink domains"
        raise ConfigError(f"option nccl-ring.ops: found 'bulk' with {where}, expected 'trains' (a chunk goes on when it has arrived)")
    return _broadcast(work, cluster, at) if work.operation == "broadcast" else ring_program(work, cluster, times.PROTOCOLS[at], bulk=bulk)


def _broadcast(work: Collective, cluster: Cluster, at: int) -> Program:
    """Chunks go around the rings from GPU 0 to the GPU before it."""
    gpu, protocol = cluster.own_gpu, times.PROTOCOLS[at]
    start, part = times.start_us(gpu, cluster.fitted, protocol), protocol.part
    way = Way(start, float(times.hop_us(gpu, protocol)), times.NET_STEPS_US[at], times.ring_part(gpu) * part, part)
    rings = rings_of(cluster)
    parents = np.empty_like(rings)
    np.put_along_axis(parents, rings, np.roll(rings, 1, axis=1), axis=1)
    parents[:, 0] = -1
    chains = Trees(work, cluster, parents, way)
    chains.keep_root()
    chains.gather({}, VECTOR)
    return chains.build()


@frozen
class _TreeOptions:
    """Options of NCCL's trees.

    | option | meaning |
    |---|---|
    | `protocol` | "ll", "ll128", "simple", or "auto": the one that NCCL's tuner takes among trees |
    """

    protocol: str = "auto"


def _tree_place(work: Collective, cluster: Cluster, options: _TreeOptions) -> int:
    if options.protocol == "auto":
        rate = cluster.scale_out.rate / 1000 if cluster.scale_out else 0.0
        return times.tree_protocol(cluster.own_gpu, cluster.domain_gpus, cluster.domains, work.size, rate)[0]
    return _place_of(options.protocol)


@collective(
    "nccl-tree",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, trees.cc)",
    options=_TreeOptions,
    operations=("all-reduce",),
    domains=True,
    says=lambda work, cluster, options: _says(options.protocol, _tree_place(work, cluster, options)),
)
def _tree(work: Collective, cluster: Cluster, options: _TreeOptions) -> Program:
    """NCCL's tree: sums go up a chain of a node's GPUs and a binary tree between nodes, results go down."""
    at, gpu = _tree_place(work, cluster, options), cluster.own_gpu
    protocol = times.TREES[at]
    part = times.ring_part(gpu) * times.TREE_PART[at]
    way = Way(protocol.start_us, float(times.hop_us(gpu, protocol)), times.TREE_NET_US[at], part, times.TREE_PART[at])
    trees = Trees(work, cluster, rail_trees(cluster.n_gpus, cluster.domain_gpus), way)
    trees.alone()
    trees.gather(trees.reduce(), RESULT)
    return trees.build()


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


def _choice(work: Collective, cluster: Cluster, options: Options) -> tuple[str, str]:
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


def _told(work: Collective, cluster: Cluster, options: Options) -> Texts:
    """The choice."""
    algorithm, protocol = _choice(work, cluster, options)
    return (f"NCCL's tuner takes {algorithm} with protocol {protocol}",)


@collective("nccl", source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc)", options=Options, operations=OPERATIONS, domains=True, says=_told)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL: the algorithm and the protocol that its tuner takes."""
    algorithm, protocol = _choice(work, cluster, options)
    if algorithm == "ring":
        return _ring(work, cluster, _RingOptions(protocol))
    if algorithm == "tree":
        return _tree(work, cluster, _TreeOptions(protocol))
    return nvls(work, cluster, _NvlsOptions()) if algorithm == "nvls" else _all_to_all(work, cluster, NoOptions())
