"""Building blocks of a MoE layer as a Program: how tokens go out, how results come back, and what waits for what.

A system is a choice of one dispatch block, one expert schedule (`experts`) and one combine block. Every block adds whole columns of ops at
once. A backward pass has the same blocks: output gradients go out, input gradients come back (docs/design/0005).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dysharp.compute import Tiling
from dysharp.errors import ConfigError
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Declared, Discipline, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.specs import Cluster, Model, choice_int, choice_str
from dysharp.systems.machine import CLASSES, COMBINE, DISPATCH, OTHER, RESPONSE, machine_of, sessions_that_fit
from dysharp.units import ns_to_ps
from dysharp.workload import Pairs, Routing, Scheme, pairs, traffic

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

STORE = Framing("store")
DYMULTIMEM = Framing("dymultimem", targets_per_ext=8)
EXPLICIT = Framing("explicit", address_per_target=1, source_ack_per_target=1)
CONTROL = Framing("control", payload_bytes=128)


BUFFERS = {"fwd": ("x", "y"), "bwd": ("dy", "dx")}  # what Dispatch sends of a token, what Combine brings back


class Layer:
    """One pass of a layer under construction. `pair_*` columns are per distinct (token, GPU), `row_*` per useful (token, expert)."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        routing: Routing,
        direction: str,
        *,
        compute: bool = True,
        sent_bytes: int | None = None,
        back_bytes: int | None = None,
        tiling: Tiling | None = None,
    ) -> None:
        """`sent_bytes`: a row on its way out, where Dispatch has another format than the model's rows; `back_bytes`: a pushed result; `tiling`:
        of the GEMMs, where they are not those of a library (choice gemm.tile_rows).
        """
        if direction not in BUFFERS:
            raise ConfigError(f"direction {direction!r}: found no single pass, expected one of {', '.join(BUFFERS)}")
        self.direction = direction
        self.model, self.cluster, self.routing, self.compute = model, cluster, routing, compute
        self.n_gpus, self.tokens = routing.n_gpus, routing.tokens_per_gpu
        self.b = ProgramBuilder(machine_of(cluster), self.n_gpus, CLASSES)
        self.tiling = Tiling(choice_int("gemm.tile_rows")) if tiling is None else tiling
        self.sent_bytes = model.row_bytes if sent_bytes is None else sent_bytes
        self.back_bytes = model.row_bytes if back_bytes is None else back_bytes
        if model.row_bytes > self.b.machine.train_bytes:
            raise ConfigError(f"model {model.name!r}: found rows of {model.row_bytes} B, expected at most {self.b.machine.train_bytes} B (one train)")
        self.p: Pairs = pairs(routing)
        self.pair_source: I32 = self.p.token // np.int32(self.tokens)
        self.pair_rows: I64 = np.diff(self.p.slot_ptr)
        self.partial_tile: I32 = np.full(self.n_gpus, -1, np.int32)  # where pushed results of each GPU's tokens are all there; -1 = none
        self.sent_buffer, self.summed_buffer = BUFFERS[direction]
        self.arrived = f"expert.{self.sent_buffer}"
        self.result = f"expert.{self.summed_buffer}" if compute else self.arrived
        # Gate weights ride behind Dispatch, their gradients come back behind Combine: one place per expert of the token.
        gates = 16 * -(-choice_int("dysharp.gate_weight_bytes_per_expert") * model.topk // 16)
        self.dispatch_aux, self.combine_aux = (gates, 0) if direction == "fwd" else (0, gates)
        self._add_regions()

    def _add_regions(self) -> None:
        """One row store per expert slot; row ids are grouped by slot, `row_of` maps useful rows (token order) to them.

        Forward, arrival binds rows to slots. Backward, they are bound from the start, in the order in which an evenly running forward
        fills them: all GPUs' first tokens, then all second ones. `program.relayout` puts what a forward run recorded in its place.
        """
        slots_per_gpu = self.routing.placement.slots_per_gpu
        n_slots = self.n_gpus * slots_per_gpu
        counts = np.bincount(self.p.slot, minlength=n_slots)
        token_of_row = np.repeat(self.p.token, self.pair_rows)
        if self.direction == "fwd":
            order, alloc = np.argsort(self.p.slot, kind="stable"), Alloc.FIRST_TOUCH
        else:
            source, place = np.divmod(token_of_row, self.tokens)
            order, alloc = np.lexsort((source, place, self.p.slot)), Alloc.PREFIX
        self.row_of = np.empty(len(order), np.int32)
        self.row_of[order] = np.arange(len(order), dtype=np.int32)
        slot_gpu = np.arange(n_slots) // slots_per_gpu
        tile_rows = self.tiling.rows if self.compute else 1  # without compute a row is ready by itself
        self.b.regions(slot_gpu, counts, self.sent_bytes, tile_rows, alloc=alloc, key=token_of_row[order], name="expert")
        tiles = -(-counts // tile_rows)
        self.tile_gpu = np.repeat(slot_gpu, tiles).astype(np.int32)
        self.tiles_of_expert = np.repeat(tiles, tiles).astype(np.int32)  # of each tile, the tiles of its expert
        first = np.cumsum(tiles) - tiles
        index = np.arange(len(self.tile_gpu)) - np.repeat(first, tiles)
        self.tile_rows = np.minimum(tile_rows, np.repeat(counts, tiles) - index * tile_rows).astype(np.int32)

    @cached_property
    def token_pairs(self) -> I64:
        """`[tokens]` distinct GPUs of each token."""
        return np.diff(self.p.token_ptr)

    @cached_property
    def row_token(self) -> I32:
        """`[useful rows]` token, in token order and within a token by slot."""
        return np.repeat(self.p.token, self.pair_rows)

    @cached_property
    def row_gpu(self) -> I32:
        """`[useful rows]` GPU of the expert."""
        return np.repeat(self.p.gpu, self.pair_rows)

    @cached_property
    def row_source(self) -> I32:
        """`[useful rows]` GPU of the token."""
        return np.repeat(self.pair_source, self.pair_rows)

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

    def per_gpu(self, discipline: Discipline, name: str, pool: list[int] | None = None) -> I32:
        return np.array([self.b.issuer(g, discipline, name=name, pool=-1 if pool is None else pool[g]) for g in range(self.n_gpus)], np.int32)

    def _window(self, tokens: int, name: str) -> I32:
        return np.array([self.b.semaphore(g, tokens, name, "tokens") for g in range(self.n_gpus)], np.int32)

    # ---- dispatch ----------------------------------------------------------------------------------------------------------

    def _dispatch_template(self, name: str, kind: Kind, framing: Framing) -> int:
        at = self.b.framing(framing)
        return self.b.template(Template(name, kind, "dispatch", "copy", DISPATCH, framing=at, src=self.sent_buffer, dst=self.arrived))

    def dispatch_puts(self, discipline: Discipline = Discipline.PROGRAM_ORDER) -> int:
        """One copy per distinct GPU, pushed in token order (DeepEP). Returns the first op; ops follow `pair_*` order."""
        template = self._dispatch_template("dispatch.put", Kind.PUT, STORE)
        return self.b.ops(
            template,
            self.pair_source,
            issuer=self.per_gpu(discipline, "dispatch")[self.pair_source],
            bytes=self.sent_bytes,
            key=self.p.token,
            to=To(np.ones(len(self.p.gpu), np.int32), self.p.gpu, self.pair_rows, self.row_of),
            targets=1,
            aux_bytes=self.dispatch_aux,
        )

    def dispatch_rows(self, discipline: Discipline = Discipline.PROGRAM_ORDER, order: I64 | None = None) -> int:
        """One copy per (token, expert), each into its expert row (DeepEP low latency, all-to-all). Returns the first op.

        Ops follow `order`, useful rows in the order of sending (default: token order).
        """
        order = np.arange(len(self.row_of)) if order is None else order
        source, gpu, one = self.row_source[order], self.row_gpu[order], np.ones(len(order), np.int32)
        return self.b.ops(
            self._dispatch_template("dispatch.row", Kind.PUT, STORE),
            source,
            issuer=self.per_gpu(discipline, "dispatch")[source],
            bytes=self.sent_bytes,
            key=self.row_token[order],
            to=To(one, gpu, one, self.row_of[order]),
            targets=1,
            aux_bytes=self.dispatch_aux,
        )

    def dispatch_multicast(self, window: int, framing: Framing = DYMULTIMEM) -> int:
        """One multicast per token to the GPUs that need it, `window` tokens in flight per source. Ops follow `sent`."""
        template = self._dispatch_template("dispatch.multicast", Kind.MULTICAST, framing)
        source = self.sent_source
        packets = framing.packets(self.sent_bytes) + framing.packets(self.dispatch_aux)
        first = self.b.ops(
            template,
            source,
            issuer=self.per_gpu(Discipline.PROGRAM_ORDER, "dispatch")[source],
            bytes=self.sent_bytes,
            key=self.sent,
            to=To(self.token_pairs[self.sent], self.p.gpu, self.pair_rows, self.row_of, self._replica_ext(framing, packets)),
            targets=self.listed[self.sent],
            aux_bytes=self.dispatch_aux,
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

    def target_fetch(self, after: I32 | None) -> I32:
        """The LSU's first fetch of a target list on each GPU, after region tile `after[gpu]` if any. Returns the DELAY ops."""
        duration = self.b.duration(np.full(2, ns_to_ps(choice_int("dysharp.target_fetch_ns"))))
        template = self.b.template(Template("target_fetch", Kind.DELAY, "other", "delay", tasks=1, duration=duration))
        pools = [self.b.pool(g, 1, "lsu") for g in range(self.n_gpus)]
        gpus = np.arange(self.n_gpus)
        op = self.b.ops(template, gpus, issuer=self.per_gpu(Discipline.PROGRAM_ORDER, "lsu", pools))
        if after is not None:
            self.b.edges(Tail.TILE_READY, after, Head.OP_ISSUE, op + gpus)
        return (op + gpus).astype(np.int32)

    def dispatch_allgather(self, window: int) -> int:
        """Every token to every other GPU (NVLS AllGather); GPUs keep the rows their experts need."""
        template = self._dispatch_template("dispatch.allgather", Kind.MULTICAST, STORE)
        source = self.every_source
        first = self.b.ops(
            template,
            source,
            issuer=self.per_gpu(Discipline.PROGRAM_ORDER, "dispatch")[source],
            bytes=self.model.row_bytes,
            key=np.arange(self.routing.n_tokens),
            to=self._all_gpus(),
            targets=1,
            aux_bytes=self.dispatch_aux,
        )
        self.b.hold(self._window(window, "dispatch_window")[source], first + np.arange(len(source)))
        return first

    def _all_gpus(self) -> To:
        n, g = self.routing.n_tokens, self.n_gpus
        rows = np.zeros(n * g, np.int32)
        rows[self.p.token.astype(np.int64) * g + self.p.gpu] = self.pair_rows
        return To(np.full(n, g, np.int32), np.tile(np.arange(g, dtype=np.int32), n), rows, self.row_of)

    # ---- combine -----------------------------------------------------------------------------------------------------------

    def combine_puts(self, discipline: Discipline) -> int:
        """The sum over a GPU's experts pushed back to the token's source, one copy per GPU (DeepEP). Ops follow `push_order`."""
        order, p = self.push_order, self.p
        return self._push_back("combine.put", "sum", discipline, order, (p.token, p.gpu, self.pair_source))

    def combine_rows(self, discipline: Discipline, order: I64 | None = None) -> int:
        """Every expert's row pushed back to the token's source, which sums them (DeepEP low latency, all-to-all). Ops follow `order`,
        useful rows in the order of sending (default: `row_push_order`)."""
        order = self.row_push_order if order is None else order
        return self._push_back("combine.row", "row", discipline, order, (self.row_token, self.row_gpu, self.row_source))

    def _push_back(self, name: str, fn: str, discipline: Discipline, order: I64, columns: tuple[I32, I32, I32]) -> int:
        """PUTs in `order` of (token, from GPU, to GPU) `columns`, each into its own row of the regions "partial"."""
        template = Template(name, Kind.PUT, "combine", fn, COMBINE, framing=self.b.framing(STORE), src=self.result, dst="partial")
        token, node, home = columns
        owned = np.bincount(home, minlength=self.n_gpus)
        one_tile = int(max(1, owned.max(initial=1)))  # nothing waits for a part of them
        _, first_row, first_tile = self.b.regions(
            np.arange(self.n_gpus), owned, self.back_bytes, one_tile, alloc=Alloc.PREFIX, key=token, name="partial"
        )
        self.partial_tile = np.where(owned > 0, first_tile + np.cumsum(owned > 0) - 1, -1).astype(np.int32)
        return self.b.ops(
            self.b.template(template),
            node[order],
            issuer=self.per_gpu(discipline, "combine")[node[order]],
            bytes=self.back_bytes,
            key=token[order],
            to=To(np.ones(len(order), np.int32), home[order], np.ones(len(order), np.int32), first_row + order),
            targets=1,
            aux_bytes=self.combine_aux,
        )

    @cached_property
    def push_order(self) -> I64:
        """Pairs by the GPU that computed them, then by the token's place at its source, the sources in turn from the next GPU on.

        A GPU returns results to all sources at once (DeepEP's warps are split evenly over peers), not to one source after the other.
        """
        return np.argsort(self._push_rank(self.p.token, self.p.gpu, self.pair_source))

    @cached_property
    def row_push_order(self) -> I64:
        """Useful rows in the same order; rows of one token on one GPU by slot."""
        return np.argsort(self._push_rank(self.row_token, self.row_gpu, self.row_source), kind="stable")

    def _push_rank(self, token: I32, gpu: I32, source: I32) -> I64:
        turn = (source - gpu) % self.n_gpus
        rank: I64 = (gpu.astype(np.int64) * self.tokens + token % self.tokens) * self.n_gpus + turn
        return rank

    def combine_pulls(self, discipline: Discipline, window: int, framing: Framing = DYMULTIMEM, *, every_gpu: bool = False) -> int:
        """The source pulls the sum over GPUs through the switch, `window` tokens in flight. Ops follow `sent` (all tokens if `every_gpu`)."""
        at, src, dst = self.b.framing(framing), self.result, self.summed_buffer
        template = self.b.template(Template("combine.pull", Kind.PULL_REDUCE, "combine", "sum", DISPATCH, RESPONSE, framing=at, src=src, dst=dst))
        tokens = np.arange(self.routing.n_tokens) if every_gpu else self.sent
        ext = self._replica_ext(framing, framing.packets(self.model.row_bytes) + framing.packets(self.combine_aux))
        to = self._all_gpus() if every_gpu else To(self.token_pairs[self.sent], self.p.gpu, self.pair_rows, self.row_of, ext)
        source = self.every_source if every_gpu else self.sent_source
        first = self.b.ops(
            template,
            source,
            issuer=self.per_gpu(discipline, "combine")[source],
            bytes=self.model.row_bytes,
            key=tokens,
            to=to,
            targets=1 if every_gpu else self.listed[self.sent],
            aux_bytes=self.combine_aux,
        )
        ops = first + np.arange(len(tokens))
        sessions = sessions_that_fit(self.model, self.cluster, self.combine_aux)
        self.b.hold(self._window(window, "combine_window")[source], ops)
        self.b.hold(self._window(sessions, "reduction_table")[source], ops)
        return first

    def combine_free(self, results: int) -> None:
        """Sums that cost nothing ("ideal"): a JOIN per GPU once the tiles' ops from `results` on are done on every GPU."""
        own = self.gpu_barrier(Tail.OP_DONE, results)
        sums = self.b.ops(
            self.b.template(Template("combine.free", Kind.JOIN, "combine", "sum", src=self.result, dst=self.summed_buffer)),
            np.arange(self.n_gpus),
        )
        to = sums + np.arange(self.n_gpus)
        self.b.edges(Tail.OP_DONE, np.tile(own, self.n_gpus), Head.OP_ISSUE, np.repeat(to, self.n_gpus))

    # ---- what waits for what -----------------------------------------------------------------------------------------------

    @property
    def tiles(self) -> I64:
        """Ids of the experts' tiles."""
        return np.arange(len(self.tile_gpu))

    def gpu_barrier(self, tails: Tail, first: int, heads: tuple[int, ...] = (), also: I32 | None = None) -> I32:
        """One JOIN per GPU over its tiles' `tails`; those ops of every tile of the GPU (first id of each in `heads`) wait for it.

        `also[gpu]` is one more op it waits for. Returns the JOINs.
        """
        template = self.b.template(Template("barrier", Kind.JOIN, "other", "join"))
        join = self.b.ops(template, np.arange(self.n_gpus))
        self.b.edges(tails, first + self.tiles, Head.OP_ISSUE, join + self.tile_gpu)
        if also is not None:
            self.b.edges(Tail.OP_DONE, also, Head.OP_ISSUE, join + np.arange(self.n_gpus))
        for head in heads:
            self.b.edges(Tail.OP_DONE, join + self.tile_gpu, Head.OP_ISSUE, head + self.tiles)
        return (join + np.arange(self.n_gpus)).astype(np.int32)

    def rows_release(self, kind: Tail, tail_of_tile: I64 | I32, op_of_useful_row: I64) -> None:
        """Each tile's rows release their ops (`[useful rows]`, token order) when `tail_of_tile[tile]` has happened."""
        self.b.edges(kind, tail_of_tile, Head.TILE_NOTIFY, self.tiles)
        order = np.empty(len(self.row_of), np.int64)
        order[self.row_of] = op_of_useful_row
        self.b.notify(np.arange(len(order)), order)

    def exchange(self, n_bytes: int, *, name: str, after: I32 | None = None) -> I32:
        """Every GPU tells all others `n_bytes` (counts, or that it is done). Returns the region tile per GPU that is ready when it knows all."""
        template = self.b.template(Template(name, Kind.MULTICAST, "other", "control", OTHER, framing=self.b.framing(CONTROL)))
        g = self.n_gpus
        _, first_row, first_tile = self.b.regions(np.arange(g), np.full(g, g), n_bytes, g, alloc=Alloc.PREFIX, name=name)
        rows = (first_row + np.arange(g)[None, :] * g + np.arange(g)[:, None]).ravel()  # row i of every GPU's region is GPU i's
        op = self.b.ops(
            template,
            np.arange(g),
            issuer=self.per_gpu(Discipline.PROGRAM_ORDER, name),
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
    def sent_of_pair(self) -> I64:
        """Index into `sent` of each pair's token."""
        return (np.cumsum(self.token_pairs > 0) - 1)[self.p.token]

    @cached_property
    def pull_of_useful_row(self) -> I64:
        """Index into `sent` of the token of each useful row."""
        return np.repeat(self.sent_of_pair, self.pair_rows)

    # ---- build -------------------------------------------------------------------------------------------------------------

    def build(self, scheme: Scheme, options: object = None) -> Program:
        """The Program, declaring its useful rows and the closed-form traffic of this Routing under `scheme` (and the system's `options`)."""
        back = traffic(self.routing, scheme, self.back_bytes, options)
        out = back if self.sent_bytes == self.back_bytes else traffic(self.routing, scheme, self.sent_bytes, options)
        closed = {"dispatch": out["dispatch"], "combine": back["combine"]}
        sums = {side: {op: int(moved[side]) for op, moved in closed.items()} for side in ("up", "down")}
        return self.b.build(Declared(len(self.p.slot), sums, self.routing.placement.n_slots))
