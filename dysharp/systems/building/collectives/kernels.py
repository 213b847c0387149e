"""`kernel_program`: kernels of collectives as lists of steps (`costs.allreduce.KERNELS`), through the switch (multimem) or between peers."""

import numpy as np

from dysharp.costs.allreduce import KERNELS, STORES, staggered
from dysharp.program import I32, I64, Ints, Kind, Program, Tail
from dysharp.specs import Cluster
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.collectives.steps import RESULT, SUM, VECTOR, Steps, reaching
from dysharp.workload import Collective

WHOLE = ("pull", "put all", "get all")
"""Steps that deal out no shares."""


def kernel_program(work: Collective, cluster: Cluster, kernel: str, in_flight: int = 0, *, late: bool = False, most: int = 0) -> Program:
    """The Program of `work` by `kernel` of `KERNELS`. `in_flight`: most bytes that a GPU has under way of each load; 0: no limit.

    `late`: GPUs come at different times (`costs.allreduce.staggered`). `most`: bytes of a chunk; 0: a train.
    """
    steps = staggered(KERNELS[kernel]) if late else KERNELS[kernel]
    build = Kernel(work, cluster, in_flight, whole=not {*steps}.isdisjoint(WHOLE), most=most)
    for step in steps:
        build.step(step)
    return build.build()


class Kernel(Steps):
    """A Program under construction: `before[gpu]` is the op that the next step of the GPU waits for."""

    def __init__(self, work: Collective, cluster: Cluster, in_flight: int = 0, *, whole: bool = False, most: int = 0) -> None:
        super().__init__(work, cluster, whole=whole, most=most)
        self.window = max(1, in_flight // self.b.hardware.train_bytes) if in_flight else 0
        self.store = reaching("store", self.costs.value("link.fraction"), ack=1)
        self.before: I32 = np.zeros(0, np.int32)
        self.stored = False
        self.all = np.arange(len(self.chunks.size))
        self.traffic = {"up": {}, "down": {}}

    def step(self, name: str) -> None:
        """Add a step after the last step."""
        twice, m = 2 * self.work.size, self.b.hardware
        takes = {"launch": self.costs.kernel_ps, "copy": self.costs.memory_ps(twice), "stage": self.costs.stream_ps(twice)}
        if name in takes:
            self.then(self.start(name, takes[name]))
        elif name in ("flags", "meet", "sync"):
            if name == "meet":
                self.then(self.start("late", self.costs.sync_ps - self.flight_ps))
            elif name == "sync":
                # A fence waits for a round trip. The Program simulates the acknowledgements of earlier stores.
                self.then(self.start("fence", 4 * m.lat + m.responder - (2 * m.lat + m.ack if self.stored else 0)))
            self.before = self.flags("flags", [self.before])
        else:
            node, op = self.in_switch(name) if name in ("pull", "pull own", "multicast", "pull+multicast") else self.of_peers(name)
            self.then(self.join(f"{name}.done", Batch(op=op, node=node)))
        self.stored = name in STORES

    def then(self, ops: I32) -> None:
        """`ops[gpu]` wait for the last step and are the last step now."""
        if len(self.before):
            self.wait(ops, self.before)
        self.before = ops

    # ---- data ------------------------------------------------------------------------------------------------------

    def in_switch(self, name: str) -> tuple[I32, I32]:
        """A step of multimem."""
        own, share = self.all, self.chunks.share
        if name == "pull":
            return self.pull(np.repeat(self.gpus, len(own)), np.tile(own, self.n), RESULT)
        if name == "multicast":
            return self.multicast(share, own, VECTOR, self.before[share])
        if name == "pull+multicast":
            node, op = self.pull(share, own, SUM)
            return self.multicast(node, own, SUM, op)
        node, op = self.pull(share, own, RESULT)
        return np.tile(node, 2), np.append(op, self.own("reduce", node, own, op, Tail.OP_ISSUED))

    def of_peers(self, name: str) -> tuple[I32, I32]:
        """A step of loads or stores between peers. On one GPU the vector is the result."""
        own, share = self.all, self.chunks.share
        if self.n == 1:
            if name != "get own":
                self.keep(VECTOR, RESULT, own, share, self.before[share])
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        if name in ("put all", "get all"):
            kind = Kind.PUT if name == "put all" else Kind.GET
            return self.between(kind, "add", VECTOR, RESULT, -np.ones_like(own), reduce=True)
        if name == "get sums":
            self.keep(SUM, RESULT, own, share, self.before[share])
            return self.between(Kind.GET, "copy", SUM, RESULT, share, reduce=False)
        node, op = self.between(Kind.GET, "add", VECTOR, SUM, share, reduce=True)
        return self.sums_out(op) if name == "get+put" else (node, op)

    def pull(self, node: I32, chunk: I64, dst: str) -> tuple[I32, I32]:
        """Sums of chunks by `multimem.ld_reduce`. Returns (node, op)."""
        template = self.template("reduce", Kind.PULL_REDUCE, "reduce", "sum", self.store, src=VECTOR, dst=dst)
        op = self.move(template, node, chunk, self.ready("pull")[node], np.tile(self.gpus, len(node)), each=self.n)
        self.limit("pull", op, node)
        self.wait(op, self.before[node])
        self.count("reduce", chunk, up=self.n - 1)
        return node, op

    def multicast(self, node: I32, chunk: I64, src: str, after: I32) -> tuple[I32, I32]:
        """Chunks to all GPUs by `multimem.st`, each behind the op `after`. Returns (node, op)."""
        template = self.template("gather", Kind.MULTICAST, "gather", "copy", self.store, src=src, dst=RESULT)
        op = self.move(template, node, chunk, self.ready("multicast")[node], np.tile(self.gpus, len(node)), each=self.n)
        self.wait(op, after)
        self.count("gather", chunk, down=self.n - 1)
        return np.tile(node, 2), np.append(op, self.own("gather", node, chunk, after))

    def own(self, operator: str, node: I32, chunk: I64, after: I32, tail: Tail = Tail.OP_DONE) -> I32:
        """A GPU's own addend goes up to a real switch, and its own copy comes down (nccl#1083). Members on the op's node use no link here, so a PUT
        of the chunk to the next GPU stands for both. Where only one of them exists, the other direction is nearly idle."""
        template = self.template("own", Kind.PUT, operator, "", self.store)
        op = self.move(template, node, chunk, self.ready("own")[node], (node + 1) % self.n)
        self.wait(op, after, tail)
        self.count(operator, chunk)
        return op

    def between(self, kind: Kind, fn: str, src: str, dst: str, share: Ints, *, reduce: bool) -> tuple[I32, I32]:
        """GETs or PUTs of chunks between every pair. `share`: `[chunks]` the GPU that a chunk's GETs belong to (with a copy: GPU that is read),
        -1 = every GPU. Chunks go in order, peers in turn from the next GPU on. Returns (node, op)."""
        node, peer, chunk = self.pairs(share, of_peer=fn == "copy")
        operator, name = "reduce" if reduce else "gather", kind.name.lower()
        template = self.template(f"{operator}.{name}", kind, operator, fn, self.store, src=src, dst=dst)
        op = self.move(template, node, chunk, self.ready(name)[node], peer)
        if kind is Kind.GET:
            self.limit(name, op, node * np.int32(self.n) + peer)
        self.wait(op, self.before[node])
        self.count(operator, chunk)
        return node, op

    def pairs(self, share: Ints, *, of_peer: bool) -> tuple[I32, I32, I64]:
        """(gpu, peer, chunk) of transfers between all pairs whose GPU (`of_peer`: peer) is `share[chunk]`, -1 = any."""
        n = self.n
        gpu, turn, chunk = (axis.ravel() for axis in np.meshgrid(self.gpus, np.arange(1, n), self.all, indexing="ij"))
        peer = (gpu + turn) % n
        mine = (share[chunk] < 0) | (share[chunk] == (peer if of_peer else gpu))
        gpu, turn, chunk, peer = (axis[mine] for axis in (gpu, turn, chunk, peer))
        order = np.lexsort((turn, self.chunks.place[chunk] if of_peer else chunk, gpu))
        return gpu[order].astype(np.int32), peer[order].astype(np.int32), chunk[order]

    def sums_out(self, gets: I32) -> tuple[I32, I32]:
        """PUTs of the own share to every peer, each chunk after its GETs. Returns (node, op)."""
        node, peer, chunk = self.pairs(self.chunks.share, of_peer=False)
        template = self.template("gather.put", Kind.PUT, "gather", "copy", self.store, src=SUM, dst=RESULT)
        sums = self.joins("sum", self.chunks.share)
        puts = self.move(template, node, chunk, self.ready("put")[node], peer)
        self.wait(sums[chunk], gets)
        self.wait(puts, sums[chunk])
        self.keep(SUM, RESULT, self.all, self.chunks.share, sums)
        self.count("gather", chunk)
        return node, puts

    # ---- issuers, windows, traffic -----------------------------------------------------------------------------------

    def limit(self, name: str, ops: I32, stream: I32) -> None:
        """Limit each stream to `window` trains in flight."""
        if self.window:
            streams, place = np.unique(stream, return_inverse=True)
            node = streams if name == "pull" else streams // self.n
            semaphores = np.array([self.b.semaphore(int(g), self.window, f"{name}.window", "trains") for g in node])
            self.b.hold(semaphores[place], ops)

    def count(self, operator: str, chunk: I64, up: int = 1, down: int = 1) -> None:
        """Declare the bytes of `chunk` on the links, so many times up and down."""
        moved = int(self.chunks.size[chunk].sum()) * (self.n > 1)
        self.declare(operator, up * moved, "up")
        self.declare(operator, down * moved, "down")
