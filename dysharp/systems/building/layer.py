"""`LayerBuilder`: one pass of a MoE layer as a Program.

Its methods send tokens out, bring results back, and say which op waits for which other op.

Every method adds whole columns of ops at once and returns them as a `batch.Batch`. A backward pass uses the same
methods: output gradients go out, input gradients come back (docs/design/0005-backward.md).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dysharp.base import ByName, Tally, ns_to_ps
from dysharp.program import BETWEEN_NET, I32, I64, OTHER, Alloc, Declared, Discipline, Framing, Ints, Kind, Program, Template, To, place_in, spans
from dysharp.specs import choice_int
from dysharp.systems.building.base import BUFFERS, CONTROL, DYMULTIMEM, EXPLICIT, LINK, MULTIMEM, RDMA, STORE
from dysharp.systems.building.batch import Returns, Transfers, ids, placed
from dysharp.systems.building.formats import packet_in
from dysharp.systems.building.software_steps import SoftwareBase
from dysharp.systems.building.windows import sessions_that_fit
from dysharp.systems.facts import Moves
from dysharp.workload import LEVELS, Levels, Scheme, between_rails, scheme_rows

__all__ = ["BUFFERS", "CONTROL", "DYMULTIMEM", "EXPLICIT", "LINK", "MULTIMEM", "RDMA", "STORE", "Kernels", "LayerBuilder"]


def _side_by_side(source: I32, trains: int, at_once: int) -> I32:
    """`prio` of PUTs from `source`, `trains` of each row one after the other, where `at_once` rows of a GPU go side by side."""
    rows = source[::trains]
    group, place = np.divmod(np.repeat(place_in(rows), trains), at_once)
    return np.asarray(group * at_once * trains + np.tile(np.arange(trains), len(rows)) * at_once + place, np.int32)


class LayerBuilder(SoftwareBase):
    """One pass of a layer under construction. `LayerBase` says what its arrays hold."""

    levels: Levels | None = None
    """Dispatch's rows by network over several domains, where the system's `moves` has no name for them."""

    # ---- rows go out --------------------------------------------------------------------------------------------------------

    def _row_template(self, name: str, kind: Kind, framing: Framing, table: int = -1) -> Template:
        return self.transfer(name, kind, "dispatch", "copy", self.sent_buffer, self.arrived, framing=framing, table=table)

    def dispatch_puts(self, discipline: Discipline = Discipline.PROGRAM_ORDER, *, turns: I32 | None = None, by_rows: bool = False) -> Transfers:
        """Push every token once to each of its GPUs. One unit per pair, in token order.

        `turns`: see `turn`. `by_rows`: see `_trains`.
        """
        template = self.b.template(self._row_template("dispatch.put", Kind.PUT, STORE))
        issuer = self.per_gpu(discipline, "dispatch") if turns is None else turns
        pairs, prio = np.arange(len(self.p.gpu)), self.turn(self.p.source, self.p.gpu, turns)
        if not self.cluster.n_switches:
            return self._push_pairs(pairs, issuer, LINK, prio)  # on the link of a pair a row is one train
        columns = self.p.token, self.p.source, pairs, _flat_ones(len(pairs))
        return self._send(template, STORE, issuer, *columns, 1, to=self.p.gpu, prio=prio, by_rows=by_rows)

    def dispatch_pairs(self, order: I64) -> Transfers:
        """Push the token of each (token, GPU) pair of `order` once to the GPU, in this order per source."""
        return self._push_pairs(order, self.issuers("dispatch"), STORE)

    def _push_pairs(self, order: I64, issuer: I32, framing: Framing, prio: I32 | int = 0) -> Transfers:
        """A PUT of one train per pair of `order`. `prio`: one per pair, or one for all pairs."""
        source, gpu = self.p.source[order], self.p.gpu[order]
        op = self.pair_puts(self._row_template("dispatch.put", Kind.PUT, framing), source, order, issuer, prio)
        self.dispatched.append(batch := Transfers(op=op, node=source, to=gpu, unit=order, unit_rows=self.p.rows))
        return batch

    def pair_puts(self, template: Template, node: I32, pairs: I64, issuer: I32, prio: I32 | int = 0) -> I32:
        """PUTs of a row from `node[i]` to the GPU of each of `pairs`, into all its rows there. `issuer`: `[gpus]`."""
        rows = self.p.rows[pairs]
        row, columns = self.row_of[spans(self.p.slot_ptr[pairs], rows)], {"issuer": issuer[node], "key": self.p.token[pairs], "prio": prio}
        return self.puts(template, node, self.p.gpu[pairs], row, rows=rows, **self.row_columns, **columns)

    def dispatch_rows(
        self,
        discipline: Discipline = Discipline.PROGRAM_ORDER,
        order: I64 | None = None,
        *,
        by_rows: bool = False,
        framing: Framing = STORE,
        table: int = -1,
        at_once: int = 1,
    ) -> Transfers:
        """Push every useful row on its own.

        `order`: the useful rows in the order of sending (default: token order), by `discipline` PROGRAM_ORDER or, where rows
        of one GPU have several templates, SMALLEST_KEY. `by_rows`: see `_trains`. `table`: the hub table that rows ask.
        `at_once`: rows that a GPU sends side by side, first the first trains of all these rows, then their second trains.
        """
        order = np.arange(len(self.row_of)) if order is None else order
        offset, n_bytes, aux = self._trains(framing, by_rows)
        n = len(offset)
        sent = np.repeat(order, n)
        source, gpu = self.p.row_source[sent], self.p.row_gpu[sent]
        prio = _turns_by(discipline, np.arange(len(sent)))
        if at_once > 1:
            discipline, prio = Discipline.SMALLEST_KEY, _side_by_side(source, n, at_once)
        train, issuer = np.tile(np.arange(n), len(order)), self.per_gpu(discipline, "dispatch")
        columns: ByName = {"issuer": issuer[source], "key": self.p.row_token[sent], "prio": prio, "offset": offset[train] if n > 1 else 0}
        template = self._row_template("dispatch.row", Kind.PUT, framing, table)
        op = self.puts(template, source, gpu, self.row_of[sent], bytes=n_bytes[train], aux_bytes=aux[train], **columns)
        self.dispatched.append(batch := Transfers(op=op, node=source, to=gpu, unit=sent, unit_rows=_flat_ones(len(order))))
        return batch

    def dispatch_multicast(
        self, window: int, framing: Framing = DYMULTIMEM, *, by_rows: bool = False, asks: bool = True, fan_out: int = 0
    ) -> Transfers:
        """Multicast every token of `p.sent` to its GPUs. `window`: most multicasts in flight per source. `by_rows`: see `_send`.

        `fan_out`: most GPUs of one multicast, 0 = any number; a token with more leaves several times (`workload.traffic.multicast_in_groups`).
        `asks`: packets of `framing` ask the AL Table for the places of their rows. False: hubs place new rows without a table in memory.
        """
        table = self._al_table(framing) if asks else -1
        template = self._row_template("dispatch.multicast", Kind.MULTICAST, framing, table)
        issuer = self.issuers("dispatch")
        fan_out = fan_out or self.n_gpus
        pairs = self.p.token_pairs[self.p.sent]
        unit = np.repeat(np.arange(len(pairs)), -(-pairs // fan_out))
        begin = place_in(unit) * fan_out
        first_pair = (np.cumsum(pairs) - pairs)[unit] + begin
        listed = np.add.reduceat(np.where(self.p.gpu != self.p.source, self.p.rows, 0), first_pair) if len(unit) else unit
        columns = self.p.sent[unit], self.p.sent_source[unit], first_pair, np.minimum(pairs[unit] - begin, fan_out), listed
        batch = self._send(template, framing, issuer, *columns, by_rows=by_rows)
        trains = len(batch.op) // max(1, len(unit))
        self.limit(window * trains, "dispatch_window", batch.node, batch.op)
        return batch

    def _trains(self, framing: Framing, by_rows: bool) -> tuple[I32, I32, I32]:
        """(first byte, bytes, gate weight bytes) of each train of a row of Dispatch: `machine.row_trains` trains, or one.

        `by_rows`: ops wait for single tiles of rows. The packets of a row then matter one by one: the first one takes
        the row's place in a tile, the last one completes the row, and they travel apart
        (docs/design/0010-tables-and-trains.md). If no op waits for single tiles, one train is enough. Gate weights ride the last train.
        """
        packets = framing.packets(self.sent_bytes)
        n = min(choice_int("machine.row_trains") if by_rows else 1, packets)
        ends = np.minimum(-(-packets * np.arange(n + 1) // n) * framing.payload_bytes, self.sent_bytes).astype(np.int32)
        aux = np.zeros(n, np.int32)
        aux[-1] = self.dispatch_aux
        self.b.row_trains = max(self.b.row_trains, n)
        return ends[:-1], np.diff(ends), aux

    def _send(
        self,
        template: Template | int,
        framing: Framing,
        issuer: I32,
        token: Ints,
        source: I32,
        first_pair: I64,
        pairs_of_unit: Ints,
        targets: Ints | int,
        *,
        to: I32 | None = None,
        prio: I32 | int = 0,
        by_rows: bool = False,
        order: I64 | None = None,
    ) -> Transfers:
        """Send units of Dispatch: unit i carries the row of `token[i]` to the pairs from `first_pair[i]` on.

        Units are in token order and take all pairs, or the pairs of `order`. `targets`: listed targets of a unit. `to`: the GPU that receives
        each unit, None = several. `prio`: one per unit, or one for all units. `by_rows`: see `_trains`.
        """
        offset, n_bytes, aux = self._trains(framing, by_rows)
        n, units = len(offset), len(token)
        unit, pair, row = np.arange(units), np.arange(len(self.p.gpu)), np.arange(len(self.row_of))
        if n > 1 or order is not None:
            unit = np.repeat(unit, n)
            pair = spans(first_pair[unit], pairs_of_unit[unit])
            pair = pair if order is None else order[pair]
            row = spans(self.p.slot_ptr[pair], self.p.rows[pair])
        train = np.tile(np.arange(n), units)
        packets = -(-n_bytes // framing.payload_bytes) + -(-aux // framing.payload_bytes)
        ext = self._replica_ext(framing, pair, np.repeat(packets[train], pairs_of_unit[unit]))
        turn, listed = (column if np.ndim(column) == 0 else np.asarray(column)[unit] for column in (prio, targets))
        columns = {"issuer": issuer[source[unit]], "key": token[unit], "prio": turn, "targets": listed, "offset": offset[train] if n > 1 else 0}
        columns["gate"] = self.row_columns.get("gate", -1)
        members = To(pairs_of_unit[unit], self.p.gpu[pair], self.p.rows[pair], self.row_of[row], ext)
        ops = self.add(template, source[unit], bytes=n_bytes[train], aux_bytes=aux[train], to=members, **columns)
        several = np.broadcast_to(np.int32(-1), (len(unit),))
        rows_of_unit = np.add.reduceat(self.p.rows if order is None else self.p.rows[order], first_pair) if units else np.zeros(0, np.int64)
        to = several if to is None else to[unit]
        self.dispatched.append(batch := Transfers(op=ops, node=source[unit], to=to, unit=unit, unit_rows=rows_of_unit))
        return batch

    def target_fetch(self, after: I32 | None) -> I32:
        """`[gpus]` DELAYs: each LSU fetches its first target list, after region tile `after[gpu]` if given."""
        fetch = self.delays("target_fetch", [ns_to_ps(choice_int("dysharp.target_fetch_ns"))] * 2, self.gpus, self.issuers("lsu", slots=1))
        self.wait_tiles(fetch, after)
        return fetch

    def dispatch_allgather(self, window: int, framing: Framing = STORE) -> Transfers:
        """Multicast every token to every GPU. A GPU keeps the rows that its experts need.

        `window`: most tokens in flight per source.
        """
        template = self._row_template("dispatch.allgather", Kind.MULTICAST, framing)
        source = self.p.every_source
        columns = {"issuer": self.issuers("dispatch")[source], "to": To(*self.p.everywhere(), self.row_of), "targets": 1}
        op = self.add(template, source, bytes=self.sent_bytes, key=np.arange(self.routing.n_tokens), aux_bytes=self.dispatch_aux, **columns)
        batch = self._transfers(op, source, self.p.token_rows)
        self.limit(window, "dispatch_window", source, batch.op)
        return batch

    # ---- results come back --------------------------------------------------------------------------------------------------

    def combine_puts(self, order: Discipline | I32) -> Returns:
        """Push the sum over a GPU's experts back to the source of the token. One op per pair, in `p.push_order`.

        `order`: the discipline of the issuers, or issuers of `turn`.
        """
        return self._push_back([self.p.push_order], order)[0]

    def combine_pair_chunks(self, orders: Sequence[I64]) -> list[Returns]:
        """As `combine_puts`, in chunks that may wait for each other: a batch with issuers of its own for each of `orders` (together all pairs)."""
        return self._push_back(orders, Discipline.PROGRAM_ORDER)

    def combine_rows(self, discipline: Discipline, order: I64 | None = None, *, framing: Framing = STORE) -> Returns:
        """Push every expert's row back to the source of the token, which sums the rows.

        `order`: the useful rows in the order of sending (default: `p.row_push_order`).
        """
        return self.combine_row_chunks(discipline, [self.p.row_push_order if order is None else order], framing=framing)[0]

    def combine_row_chunks(self, discipline: Discipline, orders: Sequence[I64], *, framing: Framing = STORE) -> list[Returns]:
        """As `combine_rows`, in chunks that may wait for each other: a batch with issuers of its own for each of `orders`.

        `orders`: together all useful rows. `of_useful_row` is for a single chunk only.
        """
        return self._push_back(orders, discipline, rows=True, framing=framing)

    def partial_rows(self, home: I32, token: I32) -> tuple[I32, I32]:
        """Add the regions "partial", with a row per entry of `token`, which goes to `home`. Returns (row of each, `Returns.tile`)."""
        return self.gathering_rows("partial", home, self.back_bytes, token)

    def _push_back(self, orders: Sequence[I64], issuer: Discipline | I32, *, rows: bool = False, framing: Framing = STORE) -> list[Returns]:
        """PUTs of pairs, or of `rows`, each into its own row of the regions "partial": a batch for each of `orders`."""
        p, batches = self.p, []
        token, node, home = (p.row_token, p.row_gpu, p.row_source) if rows else (p.token, p.gpu, p.source)
        unit_rows = _flat_ones(len(token)) if rows else p.rows
        into, tile = self.partial_rows(home, token)
        name, fn = ("combine.row", "row") if rows else ("combine.put", "sum")
        for order in orders:
            issuers, prio = (issuer, self.turn(node, home, issuer)) if isinstance(issuer, np.ndarray) else (self.per_gpu(issuer, "combine"), 0)
            if rows and isinstance(issuer, Discipline):
                prio = _turns_by(issuer, order)
            template = self.transfer(name, Kind.PUT, "combine", fn, self.result, "partial", framing=framing)
            turn = prio if np.ndim(prio) == 0 else np.asarray(prio)[order]
            own: ByName = {"issuer": issuers[node[order]], "key": token[order], "prio": turn}
            op = self.puts(template, node[order], home[order], into[order], **self.result_columns, **own)
            batches.append(Returns(op=op, node=node[order], to=home[order], unit=order, unit_rows=unit_rows, tile=tile))
        self.returned += batches
        return batches

    def combine_pulls(self, discipline: Discipline, window: int, framing: Framing = DYMULTIMEM, *, every_gpu: bool = False) -> Transfers:
        """The source of each token in `sent` pulls the sum over the token's GPUs through the switch.

        `window`: most tokens in flight per source. `every_gpu`: every token is pulled, from all GPUs.
        """
        ends, table = (self.result, self.summed_buffer), self._al_table(framing)
        answer, total = (packet_in(word, self.model, framing.payload_bytes) for word in self.converted)
        framing = replace(framing, answer=answer, total=total)
        template = self.transfer("combine.pull", Kind.PULL_REDUCE, "combine", "sum", *ends, framing=framing, table=table)
        tokens = np.arange(self.routing.n_tokens) if every_gpu else self.p.sent
        packets = framing.packets(self.model.row_bytes) + framing.packets(self.combine_aux)
        ext = self._replica_ext(framing, np.arange(len(self.p.gpu)), np.full(len(self.p.gpu), packets))
        to = To(*self.p.everywhere(), self.row_of) if every_gpu else To(self.p.token_pairs[self.p.sent], self.p.gpu, self.p.rows, self.row_of, ext)
        source = self.p.every_source if every_gpu else self.p.sent_source
        columns = {"issuer": self.per_gpu(discipline, "combine")[source], "targets": 1 if every_gpu else self.p.listed[self.p.sent]}
        op = self.add(template, source, bytes=self.model.row_bytes, key=tokens, to=to, aux_bytes=self.combine_aux, **columns)
        batch = self._transfers(op, source, self.p.token_rows[tokens])
        self.limit(window, "combine_window", source, batch.op)
        self.limit(sessions_that_fit(self.model, self.cluster, self.combine_aux), "reduction_table", source, batch.op)
        return batch

    def dispatch_free(self) -> None:
        """One local op per GPU stands for Dispatch and brings all rows of the GPU's experts at once."""
        gpus = np.arange(self.n_gpus, dtype=np.int32)
        rows = np.bincount(self.p.slot // self.routing.placement.slots_per_gpu, minlength=self.n_gpus)
        template = self.transfer("dispatch.free", Kind.PUT, "dispatch", "copy", self.sent_buffer, self.arrived)
        to = To(np.ones(len(gpus), np.int32), gpus, rows, np.arange(len(self.row_of)))
        self.add(template, gpus, issuer=self.issuers("free"), bytes=self.sent_bytes, to=to)

    def combine_free(self, finished: I32) -> None:
        """Sums without cost: one JOIN per GPU, which waits for the ops `finished[gpu]` of all GPUs."""
        template = Template("combine.free", Kind.JOIN, "combine", "sum", src=self.result, dst=self.summed_buffer)
        self.wait_all(self.add(template, self.gpus), finished)

    # ---- the pass -----------------------------------------------------------------------------------------------------------

    def exchange(self, n_bytes: int, *, name: str, after: I32 | None = None) -> I32:
        """Every GPU multicasts `n_bytes` of control data to all GPUs, after the op `after[gpu]` if given.

        Returns `[gpus]` region tiles: tile `[gpu]` is ready when the GPU has the data of all GPUs.
        """
        template = self.transfer(name, Kind.MULTICAST, "other", cls=OTHER, framing=CONTROL)
        g, size = self.n_gpus, self.cluster.domain_gpus
        _, first_row, first_tile = self.b.regions(np.arange(g), np.full(g, g), n_bytes, g, alloc=Alloc.PREFIX, name=name)
        # Row i of every GPU's region is written by GPU i.
        rows = (first_row + np.arange(g)[None, :] * g + np.arange(g)[:, None]).ravel()
        to, near = np.tile(np.arange(g), g), (np.arange(g)[:, None] // size == np.arange(g)[None, :] // size).ravel()
        ways = [(template, near)]
        if size < g:
            ways.append((self.transfer(name, Kind.MULTICAST, "other", cls=OTHER, net=BETWEEN_NET), ~near))
        for way, mine in ways:
            count = np.full(g, int(mine.sum()) // g)
            to_all = To(count, to[mine], np.ones(int(mine.sum()), np.int32), rows[mine])
            op = self.add(way, self.gpus, issuer=self.issuers(name), bytes=n_bytes, to=to_all, targets=1)
            self.wait_each(op, after)
        return ids(first_tile, g)

    def build(self, moves: Moves | Scheme, options: object = None) -> Program:
        """The finished Program.

        The Program declares its useful rows and the closed-form traffic of this Routing (`workload.traffic`; between domains
        `workload.levels`). `moves`: what the system moves (`Facts.moves`), or the scheme of Dispatch alone. `options`: the options of the system,
        where a scheme depends on them.
        """
        moves = moves if isinstance(moves, Moves) else Moves(moves)
        if self.cluster.domains == 1:
            sent = [scheme_rows(self.routing, moves.sent, options)]
            back = sent if moves.back is None else [scheme_rows(self.routing, moves.back, options)]
        else:
            named = moves.between or self.ways.per_expert
            sent = [*(LEVELS[named](self.routing, self.cluster.domain_gpus) if self.levels is None else self.levels)]
            if len(self.ways.outside) > 1:
                across = between_rails(self.routing, self.cluster.domain_gpus, named)
                sent[1:] = [(sent[1][0] - across[0], sent[1][1] - across[1]), across]
            back = sent
        sums: dict[str, Tally] = {}
        for sides, there, again in zip(self.ways.sides, sent, back, strict=True):
            for side, rows, mirrored in zip(sides, there, reversed(again), strict=True):
                back_bytes = self.sum_bytes if side == "down" else self.back_bytes
                sums[side] = {"dispatch": int(rows.sum()) * self.sent_bytes, "combine": int(mirrored.sum()) * back_bytes}
        return self.b.build(Declared(len(self.p.slot), sums, self.routing.placement.n_slots))


def _turns_by(discipline: Discipline, order: I64) -> I32 | int:
    """`[n]` place of each entry in `order`: the `prio` of ops whose issuers send in this order. 0: they do not."""
    return placed(int(order.max(initial=-1)) + 1, order, ids(0, len(order))) if discipline is Discipline.SMALLEST_KEY else 0


def _flat_ones(n: int) -> Ints:
    """`[n]` ones that take no memory."""
    return np.broadcast_to(np.int32(1), (n,))


class Kernels(LayerBuilder):
    """A pass in real form on the kernels of a system: Dispatch, one GEMM after the other, Combine."""

    def prepare(self) -> None:
        """What both kernels share, before them."""

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` ops after which the GEMMs of a GPU start."""
        raise NotImplementedError

    def combine(self, finished: I32) -> None:
        """Add Combine behind the GEMMs of each GPU, `finished[gpu]`."""
        raise NotImplementedError
