"""Building blocks of a MoE layer as a Program: how tokens go out, how experts run, how results come back, and what waits for what.

A system is a choice of one dispatch block, one expert schedule and one combine block. Every block adds whole columns of ops at once.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dysharp.compute import gemm_gang, tile_task_ps
from dysharp.errors import ConfigError
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Declared, Discipline, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.specs import Cluster, Model, choice_int, choice_str
from dysharp.systems.machine import CLASSES, COMBINE, DISPATCH, OTHER, REQUEST, RESPONSE, machine_of, sessions_that_fit
from dysharp.units import ns_to_ps
from dysharp.workload import Pairs, Routing, pairs, traffic

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

STORE = Framing("store")
DYMULTIMEM = Framing("dymultimem", targets_per_ext=8)
EXPLICIT = Framing("explicit", address_per_target=1, source_ack_per_target=1)
CONTROL = Framing("control", payload_bytes=128)


class Layer:
    """A layer under construction. `pair_*` columns are per distinct (token, GPU), `row_*` per useful (token, expert)."""

    def __init__(self, model: Model, cluster: Cluster, routing: Routing, direction: str, *, compute: bool = True) -> None:
        if direction != "fwd":
            raise ConfigError(f"direction {direction!r}: found a backward pass, expected 'fwd' (backward Programs come later)")
        self.model, self.cluster, self.routing, self.compute = model, cluster, routing, compute
        self.n_gpus, self.tokens = routing.n_gpus, routing.tokens_per_gpu
        self.b = ProgramBuilder(machine_of(cluster), self.n_gpus, CLASSES)
        if model.row_bytes > self.b.machine.train_bytes:
            raise ConfigError(
                f"model {model.name!r}: found rows of {model.row_bytes} B, expected at most {self.b.machine.train_bytes} B (one train)"
            )
        self.p: Pairs = pairs(routing)
        self.pair_source: I32 = self.p.token // np.int32(self.tokens)
        self.pair_rows: I64 = np.diff(self.p.slot_ptr)
        self.gate_bytes = 16 * -(-choice_int("dysharp.gate_weight_bytes_per_expert") * model.topk // 16)
        self._add_regions()

    def _add_regions(self) -> None:
        """One row store per expert slot; row ids are grouped by slot, `row_of` maps useful rows (token order) to them."""
        slots_per_gpu = self.routing.placement.slots_per_gpu
        n_slots = self.n_gpus * slots_per_gpu
        counts = np.bincount(self.p.slot, minlength=n_slots)
        order = np.argsort(self.p.slot, kind="stable")
        token_of_row = np.repeat(self.p.token, self.pair_rows)
        self.row_of = np.empty(len(order), np.int32)
        self.row_of[order] = np.arange(len(order), dtype=np.int32)
        slot_gpu = np.arange(n_slots) // slots_per_gpu
        tile_rows = choice_int("gemm.tile_rows") if self.compute else 1  # without compute a row is ready by itself
        self.b.regions(slot_gpu, counts, self.model.row_bytes, tile_rows, key=token_of_row[order], name="expert")
        tiles = -(-counts // tile_rows)
        self.tile_gpu = np.repeat(slot_gpu, tiles).astype(np.int32)
        first = np.cumsum(tiles) - tiles
        index = np.arange(len(self.tile_gpu)) - np.repeat(first, tiles)
        self.tile_rows = np.minimum(tile_rows, np.repeat(counts, tiles) - index * tile_rows).astype(np.int32)

    @cached_property
    def token_pairs(self) -> I64:
        """`[tokens]` distinct GPUs of each token."""
        return np.diff(self.p.token_ptr)

    @cached_property
    def sent(self) -> I64:
        """Tokens that go anywhere at all (not dropped)."""
        return np.flatnonzero(self.token_pairs > 0)

    @cached_property
    def sent_source(self) -> I32:
        """`[sent]` source GPU."""
        return (self.sent // self.tokens).astype(np.int32)

    @cached_property
    def every_source(self) -> I32:
        """`[tokens]` source GPU."""
        return np.repeat(np.arange(self.n_gpus, dtype=np.int32), self.tokens)

    @cached_property
    def listed(self) -> I64:
        """`[tokens]` experts on other GPUs that a token names in its target list."""
        remote = self.p.gpu != self.pair_source
        return np.bincount(self.p.token[remote], weights=self.pair_rows[remote], minlength=self.routing.n_tokens).astype(np.int64)

    def _per_gpu(self, discipline: Discipline, name: str, pool: list[int] | None = None) -> I32:
        return np.array(
            [self.b.issuer(g, discipline, name=name, pool=-1 if pool is None else pool[g]) for g in range(self.n_gpus)], np.int32
        )

    def _window(self, tokens: int, name: str) -> I32:
        return np.array([self.b.semaphore(g, tokens, name, "tokens") for g in range(self.n_gpus)], np.int32)

    # ---- dispatch ----------------------------------------------------------------------------------------------------------

    def dispatch_puts(self) -> int:
        """One copy per distinct GPU, pushed in token order (DeepEP). Returns the first op; ops follow `pair_*` order."""
        template = self.b.template(Template("dispatch.put", Kind.PUT, "dispatch", "copy", DISPATCH, framing=self.b.framing(STORE)))
        return self.b.ops(
            template,
            self.pair_source,
            issuer=self._per_gpu(Discipline.PROGRAM_ORDER, "dispatch")[self.pair_source],
            bytes=self.model.row_bytes,
            key=self.p.token,
            to=To(np.ones(len(self.p.gpu), np.int32), self.p.gpu, self.pair_rows, self.row_of),
            targets=1,
            aux_bytes=self.gate_bytes,
        )

    def dispatch_multicast(self, window: int, framing: Framing = DYMULTIMEM) -> int:
        """One multicast per token to the GPUs that need it, `window` tokens in flight per source. Ops follow `sent`."""
        template = self.b.template(Template("dispatch.multicast", Kind.MULTICAST, "dispatch", "copy", DISPATCH, framing=self.b.framing(framing)))
        source = self.sent_source
        packets = framing.packets(self.model.row_bytes) + framing.packets(self.gate_bytes)
        first = self.b.ops(
            template,
            source,
            issuer=self._per_gpu(Discipline.PROGRAM_ORDER, "dispatch")[source],
            bytes=self.model.row_bytes,
            key=self.sent,
            to=To(self.token_pairs[self.sent], self.p.gpu, self.pair_rows, self.row_of, self._replica_ext(framing, packets)),
            targets=self.listed[self.sent],
            aux_bytes=self.gate_bytes,
        )
        self.b.hold(self._window(window, "dispatch_window")[source], first + np.arange(len(source)))
        return first

    def _replica_ext(self, framing: Framing, packets: int) -> I64 | None:
        """Wire bytes per copy of the extension flit that names its local experts, where they fit neither a bitmap (15 local experts) nor
        three ids (32); `dysharp.replica_form` = "extension" puts one on every copy (design section 4).
        """
        local = self.routing.placement.slots_per_gpu
        lean = choice_str("dysharp.replica_form") == "bitmap"
        if not framing.targets_per_ext or (lean and local <= 15):
            return None
        needs = self.pair_rows > 3 if lean and local <= 32 else np.ones(len(self.pair_rows), bool)
        return needs.astype(np.int64) * (packets * self.cluster.flit_bytes)

    def target_fetch(self, after: I32) -> I32:
        """The LSU's first fetch of a target list on each GPU, after region tile `after[gpu]`. Returns the DELAY ops."""
        duration = self.b.duration(np.full(2, ns_to_ps(choice_int("dysharp.target_fetch_ns"))))
        template = self.b.template(Template("target_fetch", Kind.DELAY, "other", "delay", tasks=1, duration=duration))
        pools = [self.b.pool(g, 1, "lsu") for g in range(self.n_gpus)]
        gpus = np.arange(self.n_gpus)
        op = self.b.ops(template, gpus, issuer=self._per_gpu(Discipline.PROGRAM_ORDER, "lsu", pools))
        self.b.edges(Tail.TILE_READY, after, Head.OP_ISSUE, op + gpus)
        return (op + gpus).astype(np.int32)

    def dispatch_allgather(self, window: int) -> int:
        """Every token to every other GPU (NVLS AllGather); GPUs keep the rows their experts need."""
        template = self.b.template(Template("dispatch.allgather", Kind.MULTICAST, "dispatch", "copy", DISPATCH, framing=self.b.framing(STORE)))
        source = self.every_source
        first = self.b.ops(
            template,
            source,
            issuer=self._per_gpu(Discipline.PROGRAM_ORDER, "dispatch")[source],
            bytes=self.model.row_bytes,
            key=np.arange(self.routing.n_tokens),
            to=self._all_gpus(),
            targets=1,
            aux_bytes=self.gate_bytes,
        )
        self.b.hold(self._window(window, "dispatch_window")[source], first + np.arange(len(source)))
        return first

    def _all_gpus(self) -> To:
        n, g = self.routing.n_tokens, self.n_gpus
        rows = np.zeros(n * g, np.int32)
        rows[self.p.token.astype(np.int64) * g + self.p.gpu] = self.pair_rows
        return To(np.full(n, g, np.int32), np.tile(np.arange(g, dtype=np.int32), n), rows, self.row_of)

    # ---- experts -----------------------------------------------------------------------------------------------------------

    def _gemms(self, gemm2_first: bool = True) -> tuple[int, int]:
        """GEMM-1 and GEMM-2 of every row tile on the GPU's SMs, one before the other where both are ready. First op of each, in tile order.

        GEMM-2 first lets results leave early (spec/dysharp.md decision 23); GEMM-1 first packs the SMs best when nothing has to leave.
        """
        m, c = self.model, self.cluster
        tile_rows = choice_int("gemm.tile_rows")
        pools = [self.b.pool(g, c.n_sms) for g in range(self.n_gpus)]
        issuer = self._per_gpu(Discipline.READY_FIFO, "sm", pools)[self.tile_gpu]
        occupied = max(1, int((np.bincount(self.p.slot) > 0).sum()))
        per_expert = len(self.p.slot) / occupied
        up_columns = m.expert_hidden * (m.n_matrices - 1)
        first = []
        for name, columns, depth, prio in (
            ("gemm1", up_columns, m.hidden, int(gemm2_first)),
            ("gemm2", m.hidden, m.expert_hidden, int(not gemm2_first)),
        ):
            duration = self.b.duration(tile_task_ps(c, m.gemm_dtype, columns, depth, tile_rows, per_expert))
            template = self.b.template(Template(name, Kind.COMPUTE, name, name, tasks=gemm_gang(columns), duration=duration))
            first.append(
                self.b.ops(template, self.tile_gpu, issuer=issuer, prio=prio, rows=self.tile_rows, key=np.arange(len(self.tile_gpu)))
            )
        return first[0], first[1]

    def experts_one_after_another(self) -> I32:
        """All of a GPU's rows, then all GEMM-1, then all GEMM-2. Returns the JOIN per GPU that ends it."""
        if not self.compute:
            return self._gpu_barrier(Tail.TILE_READY, 0)
        gemm1, gemm2 = self._gemms()
        self._gpu_barrier(Tail.TILE_READY, 0, gemm1)
        self._gpu_barrier(Tail.OP_DONE, gemm1, gemm2)
        return self._gpu_barrier(Tail.OP_DONE, gemm2)

    def experts_in_pairs(self, op_of_useful_row: I64) -> None:
        """COMET: GEMM-1 as tiles fill, a barrier of the GPU, GEMM-2; its finished rows release `op_of_useful_row` (token order)."""
        if not self.compute:
            arrived = self._gpu_barrier(Tail.TILE_READY, 0)
            self._rows_release(Tail.OP_DONE, arrived[self.tile_gpu], op_of_useful_row)
            return
        gemm1, gemm2 = self._gemms()
        self.b.edges(Tail.TILE_READY, self._tiles, Head.OP_ISSUE, gemm1 + self._tiles)
        self._gpu_barrier(Tail.OP_DONE, gemm1, gemm2)
        self._rows_release(Tail.OP_DONE, gemm2 + self._tiles, op_of_useful_row)

    def experts_fused(self, op_of_useful_row: I64, *, gemm2_first: bool = True) -> None:
        """GEMM-1 as tiles fill, GEMM-2 behind it, finished rows release `op_of_useful_row` (useful rows in token order)."""
        if not self.compute:
            self._rows_release(Tail.TILE_READY, self._tiles, op_of_useful_row)
            return
        gemm1, gemm2 = self._gemms(gemm2_first)
        self.b.edges(Tail.TILE_READY, self._tiles, Head.OP_ISSUE, gemm1 + self._tiles)
        self.b.edges(Tail.OP_DONE, gemm1 + self._tiles, Head.OP_ISSUE, gemm2 + self._tiles)
        self._rows_release(Tail.OP_DONE, gemm2 + self._tiles, op_of_useful_row)

    @property
    def _tiles(self) -> I64:
        return np.arange(len(self.tile_gpu))

    def _gpu_barrier(self, tails: Tail, first: int, heads: int | None = None) -> I32:
        """One JOIN per GPU over its tiles' `tails`; with `heads`, that op of every tile of the GPU waits for it. Returns the JOINs."""
        template = self.b.template(Template("barrier", Kind.JOIN, "other", "join"))
        join = self.b.ops(template, np.arange(self.n_gpus))
        self.b.edges(tails, first + self._tiles, Head.OP_ISSUE, join + self.tile_gpu)
        if heads is not None:
            self.b.edges(Tail.OP_DONE, join + self.tile_gpu, Head.OP_ISSUE, heads + self._tiles)
        return (join + np.arange(self.n_gpus)).astype(np.int32)

    def _rows_release(self, kind: Tail, tail_of_tile: I64 | I32, op_of_useful_row: I64) -> None:
        """Each tile's rows release their ops when `tail_of_tile[tile]` has happened."""
        self.b.edges(kind, tail_of_tile, Head.TILE_NOTIFY, self._tiles)
        order = np.empty(len(self.row_of), np.int64)
        order[self.row_of] = op_of_useful_row
        self.b.notify(np.arange(len(order)), order)

    # ---- combine -----------------------------------------------------------------------------------------------------------

    def combine_puts(self, discipline: Discipline) -> int:
        """The sum over a GPU's experts pushed back to the token's source, one copy per GPU (DeepEP). Ops follow `push_order`."""
        template = self.b.template(Template("combine.put", Kind.PUT, "combine", "sum", COMBINE, framing=self.b.framing(STORE)))
        order = self.push_order
        owned = np.bincount(self.pair_source, minlength=self.n_gpus)
        one_tile = int(max(1, owned.max(initial=1)))  # nothing waits for a part of them
        _, first_row, _ = self.b.regions(
            np.arange(self.n_gpus), owned, self.model.row_bytes, one_tile, alloc=Alloc.PREFIX, key=self.p.token, name="partial"
        )
        node = self.p.gpu[order]
        return self.b.ops(
            template,
            node,
            issuer=self._per_gpu(discipline, "combine")[node],
            bytes=self.model.row_bytes,
            key=self.p.token[order],
            to=To(np.ones(len(order), np.int32), self.pair_source[order], np.ones(len(order), np.int32), first_row + order),
            targets=1,
        )

    @cached_property
    def push_order(self) -> I64:
        """Pairs by the GPU that computed them, then by the token's place at its source, the sources in turn from the next GPU on.

        A GPU returns results to all sources at once (DeepEP's warps are split evenly over peers), not to one source after the other.
        """
        gpu, place = self.p.gpu.astype(np.int64), self.p.token % self.tokens
        turn = (self.pair_source - self.p.gpu) % self.n_gpus
        return np.argsort((gpu * self.tokens + place) * self.n_gpus + turn)

    def combine_pulls(self, discipline: Discipline, window: int, framing: Framing = DYMULTIMEM, *, every_gpu: bool = False) -> int:
        """The source pulls the sum over GPUs through the switch, `window` tokens in flight. Ops follow `sent` (all tokens if `every_gpu`)."""
        template = self.b.template(
            Template("combine.pull", Kind.PULL_REDUCE, "combine", "sum", REQUEST, RESPONSE, framing=self.b.framing(framing))
        )
        tokens = np.arange(self.routing.n_tokens) if every_gpu else self.sent
        ext = self._replica_ext(framing, framing.packets(self.model.row_bytes))
        to = self._all_gpus() if every_gpu else To(self.token_pairs[self.sent], self.p.gpu, self.pair_rows, self.row_of, ext)
        source = self.every_source if every_gpu else self.sent_source
        first = self.b.ops(
            template,
            source,
            issuer=self._per_gpu(discipline, "combine")[source],
            bytes=self.model.row_bytes,
            key=tokens,
            to=to,
            targets=1 if every_gpu else self.listed[self.sent],
        )
        ops = first + np.arange(len(tokens))
        self.b.hold(self._window(window, "combine_window")[source], ops)
        self.b.hold(self._window(sessions_that_fit(self.model, self.cluster), "reduction_table")[source], ops)
        return first

    # ---- what waits for what -----------------------------------------------------------------------------------------------

    def exchange(self, n_bytes: int, *, name: str, after: I32 | None = None) -> I32:
        """Every GPU tells all others `n_bytes` (counts, or that it is done). Returns the region tile per GPU that is ready when it knows all."""
        template = self.b.template(Template(name, Kind.MULTICAST, "other", "copy", OTHER, framing=self.b.framing(CONTROL)))
        g = self.n_gpus
        _, first_row, first_tile = self.b.regions(np.arange(g), np.full(g, g), n_bytes, g, alloc=Alloc.PREFIX, name=name)
        rows = (first_row + np.arange(g)[None, :] * g + np.arange(g)[:, None]).ravel()  # row i of every GPU's region is GPU i's
        op = self.b.ops(
            template,
            np.arange(g),
            issuer=self._per_gpu(Discipline.PROGRAM_ORDER, name),
            bytes=n_bytes,
            to=To(np.full(g, g), np.tile(np.arange(g), g), np.ones(g * g, np.int32), rows),
            targets=1,
        )
        if after is not None:
            self.b.edges(Tail.OP_DONE, after, Head.OP_ISSUE, op + np.arange(g))
        return (first_tile + np.arange(g)).astype(np.int32)

    def first_of_gpu(self, first: int, nodes: I32) -> tuple[I64, I64]:
        """First op of each GPU that has one, of a batch beginning at `first` whose nodes are `nodes`: (ops, gpus)."""
        gpus, index = np.unique(nodes, return_index=True)
        return first + index, gpus.astype(np.int64)

    def all_of_gpu_wait(self, tail: Tail, per_gpu: I32, first: int, nodes: I32) -> None:
        """A program-order batch starts on each GPU when `per_gpu[gpu]` has happened: only its first op needs the edge."""
        ops, gpus = self.first_of_gpu(first, nodes)
        self.b.edges(tail, per_gpu[gpus], Head.OP_ISSUE, ops)

    @cached_property
    def push_of_useful_row(self) -> I64:
        """Index into `push_order` of the pair of each useful row."""
        position = np.empty(len(self.push_order), np.int64)
        position[self.push_order] = np.arange(len(self.push_order))
        return np.repeat(position, self.pair_rows)

    @cached_property
    def pull_of_useful_row(self) -> I64:
        """Index into `sent` of the token of each useful row."""
        position = np.cumsum(self.token_pairs > 0) - 1
        return np.repeat(position[self.p.token], self.pair_rows)

    # ---- build -------------------------------------------------------------------------------------------------------------

    def build(self, scheme: str) -> Program:
        """The Program, declaring its useful rows and the closed-form traffic of this Routing under `scheme`."""
        closed = traffic(self.routing, scheme, self.model.row_bytes)
        sums = {side: {op: int(closed[op][side]) for op in ("dispatch", "combine")} for side in ("up", "down")}
        return self.b.build(Declared(len(self.p.slot), sums))
