"""`GpuBuilder`: a Program under construction on numbered GPUs. What builders of layers, collectives and sub-layers have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dysharp.program import I32, I64, Discipline, Framing, Head, Ints, Kind, ProgramBuilder, Tail, Template
from dysharp.systems.building.batch import Batch, ids


class GpuBuilder:
    """Issuers, ops and waits. `gpus`: `[gpus]` int32, 0, 1, 2, ... Heads wait for tails; tails that are None hold nothing back."""

    def __init__(self, b: ProgramBuilder) -> None:
        self.b, self.n_gpus, self.gpus = b, b.n_nodes, np.arange(b.n_nodes, dtype=np.int32)
        self._once: dict[Template | Framing, int] = {}

    def once(self, one: Template | Framing) -> int:
        """The id of a template or framing; equal ones are one."""
        if one not in self._once:
            self._once[one] = self.b.template(one) if isinstance(one, Template) else self.b.framing(one)
        return self._once[one]

    # ---- who issues ----------------------------------------------------------------------------------------------------

    def issuers(
        self,
        name: str,
        discipline: Discipline = Discipline.PROGRAM_ORDER,
        *,
        each: int = 1,
        slots: int = 0,
        pools: Sequence[int] | I32 | None = None,
        node: Ints | None = None,
    ) -> I32:
        """`[gpus x each]` issuers, those of a GPU one behind the other; or one on each of `node`.

        `slots`: of a pool of its own. `pools`: a pool for each instead. Without both an issuer takes no slots.
        """
        nodes = (np.repeat(self.gpus, each) if node is None else node).tolist()
        if slots:
            pools = [self.b.pool(g, slots, name) for g in nodes]
        taken = [-1] * len(nodes) if pools is None else [int(pool) for pool in pools]
        return np.array([self.b.issuer(g, discipline, name=name, pool=pool) for g, pool in zip(nodes, taken, strict=True)], np.int32)

    def ready(self, name: str, pools: Sequence[int] | I32 | None = None) -> I32:
        """`[gpus]` issuers that take the op that was ready first, smallest `prio` first."""
        return self.issuers(name, Discipline.READY_FIFO, pools=pools)

    def pools(self, slots: int, name: str = "sm") -> list[int]:
        """`[gpus]` one pool of `slots` slots per GPU."""
        return [self.b.pool(g, slots, name) for g in range(self.n_gpus)]

    def semaphores(self, most: int, name: str, unit: str = "tokens", *, each: int = 1) -> I32:
        """`[gpus x each]` semaphores, which let `most` units pass at once."""
        return np.array([self.b.semaphore(g, most, name, unit) for g in np.repeat(self.gpus, each).tolist()], np.int32)

    def counted(self, gpus: Ints) -> I64:
        """`[gpus]` how often each GPU stands in `gpus`."""
        return np.bincount(gpus, minlength=self.n_gpus)

    # ---- ops -----------------------------------------------------------------------------------------------------------

    def add(self, template: Template | int, node: ArrayLike, **columns: Any) -> I32:
        """`[n]` ops, one on each of `node`. `columns`: of `ProgramBuilder.ops`."""
        made = self.b.template(template) if isinstance(template, Template) else template
        return ids(self.b.ops(made, node, **columns), np.size(node))

    def delays(
        self, name: str, took_ps: ArrayLike, node: ArrayLike, issuer: I32, operator: str = "other", n_bytes: ArrayLike = 0, **columns: ArrayLike
    ) -> I32:
        """A DELAY on each of `node` with one task, of `took_ps[rows]` and `n_bytes[rows]` of memory."""
        duration = self.b.duration(took_ps, n_bytes)
        return self.add(Template(name, Kind.DELAY, operator, "delay", tasks=1, duration=duration), node, issuer=issuer, **columns)

    def join(self, name: str, *after: I32 | Batch | None, tiles: I32 | None = None) -> I32:
        """`[gpus]` one JOIN per GPU, which only waits: for each `after[gpu]`, or for the ops of a batch on its GPU, and for `tiles[gpu]`."""
        join = self.joins(name, self.gpus)
        for tails in after:
            self.wait_each(*((join[tails.node], tails.op) if isinstance(tails, Batch) else (join, tails)))
        self.wait_tiles(join, tiles)
        return join

    def joins(self, name: str, node: ArrayLike) -> I32:
        """A JOIN on each of `node`."""
        return self.add(Template(name, Kind.JOIN, "other", "join"), node)

    # ---- waits ---------------------------------------------------------------------------------------------------------

    def wait(self, heads: ArrayLike, tails: ArrayLike, tail: Tail = Tail.OP_DONE) -> None:
        """Op `heads[i]` waits for `tails[i]`; either may have fewer entries or axes."""
        heads, tails = np.broadcast_arrays(np.asarray(heads), np.asarray(tails))
        self.b.edges(tail, tails.ravel(), Head.OP_ISSUE, heads.ravel())

    def wait_each(self, heads: I32, tails: I32 | None) -> None:
        """Op `heads[i]` waits for op `tails[i]`."""
        if tails is not None:
            self.b.edges(Tail.OP_DONE, tails, Head.OP_ISSUE, heads)

    def wait_all(self, heads: I32, tails: I32 | None) -> None:
        """Every op of `heads` waits for all ops of `tails`."""
        if tails is not None:
            tail, head = np.meshgrid(tails, heads)
            self.wait_each(head.ravel(), tail.ravel())

    def wait_tiles(self, heads: I32, tiles: I32 | None) -> None:
        """Op `heads[i]` waits until region tile `tiles[i]` is ready; -1: the op does not wait."""
        if tiles is not None:
            self.b.edges(Tail.TILE_READY, tiles[tiles >= 0], Head.OP_ISSUE, heads[tiles >= 0])

    def wait_first(self, batch: Batch, tails: I32 | None, *, tail: Tail = Tail.OP_DONE, stream: Ints | None = None) -> None:
        """The first op of each stream of `batch` waits for `tails[gpu]`.

        In a stream in program order, all later ops wait behind the first op.

        `tail`: whether `tails` are ops (OP_DONE) or region tiles (TILE_READY). `stream`: `[n]` the stream of each op
        (default: its GPU).
        """
        if tails is None:
            return
        of = batch.node if stream is None else stream
        by_id = np.argsort(batch.op, kind="stable")[::-1]
        first = np.full(int(of.max(initial=-1)) + 1, -1, np.int64)
        first[of[by_id]] = by_id  # the smallest id is written last
        first = first[first >= 0]
        self.b.edges(tail, tails[batch.node[first]], Head.OP_ISSUE, batch.op[first])
