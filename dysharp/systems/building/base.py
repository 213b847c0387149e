"""`LayerBase`: regions, issuers, transfers and tables of a pass.

`layer.LayerBuilder` builds on it: Dispatch and Combine.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import I32, I64, PS_PER_US, ByName, ConfigError, Ints, ProgramError, ns_to_ps
from dysharp.costs import WIDENED_ROWS, Tiling, machine_of
from dysharp.costs.gemm import narrow_bytes
from dysharp.costs.operators import ELEMENT_BYTES
from dysharp.program import REQUESTS, RESPONSES, Alloc, Discipline, Framing, Head, HubTable, Kind, Tail, Template, runs, spans, stable_order
from dysharp.specs import Cluster, Model, choice_int, choice_str
from dysharp.systems.building.batch import Landing, Returns, Sends, Transfers, ids, placed
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.systems.building.gpus import GpuBuilder
from dysharp.systems.building.index import PairIndex
from dysharp.systems.building.schema import EXPERT, LAYER_SCHEMA
from dysharp.systems.building.ways import Ways
from dysharp.systems.building.windows import PUBLISHED_ROWS, Flow, link_rows_per_us, misses_under_way, sessions_that_fit
from dysharp.workload import Routing

STORE = Framing("store")
DYMULTIMEM = Framing("dymultimem", targets_per_ext=8)
EXPLICIT = Framing("explicit", address_per_target=1, source_ack_per_target=1)
MULTIMEM = Framing("multimem", own=9)
"""Multimem of today: the issuer is a member, so a packet of 128 B and its header come back to it, or leave it, as one more copy."""
CONTROL = Framing("control", payload_bytes=128)
RDMA = Framing("rdma", payload_bytes=1 << 30, header=4, ack=0, source_ack=0)
"""A message: its payload, and 64 B for the fetch-add on the tail behind it. The NIC's rate is a rate of payload, so frames cost nothing."""
LINK = Framing("link", payload_bytes=1 << 30, header=0, ack=0, source_ack=0)
"""Stores on the link of a pair. Its rate is a rate of payload, so packets and acknowledgements cost nothing."""


BUFFERS = {"fwd": ("x", "y"), "bwd": ("dy", "dx")}
"""Direction -> (the buffer that Dispatch sends, the buffer that Combine brings back)."""


class LayerBase(GpuBuilder):
    """A pass under construction: its regions, and the verbs that add issuers, transfers and tables (`layer.LayerBuilder` adds blocks).

    `p`: index arrays of the Routing. `ways`: its networks. `row_of`: `[useful rows]` region row. `tile_gpu`, `tile_slot`, `tile_rows`:
    `[tiles]` GPU, expert slot and rows of each expert tile. `row_columns`, `result_columns`: bytes of a row and of a result. `dispatched`,
    `returned`: rows that are pushed out and results that are pushed back, padding included, batch by batch. `gemms`: each grouped GEMM
    (`experts.Gemm`) with its tiles and ops.
    """

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
        alloc: Alloc = Alloc.FIRST_TOUCH,
        ways: type[Ways] = Ways,
    ) -> None:
        """Begin a pass in `direction`, "fwd" or "bwd".

        Raises ConfigError for another direction and for rows longer than one train.

        `compute`: False leaves the GEMMs out. `sent_bytes`: bytes of a row in Dispatch (default: the model's row).
        `back_bytes`: bytes of a pushed result in Combine (default: the model's row). `tiling`: tiles of the GEMMs
        (default: a GEMM library's, choice gemm.tile_rows). `alloc`: how a forward row gets its place; PREFIX: from a list that the GPUs make before
        Dispatch. `ways`: which network a PUT takes.
        """
        if direction not in BUFFERS:
            raise ConfigError(f"direction {direction!r}: found no single pass, expected one of {', '.join(BUFFERS)}")
        self.direction = direction
        self.al_misses = 0  # of a hub, from a system's option of this name
        self.converted = ("rows", "rows")  # formats of pulled rows and of their sum, by which the switch converts
        self.model, self.routing, self.compute = model, routing, compute
        self.tokens, self.ways = routing.tokens_per_gpu, ways.of(cluster)
        super().__init__(cluster, routing.n_gpus, nets=self.ways.nets, domain_nodes=cluster.nvlink_gpus, schema=LAYER_SCHEMA)
        self.tiling = tiling or Tiling(choice_int("gemm.tile_rows"))
        held, dtype = narrow_bytes(model, direction), self.tiling.dtype or model.gemm_dtype
        if held and self.tiling.weight_bytes is None and self.tiling.dtype is None:
            slowed, step = machine_of(cluster, "serving").widening if dtype == "bf16" else 1.0, WIDENED_ROWS if cluster.gpu else None
            self.tiling = replace(self.tiling, weight_bytes=held, part=self.tiling.part * slowed, row_step=self.tiling.row_step or step)
        self.expert_bytes = model.expert_weights * (self.tiling.weight_bytes or ELEMENT_BYTES[dtype])  # of an expert in memory
        # A system's own format goes first; format "rows" means the model's.
        own = ROW_BYTES[model.dispatch_format](model)
        self.sent_bytes = own if sent_bytes in (None, model.row_bytes) else sent_bytes
        self.back_bytes = self.sum_bytes = model.row_bytes if back_bytes is None else back_bytes
        largest = self.b.hardware.train_bytes
        if model.row_bytes > largest:
            raise ConfigError(f"model {model.name!r}: found rows of {model.row_bytes} B, expected at most {largest} B (one train)")
        self.p = PairIndex(routing)
        self.sent_buffer, self.summed_buffer = BUFFERS[direction]
        self.arrived = f"expert.{self.sent_buffer}"
        self.result = f"expert.{self.summed_buffer}" if compute else self.arrived
        # Gate weights ride behind the rows of Dispatch, gradients of gate weights behind the rows of Combine.
        # A row has one place per expert of its token.
        gates = 16 * -(-choice_int("dysharp.gate_weight_bytes_per_expert") * model.topk // 16)
        self.dispatch_aux, self.combine_aux = (gates, 0) if direction == "fwd" else (0, gates)
        self.row_columns: ByName = {"bytes": self.sent_bytes, "aux_bytes": self.dispatch_aux}
        self.result_columns: ByName = {"bytes": self.back_bytes, "aux_bytes": self.combine_aux}
        self.dispatched: list[Sends] = []
        self.returned: list[Returns] = []
        self.gemms: list[tuple[Any, I32, I32]] = []
        self._add_regions(alloc)

    def _add_regions(self, alloc: Alloc) -> None:
        """Add one region per expert slot.

        Row ids are grouped by slot; `row_of` maps useful rows (token order) to row ids.

        Forward, a row takes its place in the region when it arrives. Backward, places are fixed from the start, as a forward pass whose GPUs keep
        step fills them: the first token of every GPU, then the second one.
        `program.relayout` replaces this order by the one that a forward run recorded.
        """
        slots_per_gpu = self.routing.placement.slots_per_gpu
        n_slots = self.n_gpus * slots_per_gpu
        counts = np.bincount(self.p.slot, minlength=n_slots)
        token_of_row = self.p.row_token
        if self.direction == "fwd":
            order = stable_order(self.p.slot)
        else:
            place = token_of_row % np.int32(self.tokens)  # rows of one place are in the order of their sources
            order, alloc = stable_order(self.p.slot * np.int64(self.tokens) + place), Alloc.PREFIX
        self.row_of = placed(len(order), order, np.arange(len(order), dtype=np.int32))
        slot_gpu = np.arange(n_slots) // slots_per_gpu
        tile_rows = self.tiling.rows if self.compute else 1  # without compute a row is ready by itself
        self.b.regions(slot_gpu, counts, self.sent_bytes, tile_rows, alloc=alloc, key=token_of_row[order], name=EXPERT)
        tiles = -(-counts // tile_rows)
        self.tile_gpu = np.repeat(slot_gpu, tiles).astype(np.int32)
        self.tile_slot = np.repeat(np.arange(n_slots, dtype=np.int32), tiles)
        self.tile_rows = np.minimum(tile_rows, np.repeat(counts, tiles) - spans(0, tiles) * tile_rows).astype(np.int32)

    @property
    def tiles(self) -> I32:
        """`[tiles]` ids of the experts' region tiles."""
        return np.arange(len(self.tile_gpu), dtype=np.int32)

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
        self.b.notify(np.arange(len(self.row_of)), placed(len(self.row_of), self.row_of, op_of_useful_row))

    def rows_here(self, also: I32 | None = None, heads: Iterable[I32] = ()) -> I32:
        """`join_tiles` of the GPU's own rows: `[gpus]` JOINs that end when all of them have arrived."""
        return self.join_tiles(self.tiles, Tail.TILE_READY, heads=heads, also=also)

    def limit(self, most: int, name: str, node: I32, ops: I32) -> None:
        """Each GPU has at most `most` tokens of `ops` under way, which are on `node`."""
        self.b.hold(self.semaphores(most, name)[node], ops)

    def join_tiles(self, tails: I32, tail: Tail = Tail.OP_DONE, *, heads: Iterable[I32] = (), also: I32 | None = None) -> I32:
        """`[gpus]` one JOIN per GPU, which waits for `tails[tile]` of all expert tiles of the GPU and for `also[gpu]`.

        `heads`: arrays `[tiles]` of ops that wait for the JOIN of their tile's GPU.
        """
        join = self.join("barrier")
        self.b.edges(tail, tails, Head.OP_ISSUE, join[self.tile_gpu])
        self.wait_each(join, also)
        self.wait_each(tuple(heads), join[self.tile_gpu])
        return join

    def per_gpu(self, discipline: Discipline, name: str, pool: list[int] | None = None) -> I32:
        """`[gpus]` one issuer per GPU, which takes slots of `pool[gpu]` (None: of no pool)."""
        return self.issuers(name, discipline, pools=pool)

    # ---- transfers ----------------------------------------------------------------------------------------------------

    def put(self, template: Template, node: I32, to: I32, row: Ints, *, rows: Ints | None = None, **columns: Any) -> I32:
        """PUTs on the network of the template, otherwise as `puts`."""
        return self.between_gpus(template, node, to, row, rows=rows, targets=1, **columns)

    def gathering_rows(self, name: str, home: Ints, n_bytes: int, key: Ints | None = None, each: int = 1) -> tuple[I32, I32]:
        """Add `each` regions per GPU with a row per entry of `home`, which numbers its region. No op waits for a part of a region.

        `key`: `[entries]`, in the order of the regions. Returns (`[entries]` row, `[regions]` tile that is ready when the region is full, -1 = it is
        empty).
        """
        owned = np.bincount(home, minlength=self.n_gpus * each)
        most = int(max(1, owned.max(initial=1)))
        _, row, tile = self.b.regions(np.repeat(self.gpus, each), owned, n_bytes, most, alloc=Alloc.PREFIX, key=key, name=name)
        rows = row + placed(len(home), stable_order(home), ids(0, len(home)))
        return rows, np.where(owned > 0, tile + np.cumsum(owned > 0) - 1, -1).astype(np.int32)

    def landing(self, name: str, gpu: I32, group: I64, key: I32, n_bytes: int) -> Landing:
        """Regions with a row per entry and a tile per group of entries.

        `group`: `[entries]` group of each entry, groups numbered from 0. `gpu`: `[groups]`. Groups of one GPU and size share a
        region, whose tiles have that many rows.
        """
        n_groups = len(gpu)
        size = np.bincount(group, minlength=n_groups)
        order = np.lexsort((size, gpu))
        order = order[size[order] > 0]
        start, per_region = runs(gpu[order], size[order])
        by_group = np.argsort(group, kind="stable")
        first = np.cumsum(size) - size
        entries = by_group[spans(first[order], size[order])]
        _, row, tile = self.b.regions(
            gpu[order][start], per_region * size[order][start], n_bytes, size[order][start], alloc=Alloc.PREFIX, key=key[entries], name=name
        )
        return Landing(placed(len(group), entries, ids(row, len(entries))), placed(n_groups, order, ids(tile, len(order))))

    def transfer(
        self, name: str, kind: Kind, operator: str, fn: str = "control", src: str = "", dst: str = "", *, framing: Framing | None = None,
        net: int = 0, cls: int = REQUESTS, table: int = -1,
    ) -> Template:  # fmt: skip
        """The template of transfers in network `net`: stores by NVLink and messages by NIC, unless `framing` says otherwise."""
        at = self.b.framing(framing or (RDMA if net else STORE))
        classes = (cls, RESPONSES if kind is Kind.PULL_REDUCE else 0)
        return Template(self.ways.named(name, net), kind, operator, fn, *classes, framing=at, src=src, dst=dst, table=table, net=net)

    def puts(self, template: Template, node: I32, to: I32, row: Ints, *, rows: Ints | None = None, **columns: ArrayLike) -> I32:
        """PUTs on the network of `ways`: template "NAME" inside a domain, "NAME.nic" between domains.

        `rows`: `[n]` rows that each PUT fills, default one. `row`: the rows of all PUTs, one after the other. `columns`: further
        columns of `ProgramBuilder.ops`, one entry per PUT or one for all. Returns `[n]` ops.
        """
        if not self.ways.nets:
            return self.put(template, node, to, row, rows=rows, **columns)
        nets, op = self.ways.net_of(node, to), np.empty(len(node), np.int32)
        for net in range(len(self.ways.nets) + 1):
            mine = nets == net
            if net and not mine.any():
                continue
            one = template
            if net:
                framing = self.b.framing(LINK if self.ways.nets[net - 1].step else RDMA)
                one = replace(template, name=self.ways.named(template.name, net), framing=framing, net=net, table=-1)
            own = {name: np.asarray(column)[mine] if np.ndim(column) else column for name, column in columns.items()}
            fills, each = (row[mine], None) if rows is None else (row[np.repeat(mine, rows)], rows[mine])
            op[mine] = self.put(one, node[mine], to[mine], fills, rows=each, **own)
        return op

    def last_hops(self, op: I32) -> I32:
        """`[n]` the last hop of each PUT `op`: the PUT itself where it goes straight."""
        return op

    def turn(self, node: I32, to: I32, turns: I32 | None) -> I32 | int:
        """`prio` of PUTs from `node` to `to` with the issuers `turns` (`[gpus]`, SMALLEST_KEY): peer by peer, the next GPU first.

        At any time all GPUs then send to different GPUs. None: the ops have no priority.
        """
        return 0 if turns is None else (to - node) % self.n_gpus

    def _transfers(self, op: I32, node: I32, unit_rows: I64) -> Transfers:
        """Ops to several GPUs that carry one unit each, in token order."""
        return Transfers(op=op, node=node, to=np.broadcast_to(np.int32(-1), (len(op),)), unit=np.arange(len(op)), unit_rows=unit_rows)

    def _replica_ext(self, framing: Framing, pair: Ints, packets: Ints) -> I64 | None:
        """Wire bytes of the extension flits that name the local experts of each copy. None: no copy has extension flits.

        `pair`: `[copies]` the (token, GPU) pair of each copy. `packets`: `[copies]` packets of its train.

        A copy needs no extension where a bitmap (at most 15 local experts) or three ids (at most 32) name its experts.
        The choice `dysharp.replica_form` = "extension" puts one extension flit on every copy.
        """
        local = self.routing.placement.slots_per_gpu
        lean = choice_str("dysharp.replica_form") == "bitmap"
        if not framing.targets_per_ext or (lean and local <= 15):
            return None
        needs = self.p.rows > 3 if lean and local <= 32 else np.ones(len(self.p.rows), bool)
        flits: I64 = needs[pair].astype(np.int64) * packets
        return flits * self.cluster.flit_bytes

    # ---- tables and windows ---------------------------------------------------------------------------------------------

    def _al_table(self, framing: Framing) -> int:
        """The AL Table of the hubs with its TLB, where dynamic packets look up the place of each row; -1 for other packets."""
        entries = self.cluster.al_tlb_entries
        return self._table(framing, "al_tlb", entries) if framing.targets_per_ext and entries else -1

    def row_table(self, framing: Framing, banks: int, bank_entries: int) -> int:
        """A table of the hubs in which rows take their places on arrival, for `dispatch_rows`."""
        return self._table(framing, "rat", banks * bank_entries, banks, allocates=True)

    def _table(self, framing: Framing, name: str, entries: int, banks: int = 1, *, allocates: bool = False) -> int:
        misses = misses_under_way(link_rows_per_us(self.cluster, framing, self.sent_bytes, self.dispatch_aux), self.al_misses)
        read_ps = ns_to_ps(choice_int("hub.al_miss_ns"))
        return self.b.table(HubTable(name, entries, misses, read_ps, allocates=allocates, banks=banks))

    def flow(self, framing: Framing, *, every_gpu: bool = False) -> Flow:
        """Rows at the busiest hub. `every_gpu`: every token goes to every GPU."""
        copies = np.bincount(self.p.gpu[self.p.gpu != self.p.source], minlength=self.n_gpus)
        hub_rows = (self.n_gpus - 1) * self.tokens if every_gpu else int(copies.max(initial=0))
        rate = link_rows_per_us(self.cluster, framing, self.sent_bytes, self.dispatch_aux)
        m, entries = self.b.hardware, PUBLISHED_ROWS if framing.targets_per_ext else 0
        miss_us = ns_to_ps(choice_int("hub.al_miss_ns")) / PS_PER_US if entries else 0.0
        return Flow(
            rows_per_us=rate,
            tokens_per_us=rate * self.tokens / max(hub_rows, self.tokens),
            dispatch_us=(2 * m.lat + m.ack) / PS_PER_US + miss_us,
            combine_us=(4 * m.lat + m.responder) / PS_PER_US + miss_us,
            entries=entries,
            sessions=sessions_that_fit(self.model, self.cluster, self.combine_aux),
        )

    def windows(self, framing: Framing, dispatch: int, combine: int, *, together: bool = True, every_gpu: bool = False) -> tuple[int, int]:
        """(dispatch, combine) windows in tokens per source GPU; 0 means automatic (building/windows.py).

        `together`: Dispatch and Combine are under way at once. `every_gpu`: every token goes to every GPU.
        """
        automatic = self.flow(framing, every_gpu=every_gpu).windows(together=together)
        combine = combine or automatic[1]
        return dispatch or min(automatic[0], combine), combine
