"""`LayerBase`: the index arrays of a pass, its issuers and networks, and the verbs that add edges.

Dispatch (`dispatch.py`) and Combine (`combine.py`) build on it; `layer.LayerBuilder` has all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dysharp.compute import Tiling
from dysharp.errors import ConfigError, ProgramError
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Discipline, Head, HubTable, Kind, ProgramBuilder, Tail, Template, To
from dysharp.program.constants import CLASSES, NIC_NET, SPINE, SPINE_NET, hardware_of, nets_of
from dysharp.program.csr import stable_order
from dysharp.specs import Cluster, Model, choice_int, choice_str
from dysharp.systems.building.batch import Batch, Returns, Sends, Transfers, ids
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.systems.building.windows import Flow, flow, link_rows_per_us, misses_under_way
from dysharp.units import ns_to_ps
from dysharp.workload import Pairs, Routing, pairs

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

STORE = Framing("store")
DYMULTIMEM = Framing("dymultimem", targets_per_ext=8)
EXPLICIT = Framing("explicit", address_per_target=1, source_ack_per_target=1)
CONTROL = Framing("control", payload_bytes=128)
RDMA = Framing("rdma", payload_bytes=1 << 30, header=4, ack=0, source_ack=0)
"""A message: its payload, and 64 B for the fetch-add on the tail behind it. The NIC's rate is a rate of payload, so frames cost nothing."""
LINK = Framing("link", payload_bytes=1 << 30, header=0, ack=0, source_ack=0)
"""Stores on the link of a pair. Its rate is a rate of payload, so packets and acknowledgements cost nothing."""


BUFFERS = {"fwd": ("x", "y"), "bwd": ("dy", "dx")}
"""Direction -> (the buffer that Dispatch sends, the buffer that Combine brings back)."""


def spans(first: NDArray[np.integer], count: NDArray[np.integer]) -> I64:
    """The numbers `first[i]` .. `first[i] + count[i] - 1` of every i, one after the other, int64."""
    before = np.cumsum(count, dtype=np.int64) - count
    return np.arange(int(np.sum(count))) + np.repeat(first - before, count)


def flat_ones(n: int) -> NDArray[np.integer]:
    """`[n]` ones that take no memory."""
    return np.broadcast_to(np.int32(1), (n,))


def turns_by(discipline: Discipline, order: I64) -> I32 | int:
    """`[n]` place of each entry in `order`, the `prio` for issuers that send by it. 0: they do not."""
    if discipline is not Discipline.SMALLEST_KEY:
        return 0
    turn = np.zeros(int(order.max(initial=-1)) + 1, np.int32)
    turn[order] = np.arange(len(order), dtype=np.int32)
    return turn


class LayerBase:
    """Arrays, networks and edges of a pass under construction (`layer.LayerBuilder`).

    `pair_*` arrays have one entry per distinct (token, GPU), `row_*` arrays one per useful row, that is per (token,
    expert). Both are in token order.
    """

    per_expert = "direct"
    """The key of `workload.levels.LEVELS` by which one_copy_per_expert goes between domains."""

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
        listed: bool = False,
        placed_on_arrival: bool = False,
        nic_only: bool = False,
    ) -> None:
        """Begin a pass in `direction`, "fwd" or "bwd".

        Raises ConfigError for another direction and for rows longer than one train.

        `compute`: False leaves the GEMMs out. `sent_bytes`: bytes of a row in Dispatch (default: the model's row).
        `back_bytes`: bytes of a pushed result in Combine (default: the model's row). `tiling`: tiles of the GEMMs
        (default: a GEMM library's, choice gemm.tile_rows). `listed`: a list that the GPUs make before Dispatch gives
        every row its place, so a forward row does not take its place on arrival; and one kernel computes all parts of an
        expert slot (`Placement.parts`), so they share the reads of its weights. `placed_on_arrival`: hubs place new rows
        without reading a table in memory; only pulls ask the table. `nic_only`: PUTs of rows to other GPUs go by NIC inside a
        domain, too.
        """
        if direction not in BUFFERS:
            raise ConfigError(f"direction {direction!r}: found no single pass, expected one of {', '.join(BUFFERS)}")
        self.direction = direction
        self.model, self.cluster, self.routing, self.compute = model, cluster, routing, compute
        self.n_gpus, self.tokens = routing.n_gpus, routing.tokens_per_gpu
        self.b = ProgramBuilder(hardware_of(cluster), self.n_gpus, CLASSES, nets=nets_of(cluster), domain_nodes=cluster.nvlink_gpus)
        self.tiling = Tiling(choice_int("gemm.tile_rows")) if tiling is None else tiling
        # A system's own format goes first; format "rows" means the model's.
        own = ROW_BYTES[model.dispatch_format](model)
        self.listed_places, self.placed_on_arrival, self.nic_only = listed, placed_on_arrival, nic_only
        self.sent_bytes = own if sent_bytes in (None, model.row_bytes) else sent_bytes
        self.back_bytes = model.row_bytes if back_bytes is None else back_bytes
        largest = self.b.hardware.train_bytes
        if model.row_bytes > largest:
            raise ConfigError(f"model {model.name!r}: found rows of {model.row_bytes} B, expected at most {largest} B (one train)")
        self.p: Pairs = pairs(routing)
        self.pair_source: I32 = self.p.token // np.int32(self.tokens)
        self.pair_rows: I64 = np.diff(self.p.slot_ptr)
        self.sent_buffer, self.summed_buffer = BUFFERS[direction]
        self.arrived = f"expert.{self.sent_buffer}"
        self.result = f"expert.{self.summed_buffer}" if compute else self.arrived
        # Gate weights ride behind the rows of Dispatch, gradients of gate weights behind the rows of Combine.
        # A row has one place per expert of its token.
        gates = 16 * -(-choice_int("dysharp.gate_weight_bytes_per_expert") * model.topk // 16)
        self.dispatch_aux, self.combine_aux = (gates, 0) if direction == "fwd" else (0, gates)
        self.dispatched: list[Sends] = []  # rows that are pushed out, padding included, batch by batch
        self.returned: list[Returns] = []  # results that are pushed back, batch by batch
        self._add_regions()

    def _add_regions(self) -> None:
        """Add one region per expert slot.

        Row ids are grouped by slot; `row_of` maps useful rows (token order) to row ids.

        Forward, a row takes its place in the region when it arrives. Backward, places are fixed from the start, in the
        order in which an evenly running forward pass fills them: the first token of every GPU, then the second one.
        `program.relayout` replaces this order by the one that a forward run recorded.
        """
        slots_per_gpu = self.routing.placement.slots_per_gpu
        n_slots = self.n_gpus * slots_per_gpu
        counts = np.bincount(self.p.slot, minlength=n_slots)
        token_of_row = np.repeat(self.p.token, self.pair_rows)
        if self.direction == "fwd":
            order, alloc = stable_order(self.p.slot), Alloc.PREFIX if self.listed_places else Alloc.FIRST_TOUCH
        else:
            place = token_of_row % np.int32(self.tokens)  # rows of one place are in the order of their sources
            order, alloc = stable_order(self.p.slot * np.int64(self.tokens) + place), Alloc.PREFIX
        self.row_of = np.empty(len(order), np.int32)
        self.row_of[order] = np.arange(len(order), dtype=np.int32)
        slot_gpu = np.arange(n_slots) // slots_per_gpu
        tile_rows = self.tiling.rows if self.compute else 1  # without compute a row is ready by itself
        self.b.regions(slot_gpu, counts, self.sent_bytes, tile_rows, alloc=alloc, key=token_of_row[order], name="expert")
        tiles = -(-counts // tile_rows)
        self.tile_gpu = np.repeat(slot_gpu, tiles).astype(np.int32)
        self.tile_slot = np.repeat(np.arange(n_slots, dtype=np.int32), tiles)
        together = self.routing.placement.parts if self.listed_places else 1
        self.weight_slot = self.p.slot // np.int32(together)  # `[useful rows]` rows with equal numbers share weight reads
        per_expert = np.repeat(tiles.reshape(-1, together).sum(axis=1), together)
        self.tiles_of_expert = np.repeat(per_expert, tiles).astype(np.int32)  # `[tiles]` tiles that share weight reads
        first = np.cumsum(tiles) - tiles
        index = np.arange(len(self.tile_gpu)) - np.repeat(first, tiles)
        self.tile_rows = np.minimum(tile_rows, np.repeat(counts, tiles) - index * tile_rows).astype(np.int32)

    @cached_property
    def token_pairs(self) -> I64:
        """`[tokens]` distinct GPUs of each token."""
        return np.diff(self.p.token_ptr)

    @cached_property
    def pair_of(self) -> I64:
        """`[tokens, gpus]` index of the (token, GPU) pair, -1 = the GPU has no expert of the token."""
        pair = np.full((self.routing.n_tokens, self.n_gpus), -1, np.int64)
        pair[self.p.token, self.p.gpu] = np.arange(len(self.p.gpu))
        return pair

    @cached_property
    def row_token(self) -> I32:
        """`[useful rows]` token of each row; rows of one token are in the order of their slots."""
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
        """Tokens with at least one expert (not dropped)."""
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
    def token_rows(self) -> I64:
        """`[tokens]` useful rows of each token."""
        return np.diff(self.p.slot_ptr[self.p.token_ptr]).astype(np.int64)

    @cached_property
    def sent_of_pair(self) -> I64:
        """`[pairs]` index into `sent` of each pair's token."""
        return (np.cumsum(self.token_pairs > 0) - 1)[self.p.token]

    @cached_property
    def sent_of_row(self) -> I64:
        """`[useful rows]` index into `sent` of each row's token."""
        return np.repeat(self.sent_of_pair, self.pair_rows)

    @cached_property
    def listed(self) -> I64:
        """`[tokens]` experts on other GPUs: the entries of a token's target list."""
        remote = self.p.gpu != self.pair_source
        return np.bincount(self.p.token[remote], weights=self.pair_rows[remote], minlength=self.routing.n_tokens).astype(np.int64)

    def per_gpu(self, discipline: Discipline, name: str, pool: list[int] | None = None) -> I32:
        """`[gpus]` one issuer per GPU, which takes slots of `pool[gpu]` (None: of no pool)."""
        return np.array([self.b.issuer(g, discipline, name=name, pool=-1 if pool is None else pool[g]) for g in range(self.n_gpus)], np.int32)

    def _window(self, tokens: int, name: str) -> I32:
        return np.array([self.b.semaphore(g, tokens, name, "tokens") for g in range(self.n_gpus)], np.int32)

    # ---- networks and tables ------------------------------------------------------------------------------------------

    def is_far(self, node: NDArray[np.integer], to: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether a PUT from `node` to `to` goes by NIC: its GPUs are in different domains, or `nic_only`."""
        size = self.cluster.domain_gpus
        far: NDArray[np.bool_] = (node != to) if self.nic_only else (node // size != to // size)
        return far if self.cluster.domains > 1 else np.zeros(len(node), bool)

    def by_nic(self, node: NDArray[np.integer], to: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether a PUT from `node` to `to` leaves `node` by NIC."""
        return self.is_far(node, to)

    def _passes_spine(self, node: NDArray[np.integer], to: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether a PUT by NIC passes a spine that is slower than the NICs: its GPUs are on different rails."""
        size = self.cluster.domain_gpus
        return np.asarray((node % size != to % size) & self.has_spine, np.bool_)

    @property
    def has_spine(self) -> bool:
        """Whether the spine between leaf switches is a network of its own."""
        return any(net.name == SPINE for net in self.b.nets)

    def net_of(self, node: NDArray[np.integer], to: NDArray[np.integer]) -> NDArray[np.integer]:
        """`[n]` the network of a PUT from `node` to `to`: 0 = NVLink, or the own memory."""
        far = self.is_far(node, to)
        net = np.where(far, np.where(self._passes_spine(node, to), SPINE_NET, NIC_NET), 0)
        links = [number for number, other in enumerate(self.b.nets, start=1) if other.step]
        if links:  # no switch: the link to the GPU that is `step` places on is network links[0] + step - 1
            net = np.where(far | (node == to), net, links[0] - 1 + (to - node) % self.cluster.domain_gpus)
        return net

    def puts(
        self, template: Template, node: I32, to: I32, row: NDArray[np.integer], *, rows: NDArray[np.integer] | None = None, **columns: ArrayLike
    ) -> I32:
        """PUTs by NVLink, or by the link of their pair, inside a domain, and by NIC (template "NAME.nic") between domains.

        `rows`: `[n]` rows that each PUT fills, default one. `row`: those of all PUTs, one after the other. `columns`: further
        columns of `ProgramBuilder.ops`, one entry per PUT or one for all. Returns `[n]` ops.
        """
        if not self.b.nets:
            ones = flat_ones(len(node))
            members = To(ones, to, ones if rows is None else rows, row)
            return ids(self.b.ops(self.b.template(template), node, to=members, targets=1, **columns), len(node))
        nets, op = self.net_of(node, to), np.empty(len(node), np.int32)
        for net in range(len(self.b.nets) + 1):
            mine = nets == net
            n = int(mine.sum())
            if not n and net:
                continue
            one = template
            if net:
                other = self.b.nets[net - 1]
                name = template.name if other.step else f"{template.name}.{other.name}"
                one = replace(template, name=name, framing=self.b.framing(LINK if other.step else RDMA), net=net, table=-1)
            own = {name: np.asarray(column)[mine] if np.ndim(column) else column for name, column in columns.items()}
            ones, fills = np.ones(n, np.int32), row[mine] if rows is None else row[np.repeat(mine, rows)]
            each = ones if rows is None else rows[mine]
            op[mine] = ids(self.b.ops(self.b.template(one), node[mine], to=To(ones, to[mine], each, fills), targets=1, **own), n)
        return op

    def last_hops(self, op: I32) -> I32:
        """`[n]` the last hop of each PUT `op`: the PUT itself where it goes straight."""
        return op

    def _al_table(self, framing: Framing) -> int:
        """The AL Table of the hubs with its TLB, which dynamic packets ask for the place of each row; -1 for other packets."""
        entries = self.cluster.al_tlb_entries
        if not framing.targets_per_ext or not entries:
            return -1
        misses = misses_under_way(link_rows_per_us(self.cluster, framing, self.sent_bytes, self.dispatch_aux))
        return self.b.table(HubTable("al_tlb", entries, misses, ns_to_ps(choice_int("hub.al_miss_ns"))))

    def row_table(self, framing: Framing, banks: int, bank_entries: int) -> int:
        """A table of the hubs in which rows take their places on arrival, for `dispatch_rows`."""
        misses = misses_under_way(link_rows_per_us(self.cluster, framing, self.sent_bytes, self.dispatch_aux))
        read_ps = ns_to_ps(choice_int("hub.al_miss_ns"))
        return self.b.table(HubTable("rat", banks * bank_entries, misses, read_ps, allocates=True, banks=banks))

    def flow(self, framing: Framing, *, every_gpu: bool = False) -> Flow:
        """Rows at the busiest hub. `every_gpu`: every token goes to every GPU."""
        copies = np.bincount(self.p.gpu[self.p.gpu != self.pair_source], minlength=self.n_gpus)
        hub_rows = (self.n_gpus - 1) * self.tokens if every_gpu else int(copies.max(initial=0))
        return flow(
            self.model, self.cluster, framing, row_bytes=self.sent_bytes, dispatch_aux=self.dispatch_aux, combine_aux=self.combine_aux,
            hub_rows=hub_rows, tokens=self.tokens,
        )  # fmt: skip

    def windows(self, framing: Framing, dispatch: int, combine: int, *, together: bool = True, every_gpu: bool = False) -> tuple[int, int]:
        """(dispatch, combine) windows in tokens per source GPU; 0 means automatic (building/windows.py).

        `together`: Dispatch and Combine are under way at once. `every_gpu`: every token goes to every GPU.
        """
        automatic = self.flow(framing, every_gpu=every_gpu).windows(together=together)
        combine = combine or automatic[1]
        return dispatch or min(automatic[0], combine), combine

    def turn(self, node: I32, to: I32, turns: I32 | None) -> I32 | int:
        """`prio` of PUTs from `node` to `to` with the issuers `turns` (`[gpus]`, SMALLEST_KEY): peer by peer, the next GPU first.

        At any time all GPUs then send to different GPUs. None: the ops have no priority.
        """
        return 0 if turns is None else (to - node) % self.n_gpus

    def _transfers(self, first: int, node: I32, unit_rows: I64, to: I32 | None = None) -> Transfers:
        """Ops from `first` on that carry one unit each, in token order."""
        n = len(node)
        several = np.broadcast_to(np.int32(-1), (n,))
        return Transfers(op=ids(first, n), node=node, to=several if to is None else to, unit=np.arange(n), unit_rows=unit_rows)

    def _replica_ext(self, framing: Framing, pair: NDArray[np.integer], packets: NDArray[np.integer]) -> I64 | None:
        """Wire bytes of the extension flits that name the local experts of each copy. None: no copy has any.

        `pair`: `[copies]` the (token, GPU) pair of each copy. `packets`: `[copies]` packets of its train.

        A copy needs no extension where a bitmap (at most 15 local experts) or three ids (at most 32) name its experts.
        The choice `dysharp.replica_form` = "extension" puts one on every copy.
        """
        local = self.routing.placement.slots_per_gpu
        lean = choice_str("dysharp.replica_form") == "bitmap"
        if not framing.targets_per_ext or (lean and local <= 15):
            return None
        needs = self.pair_rows > 3 if lean and local <= 32 else np.ones(len(self.pair_rows), bool)
        flits: I64 = needs[pair].astype(np.int64) * packets
        return flits * self.cluster.flit_bytes

    def _all_gpus(self) -> To:
        n, g = self.routing.n_tokens, self.n_gpus
        rows = np.zeros(n * g, np.int32)
        rows[self.p.token.astype(np.int64) * g + self.p.gpu] = self.pair_rows
        return To(np.full(n, g, np.int32), np.tile(np.arange(g, dtype=np.int32), n), rows, self.row_of)

    # ---- edges: heads wait for tails ---------------------------------------------------------------------------------

    def wait_each(self, heads: I32, tails: I32) -> None:
        """Op `heads[i]` waits for op `tails[i]`."""
        self.b.edges(Tail.OP_DONE, tails, Head.OP_ISSUE, heads)

    def wait_all(self, heads: I32, tails: I32) -> None:
        """Every op of `heads` waits for all ops of `tails`."""
        tail, head = np.meshgrid(tails, heads)
        self.wait_each(head.ravel(), tail.ravel())

    def wait_tiles(self, heads: I32, tiles: I32) -> None:
        """Op `heads[i]` waits until region tile `tiles[i]` is ready; -1: the op does not wait."""
        self.b.edges(Tail.TILE_READY, tiles[tiles >= 0], Head.OP_ISSUE, heads[tiles >= 0])

    def wait_first(self, batch: Batch, tails: I32, *, tail: Tail = Tail.OP_DONE, stream: NDArray[np.integer] | None = None) -> None:
        """The first op of each stream of `batch` waits for `tails[gpu]`.

        In a stream in program order, all later ops wait behind the first op.

        `tail`: whether `tails` are ops (OP_DONE) or region tiles (TILE_READY). `stream`: `[n]` the stream of each op
        (default: its GPU).
        """
        of = batch.node if stream is None else stream
        by_id = np.argsort(batch.op, kind="stable")[::-1]
        first = np.full(int(of.max(initial=-1)) + 1, -1, np.int64)
        first[of[by_id]] = by_id  # the smallest id is written last
        first = first[first >= 0]
        self.b.edges(tail, tails[batch.node[first]], Head.OP_ISSUE, batch.op[first])

    def wait_rows(self, op_of_useful_row: I32, tails: I32, tail: Tail = Tail.OP_DONE) -> None:
        """Op `op_of_useful_row[row]` waits for `tails[tile]` of the row's expert tile.

        An op that carries several rows waits for the tiles of all its rows.

        `tail`: whether `tails` are ops (OP_DONE) or region tiles (TILE_READY). Raises ProgramError unless there is one op
        per useful row.
        """
        if len(op_of_useful_row) != len(self.row_of):
            expected = f"one for each of {len(self.row_of)} useful rows in token order (`of_useful_row` of a batch)"
            raise ProgramError(f"wait_rows: found {len(op_of_useful_row)} ops, expected {expected}")
        self.b.edges(tail, tails, Head.TILE_NOTIFY, self.tiles)
        order = np.empty(len(self.row_of), np.int64)
        order[self.row_of] = op_of_useful_row
        self.b.notify(np.arange(len(order)), order)

    @property
    def tiles(self) -> I32:
        """`[tiles]` ids of the experts' region tiles."""
        return np.arange(len(self.tile_gpu), dtype=np.int32)

    def join(self, name: str) -> I32:
        """`[gpus]` one JOIN per GPU. A JOIN only waits."""
        template = self.b.template(Template(name, Kind.JOIN, "other", "join"))
        return ids(self.b.ops(template, np.arange(self.n_gpus)), self.n_gpus)

    def join_tiles(self, tails: I32, tail: Tail = Tail.OP_DONE, *, heads: Iterable[I32] = (), also: I32 | None = None) -> I32:
        """`[gpus]` one JOIN per GPU, which waits for `tails[tile]` of all expert tiles of the GPU and for `also[gpu]`.

        `heads`: arrays `[tiles]` of ops that wait for the JOIN of their tile's GPU.
        """
        join = self.join("barrier")
        self.b.edges(tail, tails, Head.OP_ISSUE, join[self.tile_gpu])
        if also is not None:
            self.wait_each(join, also)
        for head in heads:
            self.wait_each(head, join[self.tile_gpu])
        return join
