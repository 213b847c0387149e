"""The row path: runs a Program on real tensors, one row per transfer. It is fast and has no packets and no tables."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dysharp.arrays import Array
from dysharp.errors import ConfigError, EmulationMismatch
from dysharp.functional.faults import Faults
from dysharp.functional.layer import UNBOUND, ExpertMemory, Layout, Record, Saved, Tensors
from dysharp.functional.messages import Arrival, Messages, QueuePair
from dysharp.functional.orders import Pool, make_pool
from dysharp.functional.progress import Progress
from dysharp.functional.sums import Expression, Sums, add_in_order
from dysharp.program import Kind, Program, Tail, Trace
from dysharp.program.builder import PULLS, PUSHES

ISSUE, DELIVER, RESPOND, DONE, NOTIFY = range(5)
ALL = slice(None)
DELIVERIES, COMPLETIONS = frozenset({DELIVER, RESPOND}), frozenset({DONE, NOTIFY})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one pass.

    `out`: `[tokens, hidden]` in the stored dtype, y or dx. `gate_grad`: `[tokens, topk]`, backward pass only. `events`:
    number of steps. `injected`: faults of messages between domains that happened, by kind.
    """

    out: Array
    gate_grad: Array | None
    record: Record
    saved: Saved | None
    events: int
    injected: Mapping[str, int] = field(default_factory=dict)


def run_rows(
    program: Program,
    tensors: Tensors,
    order: str = "oldest",
    *,
    seed: int = 0,
    trace: Trace | None = None,
    faults: Faults | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Interpret `program` on `tensors`. `order`: one of `orders.ORDERS`; "trace" needs the Trace of `program`.

    `faults`: faults of messages between domains happen; faults of packets have no meaning here.

    `progress(done, total)` is called from time to time. Raises EmulationMismatch when no event is possible and ops are
    left (the watchdog), ConfigError for parts of a Program that the machine does not interpret.
    """
    if (order == "trace") != (trace is not None):
        raise ConfigError(f"order {order!r}: found {'no' if trace is None else 'a'} Trace, expected one for order trace only")
    if program.sections:
        raise ConfigError("run_rows: found a merge of Programs, expected one Program (merged.run_merged takes the tensors of every part)")
    machine = RowMachine(program, tensors, make_pool(order, seed, DELIVERIES, COMPLETIONS), trace, Messages(faults or Faults()))
    return machine.run(progress)


class RowMachine:
    """The row path on one Program. `progress`: of the merge that it is a part of, by the ids of the part; default: of its own."""

    def __init__(
        self, program: Program, tensors: Tensors, pool: Pool, trace: Trace | None, messages: Messages, progress: Progress | None = None
    ) -> None:
        self.p, self.t, self.pool, self.trace, self.messages = program, tensors, pool, trace, messages
        self.record = Record()
        self.layout = Layout(program, tensors.routing)
        self.memory = ExpertMemory(tensors, self.layout, self.record)
        self.backward = tensors.saved is not None
        self._check_layout()
        ops, m = program.ops, program.members
        self.kind = program.kinds().tolist()
        self.net = program.op_net().tolist()
        self.template = ops.template.tolist()
        self.node, self.key, self.bytes = ops.node.tolist(), ops.key.tolist(), ops.bytes.tolist()
        self.ptr, self.member_node = m.ptr.tolist(), m.node.tolist()
        self.fill_ptr, self.fill_row = m.fill_ptr.tolist(), m.fill_row.tolist()
        self.owner = np.repeat(np.arange(program.n_ops), np.diff(m.ptr)).tolist()
        self.missing = np.diff(m.ptr).tolist()
        row_bytes = np.repeat(program.regions.row_bytes, np.diff(program.regions.row_ptr))
        self.row_bytes = row_bytes.tolist()
        self.row_missing = row_bytes.tolist()
        self.offset = None if ops.offset is None else ops.offset.tolist()
        self.tile_missing = [end - first for _, first, end in map(self.layout.tile, range(program.n_tiles))]
        self.tokens_per_gpu = tensors.routing.tokens_per_gpu
        self._answers: dict[int, list[tuple[int, Array, Expression]]] = {}
        self._partial: dict[int, tuple[Array, Expression]] = {}
        self.sums = Sums(program)
        self._passed: dict[int, list[tuple[Array, Expression]]] = {}  # by partial row: the contributions of a sum that passed the switch
        self._domain_sums: dict[tuple[int, int], tuple[Array, Expression]] = {}  # by (GPU that adds its domain, token)
        self._relays: dict[tuple[int, int], Array] = {}  # by (GPU, token): rows that wait to be forwarded
        self._left: dict[tuple[int, int], tuple[Array, Expression]] = {}  # by (GPU, partial row that it will fill): results that wait
        self._relay_regions = {region for region, name in enumerate(program.regions.name) if name == "relay"}
        self._prepare_output()
        self.progress = Progress(program, self) if progress is None else progress
        self.steps = (self._issue, self._deliver, self._respond, self._done, self.progress.told)

    def _check_layout(self) -> None:
        saved = self.t.saved
        if saved is None:
            return
        mine = np.array([self.layout.key[row] if row != UNBOUND else UNBOUND for row in self.layout.row_at[: self.layout.n_useful]])
        if (mine != saved.key).any():
            raise ConfigError("backward Program: found another row layout than the forward pass left, expected relayout(program, row_slot)")

    def _prepare_output(self) -> None:
        """Set the output of tokens without experts to zero. The run must write all other rows."""
        r, n = self.t.routing, self.t.number
        self.out = n.poison((r.n_tokens, self.t.experts.hidden))
        self.out[(r.slot < 0).all(axis=1)] = 0
        self.gate_grad = np.zeros((r.n_tokens, r.topk), n.work) if self.backward else None
        if self.gate_grad is not None and not n.is_integer:
            self.gate_grad[r.slot >= 0] = np.nan

    def run(self, progress: Callable[[int, int], None] | None) -> Outcome:
        self.progress.start()
        pool, events = self.pool, 0
        while len(pool):
            kind, ident = pool.pop()
            self.steps[kind](ident)
            events += 1
            if progress and not events & 0xFFF:
                progress(self.progress.n_done, self.p.n_ops)
        if self.progress.n_done < self.p.n_ops:
            raise EmulationMismatch(f"watchdog: {self.progress.stuck()}")
        return self.outcome(events)

    def outcome(self, events: int) -> Outcome:
        """The result, after the last step."""
        self._copy_out()
        saved = None if self.backward else self.memory.saved()
        return Outcome(self.out, self.gate_grad, self.record, saved, events, self.messages.injected)

    # ---- possible events (Listener) ----------------------------------------------------------------------------------

    def _add(self, kind: int, ident: int, time: int = 0, tie: int = 0) -> None:
        self.pool.add((kind, ident), (time << 32) + tie)

    def may_issue(self, op: int) -> None:
        self._add(ISSUE, op, 0 if self.trace is None else int(self.trace.issue[op]))

    def may_respond(self, member: int) -> None:
        if self.progress.issued[self.owner[member]]:
            self._add(RESPOND, member, 0 if self.trace is None else int(self.trace.member[member]))

    def tile_notifies(self, tile: int) -> None:
        _, first, end = self.layout.tile(tile)
        told = self.p.regions.row_notify
        for row in self.layout.row_at[first:end]:
            if row != UNBOUND and told[row] >= 0:
                self._add(NOTIFY, int(told[row]))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _issue(self, op: int) -> None:
        if not self.progress.try_issue(op):
            return
        kind = self.kind[op]
        members = range(self.ptr[op], self.ptr[op + 1])
        if self.net[op]:
            for member in members:
                self.messages.send(member, self._queue_pair(member))
        if kind in PULLS:
            self._answers[op] = []
            for member in members:
                if self.progress.responds_freely(member):
                    self.may_respond(member)
        elif kind in PUSHES:
            for member in members:
                self._add(DELIVER, member, *self._delivery(member))
        if kind not in PULLS + PUSHES or not members:
            self._finish_later(op)

    def _queue_pair(self, member: int) -> QueuePair:
        op = self.owner[member]
        return self.net[op], self.node[op], self.member_node[member]

    def _arrives(self, member: int, way: int) -> tuple[bool, bool]:
        """(whether the member's transfer brings something new now, whether its source hears of it).

        `way`: DELIVER or RESPOND. A message that is lost, or whose acknowledgement is lost, goes the same way again,
        in the order of a Trace a round trip later.
        """
        if not self.net[self.owner[member]]:
            return True, True
        arrival = self.messages.arrive(member, self._queue_pair(member))
        if arrival in (Arrival.GONE, Arrival.UNHEARD):
            round_trip = 4 * self.p.nets[self.net[self.owner[member]] - 1].lat
            self._add(way, member, 0 if self.trace is None else int(self.trace.member[member]) + round_trip)
        return arrival in (Arrival.TAKEN, Arrival.UNHEARD), arrival in (Arrival.TAKEN, Arrival.REPEATED)

    def _delivery(self, member: int) -> tuple[int, int]:
        """(time of a delivery, slot of its first row).

        Deliveries of one instant fill a region in the order of slots.
        """
        if self.trace is None:
            return 0, 0
        first = self.fill_ptr[member]
        slot = int(self.trace.row_slot[self.fill_row[first]]) if first < self.fill_ptr[member + 1] else 0
        return int(self.trace.member[member]), slot

    def _finish_later(self, op: int) -> None:
        self._add(DONE, op, 0 if self.trace is None else int(self.trace.done[op]))

    def _deliver(self, member: int) -> None:
        op = self.owner[member]
        new, heard = self._arrives(member, DELIVER)
        if self.kind[op] == Kind.PUSH_REDUCE:
            self._contribute(op, member)
            return
        if new:
            self._take(op, member)
        if heard:
            self._one_less(op)

    def _contribute(self, op: int, member: int) -> None:
        """A contribution is in the switch. The last one of a sum that has a place ends all of them; without a place each ends by itself."""
        rows = self._rows_of.get((self.node[op], self.key[op]), [])
        value = self._hub_sum(self.node[op], rows)
        if self.gate_grad is not None:
            self._return_gate_grads(self.key[op], rows)
        added, mine, is_last = self.sums.add(op, value)
        for row in self.fill_row[self.fill_ptr[member] : self.fill_ptr[member + 1]] if is_last else ():
            self.layout.bind(row)
            if added:
                n = self.t.number
                total = n.store(add_in_order([part for part, _ in mine.values()], self.t.experts.hidden, n))
                self._partial[row] = total, ("switch", tuple(e for _, e in mine.values()))
            else:
                self._passed[row] = list(mine.values())
            self._arrived(row, self.bytes[op])
        for one in (mine if is_last else ()) if added else (op,):
            self.progress.fire(Tail.MEMBER_DELIVERED, self.ptr[one])
            self._one_less(one)

    def _take(self, op: int, member: int) -> None:
        """Write what the op brings to `member`."""
        rows = self.fill_row[self.fill_ptr[member] : self.fill_ptr[member + 1]]
        template = self.p.templates[self.template[op]]
        for row in rows:
            self.layout.bind(row)
        if template.fn == "copy":
            self._copy(op, rows, template.dst.partition(".")[2], relayed=template.src == "relay")
        elif template.fn == "relay":
            self._relays.update(((self.member_node[member], self.key[op]), self.t.tokens[self.key[op]].copy()) for _ in rows)
        elif template.fn == "relay_sum":
            self._push_relayed(op, rows)
        elif template.fn == "sum":
            self._push_sum(op, rows)
        elif template.fn == "row":
            self._push_rows(op, rows, self.member_node[member] if template.dst == "relay.row" else UNBOUND)
        elif template.fn == "relay_row":
            self._forward_rows(op, rows)
        for row in rows:
            self._arrived(row, self.bytes[op])
        self.progress.fire(Tail.MEMBER_DELIVERED, member)

    def _copy(self, op: int, rows: list[int], name: str, *, relayed: bool) -> None:
        """Write the op's part of a token row into the rows that the op fills; the last part brings the gate weights.

        `relayed`: the op reads the row that another transfer has left on its GPU.
        """
        buffer, layout, t = self.memory.rows(name), self.layout, self.t
        is_last = self.offset is None or op + 1 == self.p.n_ops or self.offset[op + 1] == 0
        for row in rows:
            token = self.key[op] if self.key[op] >= 0 else layout.key[row]
            if relayed and (self.node[op], token) not in self._relays:
                raise EmulationMismatch(f"op {op}: found token {token} forwarded by GPU {self.node[op]} before it arrived, expected a wait for it")
            if not relayed and self.key[op] >= 0 and token // self.tokens_per_gpu != self.node[op]:
                raise EmulationMismatch(f"op {op}: found token {token} read on GPU {self.node[op]}, expected GPU {token // self.tokens_per_gpu}")
            if layout.region[row] in self._relay_regions:
                here = layout.node[layout.region[row]]
                self._relays[here, token] = (self._relays[self.node[op], token] if relayed else t.tokens[token]).copy()
                continue
            place = layout.place[row]
            part = self._part(op, row)
            buffer[place, part] = (self._relays[self.node[op], token] if relayed else t.tokens[token])[part]
            if is_last and not self.backward:
                self.memory.weight[place] = t.weight[token, layout.column[row]]

    def _part(self, op: int, row: int) -> slice:
        """The columns of `row` that the op's train carries."""
        offset, row_bytes, hidden = 0 if self.offset is None else self.offset[op], self.row_bytes[row], self.t.experts.hidden
        return slice(offset * hidden // row_bytes, (offset + self.bytes[op]) * hidden // row_bytes)

    def _arrived(self, row: int, n_bytes: int) -> None:
        self.row_missing[row] -= n_bytes
        if self.row_missing[row] < 0:
            raise EmulationMismatch(f"row {row}: found {-self.row_missing[row]} B more than its {self.row_bytes[row]} B, expected every byte once")
        if self.row_missing[row] != 0:
            return
        self.progress.fire(Tail.ROW_COMPLETE, row)
        tile = self.layout.tile_of(row)
        self.tile_missing[tile] -= 1
        if self.tile_missing[tile] == 0:
            self.progress.fire(Tail.TILE_READY, tile)

    def _one_less(self, op: int) -> None:
        self.missing[op] -= 1
        if self.missing[op] == 0:
            self._finish_later(op)

    def _respond(self, member: int) -> None:
        op = self.owner[member]
        new, heard = self._arrives(member, RESPOND)
        if new:
            self._answer(op, member)
        if heard:
            self._one_less(op)

    def _answer(self, op: int, member: int) -> None:
        """Add the answer of `member` to the answers of the op."""
        rows = self.fill_row[self.fill_ptr[member] : self.fill_ptr[member + 1]]
        if self.p.templates[self.template[op]].src == "relay.partial":
            value, expression = self._domain_sum(op, self.member_node[member])
        else:
            value, expression = self._hub_sum(self.member_node[member], rows)
        if self.gate_grad is not None:
            self._return_gate_grads(self.key[op], rows)
        self._answers[op].append((self.member_node[member], value, expression))
        self.progress.fire(Tail.MEMBER_DELIVERED, member)

    def _domain_sum(self, op: int, node: int) -> tuple[Array, Expression]:
        """The sum of a domain that an earlier pull has left on GPU `node` for the token of `op`."""
        if (node, self.key[op]) not in self._domain_sums:
            raise EmulationMismatch(f"op {op}: found no sum of token {self.key[op]} on GPU {node}, expected a wait for the pull that leaves it there")
        return self._domain_sums[node, self.key[op]]

    def _hub_sum(self, node: int, rows: list[int], part: slice = ALL) -> tuple[Array, Expression]:
        """The sum of expert rows in one GPU's memory, in the columns `part`, rounded to the stored dtype, and its expression."""
        t, layout = self.t, self.layout
        buffer = self.memory.rows("dx" if self.backward else "y")
        for row in rows:
            holder, where = layout.node[layout.region[row]], f"row {row} (token {layout.key[row]})"
            if holder != node:
                raise EmulationMismatch(f"{where}: found a read on GPU {node}, expected one on GPU {holder} that holds it")
            if layout.place[row] == UNBOUND:
                raise EmulationMismatch(f"{where}: found a read on GPU {node} before any transfer wrote the row, expected a wait for its arrival")
        value = t.number.store(add_in_order([buffer[layout.place[row], part] for row in rows], len(range(*part.indices(t.experts.hidden))), t.number))
        return value, ("hub", node, tuple(layout.slot_of_region[layout.region[row]] for row in rows))

    def _return_gate_grads(self, token: int, rows: list[int]) -> None:
        assert self.gate_grad is not None
        for row in rows:
            self.gate_grad[token, self.layout.column[row]] = self.memory.gate_grad[self.layout.place[row]]

    def _push_sum(self, op: int, rows: list[int]) -> None:
        """Push one GPU's sum of a token's expert rows into the source's partial row."""
        mine = self._rows_of.get((self.node[op], self.key[op]), [])
        for row in rows:
            part = self._part(op, row)
            value, expression = self._hub_sum(self.node[op], mine, part)
            there, _ = self._partial.setdefault(row, (self.t.number.poison((self.t.experts.hidden,)), expression))
            there[part] = value
        if self.gate_grad is not None:
            self._return_gate_grads(self.key[op], mine)

    def _push_relayed(self, op: int, rows: list[int]) -> None:
        """Push the sum of the partial rows of a token that other GPUs have left on this GPU, rounded to the stored dtype."""
        here, token = self.node[op], self.key[op]
        mine = self._relayed_rows.get((here, token), [])
        if not mine or any(row not in self._partial for row in mine):
            raise EmulationMismatch(f"op {op}: found a sum of token {token} on GPU {here} before its parts arrived, expected a wait for them")
        n = self.t.number
        value = n.store(add_in_order([self._partial[row][0] for row in mine], self.t.experts.hidden, n))
        for row in rows:
            self._partial[row] = value, ("relay", tuple(self._partial[part][1] for part in mine))

    @cached_property
    def _relayed_rows(self) -> dict[tuple[int, int], list[int]]:
        """Partial rows of every (relay, token), in the order of rows."""
        layout, out = self.layout, defaultdict(list)
        for region, name in enumerate(self.p.regions.name):
            if name == "relay.partial":
                for row in range(*layout.row_ptr[region : region + 2]):
                    out[layout.node[region], layout.key[row]].append(row)
        return out

    def _push_rows(self, op: int, rows: list[int], relay: int) -> None:
        """Push each expert row of a token into its own partial row at the source, or into the row of it on GPU `relay`."""
        for row in rows:
            fills = row if relay == UNBOUND else self.layout.key[row]
            mine = [self.layout.pushed(fills, self.key[op])]
            value = self._hub_sum(self.node[op], mine)
            if relay == UNBOUND:
                self._partial[row] = value
            else:
                self._left[relay, fills] = value
            if self.gate_grad is not None:
                self._return_gate_grads(self.key[op], mine)

    def _forward_rows(self, op: int, rows: list[int]) -> None:
        """Push expert rows that other GPUs have left on this GPU into their partial rows at the source."""
        for row in rows:
            if (self.node[op], row) not in self._left:
                raise EmulationMismatch(f"op {op}: found row {row} forwarded by GPU {self.node[op]} before it arrived, expected a wait for it")
            self._partial[row] = self._left[self.node[op], row]

    @cached_property
    def _rows_of(self) -> dict[tuple[int, int], list[int]]:
        """Expert rows of every (GPU, token), by expert slot."""
        layout, out = self.layout, defaultdict(list)
        for row in range(layout.n_useful):
            out[layout.node[layout.region[row]], layout.key[row]].append(row)
        return out

    def _done(self, op: int) -> None:
        kind = self.kind[op]
        template = self.p.templates[self.template[op]]
        if kind == Kind.COMPUTE:
            self.memory.compute(template.fn, self.key[op], self.node[op], template.columns)
        elif kind in PULLS and template.fn == "sum":
            self._finish_pull(op)
        elif kind == Kind.JOIN and template.fn == "sum":
            self._sum_for_free(self.node[op])
        self.progress.finish(op)

    def _finish_pull(self, op: int) -> None:
        """The switch adds the other GPUs' sums in the order of their answers; the source adds its own."""
        answers = self._answers.pop(op)
        far = [(value, e) for node, value, e in answers if node != self.node[op]]
        parts = [(value, e) for node, value, e in answers if node == self.node[op]]
        if far:
            width, n = self.t.experts.hidden, self.t.number
            switch = n.store(add_in_order([value for value, _ in far], width, n))
            parts.insert(0, (switch, ("switch", tuple(e for _, e in far))))
        if self.p.templates[self.template[op]].dst == "relay.partial":
            n = self.t.number
            total = n.store(add_in_order([value for value, _ in parts], self.t.experts.hidden, n))
            self._domain_sums[self.node[op], self.key[op]] = total, ("relay", tuple(e for _, e in parts))
            return
        self._write(self.key[op], parts)

    def _write(self, token: int, parts: list[tuple[Array, Expression]]) -> None:
        n = self.t.number
        self.out[token] = n.store(add_in_order([value for value, _ in parts], self.t.experts.hidden, n))
        self.record.sums[token] = (("source", tuple(e for _, e in parts)),)

    def _sum_for_free(self, node: int) -> None:
        """Combine of a system with free communication: add all expert rows without a transfer."""
        nodes = range(self.p.n_nodes)
        for token in range(node * self.tokens_per_gpu, (node + 1) * self.tokens_per_gpu):
            groups = [(g, self._rows_of.get((g, token), [])) for g in nodes]
            parts = [self._hub_sum(g, rows) for g, rows in groups if rows]
            if parts:
                self._write(token, parts)
            if self.gate_grad is not None:
                for _, rows in groups:
                    self._return_gate_grads(token, rows)

    def _copy_out(self) -> None:
        """Add the partial rows that pushes left at the source, in the order of rows.

        A token has one partial row per GPU or one per expert.
        """
        by_token: dict[int, list[int]] = defaultdict(list)
        for region in self.layout.partial:
            for row in range(self.layout.row_ptr[region], self.layout.row_ptr[region + 1]):
                by_token[self.layout.key[row]].append(row)
        for token, rows in by_token.items():
            if all(self.row_missing[row] == 0 for row in rows):
                self._write(token, [part for row in rows for part in self._passed.get(row) or [self._partial[row]]])
