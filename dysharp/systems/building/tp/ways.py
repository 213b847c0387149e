"""`Ways`: how chunks are summed at the home of their block and brought to every GPU: in the switch, by rings, or by loads and stores of peers."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from dysharp.program import I32, Alloc, Ints, Kind, Program, Tail
from dysharp.specs import Cluster
from dysharp.systems.building.batch import ids
from dysharp.systems.building.tp.sublayer import GATHERED, PARTIAL, ROWS, SUM, Machine, TpBuilder
from dysharp.systems.collective_system import collective
from dysharp.workload import SUB_LAYER, SubLayer

PORT_WINDOW = 40 << 10
"""Most bytes that a throttled GPU has under way to a port: the published merge table (section VI), whatever the size of the simulated one."""


class Ways(TpBuilder):
    """A sub-layer under construction, with its ways. `chunk` arrays have the numbers of chunks."""

    # ---- shapes --------------------------------------------------------------------------------------------------------

    def block_of(self, chunk: Ints) -> I32:
        """Block of every chunk."""
        return (chunk // self.cuts.chunks).astype(np.int32)

    def tile_op(self, done: I32, node: Ints, chunk: Ints) -> I32:
        """Of tiles `done[gpu, block, tile]`: the op that makes `chunk[i]` on `node[i]`."""
        return np.asarray(done.reshape(self.n, -1)[node, chunk // self.cuts.parts])

    def every_pair(self) -> tuple[I32, I32]:
        """(node, chunk) of every chunk on every GPU but its home, by chunk."""
        chunk = np.repeat(self.every_chunk, self.n - 1)
        away = np.tile(np.arange(1, self.n, dtype=np.int32), len(self.every_chunk))
        return (self.home_of_chunk[chunk] + away) % self.n, chunk

    def _move(
        self, way: tuple[Any, ...], node: I32, to: Ints, after: I32 | None, tail: Tail = Tail.OP_DONE, *, issuer: I32 | str, each: int = 1,
        row: Ints | None = None, **columns: Any,
    ) -> I32:  # fmt: skip
        """Ops by the template `way`, each on a chunk between `node[i]` and its `each` GPUs of `to`, behind `after`. `issuer`: a name = what is ready
        first. `row`: that they fill."""
        template = self.template(*way)
        issuers = self.ready(issuer)[node] if isinstance(issuer, str) else issuer
        op = self.between_gpus(template, node, to, row, each=each, issuer=issuers, bytes=self.cuts.chunk_bytes, **columns)
        if after is not None:
            self.wait(op, after, tail)
        return op

    def window(self, name: str, ops: I32, node: I32, n_bytes: int) -> None:
        """Each GPU has at most `n_bytes` of `ops` under way; 0: any number."""
        if not n_bytes:
            return
        most = max(1, n_bytes // self.cuts.chunk_bytes)
        self.b.hold(self.semaphores(most, name, "ops")[node], ops)

    def home_window(self, name: str, ops: I32, node: I32, home: I32) -> None:
        """Each GPU has at most half of `PORT_WINDOW` of loads under way to a port of a home, and as much of reductions."""
        most = max(1, PORT_WINDOW // 2 * max(1, self.cluster.n_switches) // self.cuts.chunk_bytes)
        self.b.hold(self.semaphores(most, name, "ops", each=self.n)[node * self.n + home], ops)

    def count(self, operator: str, up: float, down: float) -> None:
        """Declare payload, in activations S."""
        for side, times in (("up", up), ("down", down)):
            self.declare(operator, round(times * self.cuts.chunk_bytes * len(self.every_chunk)), side)

    # ---- sums ----------------------------------------------------------------------------------------------------------

    def reduce_merged(self, done: I32, *, together: bool = False, throttle: bool = False) -> I32:
        """`[blocks]` tiles at home that are ready with the sum of a block: stores that the switch merges (`red.cais`), each behind its tile.

        `together`: the stores of a tile wait until the tile has ended on every GPU (pre-access synchronisation). `throttle`: a GPU has no more
        under way to a home than its ports hold. All GPUs then store in one order, so that none waits for a store that another holds back.
        """
        n, cuts = self.n, self.cuts
        own = np.full(cuts.blocks, cuts.chunks)
        _, row, tile = self.b.regions(self.home, own, 2 * cuts.chunk_bytes, cuts.chunks, alloc=Alloc.PREFIX, name="sums")
        first = self.b.sums(self.home_of_chunk, np.full(len(self.every_chunk), n - 1), self.places)
        node, chunk = np.tile(self.gpus, len(self.every_chunk)), np.repeat(self.every_chunk, n)
        home = self.home_of_chunk[chunk]
        way = "reduce", Kind.PUSH_REDUCE, "reduce", "merge", PARTIAL, SUM, "reductions"
        op = self._move(way, node, home, None, issuer=self.pair_senders("reduce")[node, home], row=row + chunk, key=chunk, session=first + chunk)
        if throttle and together:
            self.home_window("reduce", op[node != home], node[node != home], home[node != home])
        if together:
            release = self.released("access1", done.reshape(n, -1))
            self.wait(op, release[chunk // cuts.parts])
        else:
            self.wait(op, self.tile_op(done, node, chunk))
        self.count("reduce", n - 1, 1)
        return ids(tile, cuts.blocks)

    def reduce_pulled(self, after: I32, tail: Tail, window: int = 0) -> I32:
        """`[chunks]` pulls at home whose sums the switch makes (`multimem.ld_reduce`), each behind `after[chunk]`.

        A GPU has at most `window` bytes under way; 0: what the tables of the switch ports that face it hold, where sums wait for their addends.
        A GPU's own addend goes up to a real switch (nccl#1083): a PUT to the next GPU stands for it.
        """
        chunk, node, way = self.every_chunk, self.home_of_chunk, ("reduce", Kind.PULL_REDUCE, "reduce", "sum", PARTIAL, SUM)
        op = self._move(way, node, np.tile(self.gpus, len(chunk)), after, tail, issuer="pull", each=self.n, key=chunk, prio=chunk)
        self.window("pull", op, node, window or self.table_bytes)
        self.own("reduce", op, Tail.OP_ISSUED)
        self.count("reduce", self.n - 1, 1)
        return op

    def own(self, operator: str, after: I32, tail: Tail) -> I32:
        """A GPU's own addend, or its own copy, on the links: PUTs to the next GPU that carry no data."""
        node = self.home_of_chunk
        op = self._move(("own", Kind.PUT, operator), node, (node + 1) % self.n, after, tail, issuer="own", prio=self.every_chunk)
        self.count(operator, 1, 1)
        return op

    def reduce_stores(self, done: I32) -> I32:
        """`[blocks]` JOINs at home behind all stores of a block: every GPU stores its part there, and memory adds (no merging)."""
        node, chunk = self.every_pair()
        rows, tile = self._landing(self.home, self.n - 1)
        home, prio = self.home_of_chunk[chunk], (self.block_of(chunk) - node) % self.cuts.blocks
        way, after = ("reduce", Kind.PUT, "reduce", "add", PARTIAL, SUM), self.tile_op(done, node, chunk)
        op = self._move(way, node, home, after, issuer="reduce", row=rows + chunk, key=chunk, prio=prio)
        self.wait(op, self.tile_op(done, home, chunk))  # memory adds to what the home has made
        self.count("reduce", self.n - 1, self.n - 1)
        return ids(tile, self.cuts.blocks)

    def _landing(self, node: I32, times: int) -> tuple[int, int]:
        """A region for every block on `node[block]`, with a row for each chunk that comes `times` times. Returns the first (row, tile)."""
        many = np.full(self.cuts.blocks, self.cuts.chunks)
        _, row, tile = self.b.regions(node, many, times * self.cuts.chunk_bytes, self.cuts.chunks, alloc=Alloc.PREFIX, name="sums")
        return row, tile

    def ring(self, operator: str, fn: str, gate: I32, src: tuple[str, str], begin: int) -> I32:
        """`[gpus, chunks]` tiles on every GPU that are ready with the chunk of the hop that ends there, -1 where none does.

        Chunks go around the ring of GPUs, hop i from GPU home + begin + i. A hop waits for the hop before and for `gate[gpu, chunk]` (an op) on
        its source and, where it adds, on its target. `src`: buffer of the first hop, and of all others.
        """
        n, chunk = self.n, self.every_chunk
        ready = np.full((n, len(chunk)), -1, np.int32)
        senders, before = self.ready(f"{operator}.ring"), np.zeros(0, np.int32)
        for hop in range(n - 1):
            node = (self.home_of_chunk + begin + hop) % n
            target = (node + 1) % n
            _, row, tile = self.b.regions(target, np.ones(len(chunk), np.int32), self.cuts.chunk_bytes, 1, alloc=Alloc.PREFIX, name=f"{operator}.hop")
            way = operator, Kind.PUT, operator, fn, src[hop > 0], SUM if fn == "add" else src[1]
            op = self._move(way, node, target, None, issuer=senders[node], row=row + chunk, key=chunk, prio=self.block_of(chunk))
            for gpu in (node, target) if fn == "add" else (node,) if not hop else ():
                self.wait(op, gate[gpu, chunk])
            if hop:
                self.wait(op, before, Tail.TILE_READY)
            before = ids(tile, len(chunk))
            ready[target, chunk] = before
        self.count(operator, n - 1, n - 1)
        return ready

    # ---- copies --------------------------------------------------------------------------------------------------------

    def gather_loaded(
        self,
        ready: I32,
        tail: Tail,
        second: I32,
        *,
        merged: bool,
        window: int,
        times: int = 1,
        together: bool = False,
        throttle: bool = False,
        ahead: int = 0,
    ) -> None:
        """Every GPU loads the chunks of a block behind `tail` of `ready[gpu, block]`; `second[gpu, block]` waits for them.

        A block's loads begin when the second GEMM has begun a block `resident` places earlier: its thread blocks ask for what they compute.
        `merged`: the switch merges equal loads (`ld.cais`). `times`: loads of each chunk, where caches do not keep it between thread blocks.
        `together`: loads of a block begin when every GPU is ready for them. `throttle`: a GPU has no more under way to a home than its ports hold.
        `ahead`: blocks that are loaded before the second GEMM begins them; 0: `resident`.
        """
        n, blocks, ahead = self.n, self.cuts.blocks, ahead or self.resident
        order = np.argsort((self.blocks[None, :] - self.gpus[:, None] * self.machine.rotated) % blocks, axis=1)  # [gpu, place] block
        begin = self.joins("block", np.repeat(self.gpus, blocks)).reshape(n, blocks)
        self.wait(begin, ready, tail)
        rows = self.gpus[:, None]
        self.wait(begin[rows, order[:, ahead:]], second[rows, order[:, :-ahead]], Tail.OP_ISSUED)
        if together:
            begin = np.broadcast_to(self.released("group2", begin), (n, blocks))
        node, chunk = (np.repeat(part, times) for part in self.every_pair())
        block, home = self.block_of(chunk), self.home_of_chunk[chunk]
        way = "gather", Kind.MERGED_LOAD if merged else Kind.GET, "gather", "load", ROWS, GATHERED, "loads"
        session = self.b.loads(self.home_of_chunk, np.full(len(self.every_chunk), n - 1), self.places, self.timeout_ps) + chunk if merged else -1
        prio = (chunk - node * self.cuts.chunks * self.machine.rotated) % len(self.every_chunk)
        issuer = self.pair_senders("loads")[node, home] if throttle else "loads"
        op = self._move(way, node, home, begin[node, block], issuer=issuer, key=chunk, prio=prio, session=session)
        self.wait(second[node, block], op)
        self.wait(second[self.home, self.blocks], begin[self.home, self.blocks])
        self.window("loads", op, node, window)
        if throttle:
            self.home_window("loads.home", op, node, home)
        self.count("gather", (1 if merged else n - 1) * times, (n - 1) * times)

    def multicast(self, src: str, dst: str, after: I32, tail: Tail = Tail.OP_DONE) -> I32:
        """`[gpus, blocks]` tiles that are ready with the chunks that their homes multicast (`multimem.st`) behind `after[chunk]`."""
        n, cuts = self.n, self.cuts
        _, row, tile = self.b.regions(
            np.repeat(self.gpus, cuts.blocks), np.full(n * cuts.blocks, cuts.chunks), cuts.chunk_bytes, cuts.chunks, alloc=Alloc.PREFIX, name=dst
        )
        chunk, way = self.every_chunk, ("gather", Kind.MULTICAST, "gather", "copy", src, dst)
        rows, to = row + np.arange(n)[None, :] * len(chunk) + chunk[:, None], np.tile(self.gpus, len(chunk))
        self._move(way, self.home_of_chunk, to, after, tail, issuer="cast", each=n, row=rows.ravel(), key=chunk, prio=chunk)
        self.own("gather", after, tail)
        self.count("gather", 1, n - 1)
        return ids(tile, n * cuts.blocks).reshape(n, cuts.blocks)


Plan = Callable[[Ways, Any], None]
SUMS = "it multicasts and adds there"
"""What the switch does for multimem."""


def sub_layer(name: str, source: str, options: type, *, switch: str = "", **machine: Any) -> Callable[[Plan], Plan]:
    """Register a plan function (Ways, options), which adds ops. `machine`: fields of `Machine`, or functions (work, options) of them.

    `options` has `seed` and `chunk_bytes`.
    """

    def register(plan: Plan) -> Plan:
        @wraps(plan)
        def whole(work: SubLayer, cluster: Cluster, options: Any) -> Program:
            chosen = {key: value(work, options) if callable(value) else value for key, value in machine.items()}
            build = Ways(work, cluster, Machine(seed=options.seed, chunk_bytes=options.chunk_bytes, **chosen))
            plan(build, options)
            return build.build()

        collective(name, source=source, options=options, operations=(SUB_LAYER,), switch=switch)(whole)
        return plan

    return register
