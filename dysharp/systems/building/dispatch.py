"""`DispatchBlocks`: the ways in which rows go out."""

import numpy as np

from dysharp.base.units import ns_to_ps
from dysharp.program import I32, I64, Discipline, Framing, Ints, Kind, Template, To, place_in, spans
from dysharp.specs import choice_int
from dysharp.systems.building.base import DYMULTIMEM, LINK, STORE, LayerBase, flat_ones, turns_by
from dysharp.systems.building.batch import Transfers


def _side_by_side(source: I32, trains: int, at_once: int) -> I32:
    """`prio` of PUTs from `source`, `trains` of each row one after the other, where `at_once` rows of a GPU go side by side."""
    rows = source[::trains]
    group, place = np.divmod(np.repeat(place_in(rows), trains), at_once)
    return np.asarray(group * at_once * trains + np.tile(np.arange(trains), len(rows)) * at_once + place, np.int32)


class DispatchBlocks(LayerBase):
    """Blocks that push or multicast the rows of a pass to the GPUs of their experts."""

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
        columns = self.p.token, self.p.source, pairs, flat_ones(len(pairs))
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
        prio = turns_by(discipline, np.arange(len(sent)))
        if at_once > 1:
            discipline, prio = Discipline.SMALLEST_KEY, _side_by_side(source, n, at_once)
        op = self.puts(
            self._row_template("dispatch.row", Kind.PUT, framing, table),
            source,
            gpu,
            self.row_of[sent],
            issuer=self.per_gpu(discipline, "dispatch")[source],
            bytes=np.tile(n_bytes, len(order)),
            key=self.p.row_token[sent],
            prio=prio,
            aux_bytes=np.tile(aux, len(order)),
            offset=np.tile(offset, len(order)) if n > 1 else 0,
        )
        self.dispatched.append(batch := Transfers(op=op, node=source, to=gpu, unit=sent, unit_rows=flat_ones(len(order))))
        return batch

    def dispatch_multicast(self, window: int, framing: Framing = DYMULTIMEM, *, by_rows: bool = False, asks: bool = True) -> Transfers:
        """Multicast every token of `p.sent` to its GPUs. `window`: most tokens in flight per source. `by_rows`: see `_send`.

        `asks`: packets of `framing` ask the AL Table for the places of their rows. False: hubs place new rows without a table in memory.
        """
        table = self._al_table(framing) if asks else -1
        template = self._row_template("dispatch.multicast", Kind.MULTICAST, framing, table)
        issuer = self.issuers("dispatch")
        sent = self.p.sent
        counts = self.p.token_pairs[sent]
        first_pair = np.cumsum(counts) - counts
        batch = self._send(template, framing, issuer, sent, self.p.sent_source, first_pair, counts, self.p.listed[sent], by_rows=by_rows)
        trains = len(batch.op) // max(1, len(sent))
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
    ) -> Transfers:
        """Send units of Dispatch: unit i carries the row of `token[i]` to the pairs from `first_pair[i]` on.

        Units are in token order and take all pairs. `targets`: listed targets of a unit. `to`: the GPU that receives
        each unit, None = several. `prio`: one per unit, or one for all units. `by_rows`: see `_trains`.
        """
        offset, n_bytes, aux = self._trains(framing, by_rows)
        n, units = len(offset), len(token)
        unit, pair, row = np.arange(units), np.arange(len(self.p.gpu)), np.arange(len(self.row_of))
        if n > 1:
            unit = np.repeat(unit, n)
            pair = spans(first_pair[unit], pairs_of_unit[unit])
            row = spans(self.p.slot_ptr[pair], self.p.rows[pair])
        train = np.tile(np.arange(n), units)
        packets = -(-n_bytes // framing.payload_bytes) + -(-aux // framing.payload_bytes)
        ext = self._replica_ext(framing, pair, np.repeat(packets[train], pairs_of_unit[unit]))
        ops = self.add(
            template,
            source[unit],
            issuer=issuer[source[unit]],
            bytes=n_bytes[train],
            key=token[unit],
            prio=prio if np.ndim(prio) == 0 else np.asarray(prio)[unit],
            to=To(pairs_of_unit[unit], self.p.gpu[pair], self.p.rows[pair], self.row_of[row], ext),
            targets=targets if np.ndim(targets) == 0 else np.asarray(targets)[unit],
            aux_bytes=aux[train],
            offset=offset[train] if n > 1 else 0,
        )
        several = np.broadcast_to(np.int32(-1), (len(unit),))
        rows_of_unit = np.add.reduceat(self.p.rows, first_pair) if units else np.zeros(0, np.int64)
        to = several if to is None else to[unit]
        self.dispatched.append(batch := Transfers(op=ops, node=source[unit], to=to, unit=unit, unit_rows=rows_of_unit))
        return batch

    def target_fetch(self, after: I32 | None) -> I32:
        """`[gpus]` DELAYs: each LSU fetches its first target list, after region tile `after[gpu]` if given."""
        fetch = self.delays("target_fetch", [ns_to_ps(choice_int("dysharp.target_fetch_ns"))] * 2, self.gpus, self.issuers("lsu", slots=1))
        self.wait_tiles(fetch, after)
        return fetch

    def dispatch_allgather(self, window: int) -> Transfers:
        """Multicast every token to every GPU. A GPU keeps the rows that its experts need.

        `window`: most tokens in flight per source.
        """
        template = self._row_template("dispatch.allgather", Kind.MULTICAST, STORE)
        source = self.p.every_source
        columns = {"issuer": self.issuers("dispatch")[source], "to": To(*self.p.everywhere(), self.row_of), "targets": 1}
        op = self.add(template, source, bytes=self.sent_bytes, key=np.arange(self.routing.n_tokens), aux_bytes=self.dispatch_aux, **columns)
        batch = self._transfers(op, source, self.p.token_rows)
        self.limit(window, "dispatch_window", source, batch.op)
        return batch
