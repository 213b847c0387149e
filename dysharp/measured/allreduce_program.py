"""All-reduce kernels as Programs, through the switch (multimem) or between peers.

The steps of each kernel come from `compute.allreduce`. All-reduces are not systems of a MoE layer: `plan` takes bytes
instead of a Routing (docs/design/0008). Only measurements use them.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dysharp.compute.allreduce import KERNELS, STORES
from dysharp.isa.framing import push_train
from dysharp.program import Alloc, Declared, Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.constants import CLASSES, OTHER, REQUESTS, RESPONSES, hardware_of
from dysharp.specs import Cluster
from dysharp.systems.building.layer import CONTROL, STORE
from dysharp.systems.building.software import Software
from dysharp.systems.building.software_steps import WORD_BYTES

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def plan(cluster: Cluster, kernel: str, n_bytes: int, in_flight: int = 0) -> Program:
    """An all-reduce of `n_bytes` per GPU by `kernel` of `KERNELS`.

    `in_flight`: largest number of bytes in flight of each load of a GPU; 0: no limit.
    """
    build = _AllReduce(cluster, n_bytes, in_flight)
    for step in KERNELS[kernel]:
        build.step(step)
    return build.b.build(Declared(0))


def _sustained(hardware: Hardware, fraction: float) -> Hardware:
    """Hardware on whose links stores from all GPUs to all GPUs reach `fraction` of the datasheet.

    Headers and acknowledgements are included.
    """
    train = push_train(STORE, hardware.train_bytes, 1, flit_bytes=hardware.flit)
    return replace(hardware, rate=round(hardware.rate * fraction * (train.up + train.ack_up) / hardware.train_bytes))


class _AllReduce:
    """A Program under construction: `before[gpu]` is the op that the next step of the GPU waits for."""

    def __init__(self, cluster: Cluster, n_bytes: int, in_flight: int) -> None:
        self.costs, self.n, self.bytes = Software(cluster), cluster.n_gpus, n_bytes
        self.b = ProgramBuilder(_sustained(hardware_of(cluster), self.costs.value("link.fraction")), self.n, CLASSES)
        self.gpus = np.arange(self.n)
        self.train = self.b.hardware.train_bytes
        self.window = max(1, in_flight // self.train) if in_flight else 0
        cuts = n_bytes * np.arange(self.n + 1) // self.n
        self.shares: list[int] = np.diff(cuts).tolist()
        self.before: I32 | None = None
        self.stored = False

    def step(self, name: str) -> None:
        """Add a step after the last step."""
        if name == "launch":
            self.before = self.delay(name, self.costs.kernel_ps)
        elif name == "copy":
            self.before = self.delay(name, self.costs.memory_ps(2 * self.bytes))
        elif name == "stage":
            self.before = self.delay(name, max(1, self.costs.stream_ps(2 * self.bytes)))
        elif name == "flags":
            self.before = self.flags()
        elif name == "sync":
            # A fence waits for a round trip. The Program simulates the acknowledgements of earlier stores.
            m = self.b.hardware
            fence = 4 * m.lat + m.responder - (2 * m.lat + m.ack if self.stored else 0)
            self.before = self.delay("fence", max(1, fence))
            self.before = self.flags()
        else:
            self.move(name)
        self.stored = name in STORES

    def move(self, name: str) -> None:
        """Add a step that moves data. It ends when all data have arrived."""
        whole, everything = [self.bytes] * self.n, np.full((self.n, self.n), self.bytes)
        own = np.repeat(np.array(self.shares)[:, None], self.n, axis=1)  # [gpu, peer]: the GPU's own share
        if name in ("pull", "pull+multicast"):
            ops = self.pulls(whole if name == "pull" else self.shares, multicast=name != "pull")
        elif name == "put all":
            ops = self.between(Kind.PUT, everything)
        else:
            ops = self.between(Kind.GET, {"get all": everything, "get sums": own.T}.get(name, own))
            if name == "get+put":
                ops = self.sums_out(ops, own)
        node, op = ops
        join = self.b.ops(self.b.template(Template(f"{name}.done", Kind.JOIN, "other", "join")), self.gpus) + self.gpus
        self.b.edges(Tail.OP_DONE, op, Head.OP_ISSUE, join[node])
        self.begin(join, self.gpus)
        self.before = join.astype(np.int32)

    # ---- data ------------------------------------------------------------------------------------------------------

    def cut(self, n_bytes: int) -> I64:
        """Bytes of each train."""
        full, rest = divmod(n_bytes, self.train)
        return np.array([self.train] * full + [rest] * (rest > 0), np.int64)

    def pulls(self, parts: list[int], *, multicast: bool) -> tuple[I32, I64]:
        """Sums of `parts[gpu]` bytes pulled by each GPU; returns (node, op).

        With `multicast` each train goes to all GPUs behind its pull.
        """
        trains = [self.cut(part) for part in parts]
        node, size = np.repeat(self.gpus, [len(t) for t in trains]).astype(np.int32), np.concatenate(trains)
        to = To(np.full(len(node), self.n), np.tile(self.gpus, len(node)))
        pull = self.wired("pull", Kind.PULL_REDUCE, node, size, to, self.issuers("pull"))
        self.limit("pull", pull, node)
        self.begin(pull, node)
        if not multicast:
            return node, pull
        store = self.wired("multicast", Kind.MULTICAST, node, size, to, self.issuers("multicast"))
        self.b.edges(Tail.OP_DONE, pull, Head.OP_ISSUE, store)
        # A GPU's own addend goes up and its own copy goes down. Members on the source's node use no link here.
        one = To(np.ones(len(node), np.int32), (node + 1) % self.n)
        loop = self.wired("own", Kind.PUT, node, size, one, self.issuers("own"))
        self.b.edges(Tail.OP_DONE, pull, Head.OP_ISSUE, loop)
        return np.tile(node, 2), np.append(store, loop)

    def between(self, kind: Kind, parts: NDArray[np.int64]) -> tuple[I32, I64]:
        """GETs or PUTs of `parts[gpu, peer]` bytes; returns (node, op).

        Trains go in order, peers in turn from the next GPU on.
        """
        node, peer, size = self.pairs(parts)
        name = kind.name.lower()
        to = To(np.ones(len(node), np.int32), peer)
        ops = self.wired(name, kind, node, size, to, self.issuers(name))
        if kind == Kind.GET:
            self.limit(name, ops, node * self.n + peer)
        self.begin(ops, node)
        return node, ops

    def pairs(self, parts: NDArray[np.int64]) -> tuple[I32, I32, I64]:
        """(gpu, peer, bytes) of every train."""
        rows = [
            (gpu, (gpu + turn) % self.n, at, size)
            for gpu in range(self.n)
            for turn in range(1, self.n)
            for at, size in enumerate(self.cut(int(parts[gpu, (gpu + turn) % self.n])).tolist())
        ]
        table = np.array(rows, np.int64).reshape(-1, 4)
        order = np.lexsort((table[:, 2], table[:, 0]))  # stable: peers stay in turn
        gpu, peer, _, size = table[order].T
        return gpu.astype(np.int32), peer.astype(np.int32), size

    def sums_out(self, gets: tuple[I32, I64], parts: NDArray[np.int64]) -> tuple[I32, I64]:
        """PUTs of the own share to every peer, each train after the GETs of that train. Returns (node, op)."""
        node, peer, size = self.pairs(parts)
        puts = self.wired("put", Kind.PUT, node, size, To(np.ones(len(node), np.int32), peer), self.issuers("put"))
        train = np.arange(len(node)) // (self.n - 1)  # of all GPUs, one op per peer each
        sums = self.b.ops(self.b.template(Template("sum", Kind.JOIN, "other", "join")), node[:: self.n - 1])
        self.b.edges(Tail.OP_DONE, gets[1], Head.OP_ISSUE, sums + train)
        self.b.edges(Tail.OP_DONE, sums + train, Head.OP_ISSUE, puts)
        return node, puts

    def wired(self, name: str, kind: Kind, node: I32, size: I64, to: To, issuer: I32) -> I64:
        """Ops of `size` bytes in no operator of a layer."""
        template = Template(name, kind, "other", "control", REQUESTS, RESPONSES, framing=self.b.framing(STORE))
        return self.b.ops(self.b.template(template), node, issuer=issuer[node], bytes=size, to=to, targets=1) + np.arange(len(node))

    def issuers(self, name: str) -> I32:
        """`[gpus]` one issuer per GPU."""
        return np.array([self.b.issuer(g, Discipline.READY_FIFO, name=name) for g in range(self.n)], np.int32)

    def limit(self, name: str, ops: I64, stream: I32) -> None:
        """Limit each stream to `window` trains in flight."""
        if self.window:
            streams, place = np.unique(stream, return_inverse=True)
            node = streams if name == "pull" else streams // self.n
            semaphores = np.array([self.b.semaphore(int(g), self.window, f"{name}.window", "trains") for g in node])
            self.b.hold(semaphores[place], ops)

    # ---- launches, copies and flags --------------------------------------------------------------------------------

    def begin(self, ops: I64, node: I32 | I64) -> None:
        """`ops` wait for the end of the last step on their GPU."""
        if self.before is not None:
            self.b.edges(Tail.OP_DONE, self.before[node], Head.OP_ISSUE, ops)

    def delay(self, name: str, cost_ps: int) -> I32:
        """A DELAY per GPU."""
        template = Template(name, Kind.DELAY, "other", "delay", tasks=1, duration=self.b.duration([0, cost_ps]))
        issuer = [self.b.issuer(g, Discipline.PROGRAM_ORDER, pool=self.b.pool(g, 1, name), name=name) for g in range(self.n)]
        ops = self.b.ops(self.b.template(template), self.gpus, issuer=issuer) + self.gpus
        self.begin(ops, self.gpus)
        return ops.astype(np.int32)

    def flags(self) -> I32:
        """Every GPU sends a word to every GPU. Returns one JOIN per GPU, which waits for all words to that GPU."""
        n = self.n
        _, row, tile = self.b.regions(self.gpus, np.full(n, n), WORD_BYTES, n, alloc=Alloc.PREFIX, name="flags")
        source, target = (axis.ravel().astype(np.int32) for axis in np.meshgrid(self.gpus, self.gpus, indexing="ij"))
        one = np.ones(len(source), np.int32)
        template = self.b.template(Template("flags", Kind.PUT, "other", "control", OTHER, framing=self.b.framing(CONTROL)))
        to = To(one, target, one, row + target * n + source)
        ops = self.b.ops(template, source, issuer=self.issuers("flags")[source], bytes=WORD_BYTES, to=to, targets=1)
        self.begin(ops + np.arange(len(source)), source)
        join = self.b.ops(self.b.template(Template("flags.seen", Kind.JOIN, "other", "join")), self.gpus) + self.gpus
        self.b.edges(Tail.TILE_READY, tile + self.gpus, Head.OP_ISSUE, join)
        return join.astype(np.int32)
