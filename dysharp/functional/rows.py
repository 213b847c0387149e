"""The row path: runs a Program on real tensors, one row per transfer. It is fast and has no packets and no tables."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from dysharp.base import Array, ConfigError, OnProgress, frozen
from dysharp.functional.faults import Faults
from dysharp.functional.layer import UNBOUND, RunRecord, SavedRows, Tensors
from dysharp.functional.op_events import COMPLETIONS, DELIVER, DELIVERIES, NOTIFY, RESPOND
from dysharp.functional.orders import Pool, make_pool
from dysharp.functional.progress import Progress
from dysharp.functional.queue_pairs import Arrival, Messages, QueuePair
from dysharp.functional.row_values import RowValues
from dysharp.functional.sums import Sums
from dysharp.program import PULLS, Kind, Program, Tail, Trace


@frozen
class Outcome:
    """Result of one pass.

    `out`: `[tokens, hidden]` in the stored dtype, y or dx. `gate_grad`: `[tokens, topk]`, backward pass only. `events`:
    number of steps. `injected`: faults of messages between domains that happened, by kind.
    """

    out: Array
    gate_grad: Array | None
    record: RunRecord
    saved: SavedRows | None
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
    progress: OnProgress | None = None,
) -> Outcome:
    """Interpret `program` on `tensors`. `order`: one of `orders.ORDERS`; "trace" needs the Trace of `program`.

    `faults`: faults of messages between domains happen; faults of packets have no meaning here.

    `progress(done, total)` is called from time to time. Raises EmulationMismatch when no event is possible and ops are
    left (the watchdog), ConfigError for parts of a Program that the machine does not interpret.
    """
    if program.sections:
        raise ConfigError("run_rows: found a merge of Programs, expected one Program (merged.run_merged takes the tensors of every part)")
    machine = RowMachine(program, tensors, make_pool(order, seed, trace, DELIVERIES, COMPLETIONS), trace, Messages(faults or Faults()))
    return machine.run(progress)


class RowMachine(RowValues):
    """The row path on one Program. `progress`: of the merge that it is a part of, by the ids of the part; default: of its own."""

    def __init__(
        self, program: Program, tensors: Tensors, pool: Pool, trace: Trace | None, messages: Messages, progress: Progress | None = None
    ) -> None:
        super().__init__(program, tensors, pool, trace, progress)
        self.messages, self.net, self.sums = messages, program.op_net().tolist(), Sums(program)
        self._gated: dict[int, list[int]] = defaultdict(list)  # by gate: copies that wait in the switch

    def run(self, progress: OnProgress | None) -> Outcome:
        return self.outcome(self.run_events(progress))

    def outcome(self, events: int) -> Outcome:
        """The result, after the last step."""
        self._copy_out()
        saved = None if self.backward else self.memory.saved()
        return Outcome(self.out, self.gate_grad, self.record, saved, events, self.messages.injected)

    def tile_notifies(self, tile: int) -> None:
        _, first, end = self.layout.tile(tile)
        told = self.p.regions.row_notify
        for row in self.layout.row_at[first:end]:
            if row != UNBOUND and told[row] >= 0:
                self.pool.add((NOTIFY, int(told[row])))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _begin(self, op: int, members: range) -> None:
        for member in members if self.net[op] else ():
            self.messages.send(member, self._queue_pair(member))
        if self.kind[op] in PULLS:
            self._answers[op] = []

    def _leave(self, op: int, member: int) -> None:
        gate = self.sums.gate(op, self.member_node[member])
        if gate < 0 or self.sums.is_open(gate):
            self._deliver_later(member)
        else:
            self._gated[gate].append(member)

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
            self._add(way, member, "member", late=4 * self.p.nets[self.net[self.owner[member]] - 1].lat)
        return arrival in (Arrival.TAKEN, Arrival.UNHEARD), arrival in (Arrival.TAKEN, Arrival.REPEATED)

    def _deliver_later(self, member: int) -> None:
        """Deliveries of one instant fill a region in the order of slots."""
        rows = self.fills(member)
        self._add(DELIVER, member, "member", tie=int(self.trace.row_slot[rows[0]]) if self.trace is not None and rows else 0)

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
        """A contribution is in the switch. The last contribution of a sum with a place ends all of them; without a place each ends by itself."""
        words = self._template(op).fn == "control"  # READY: it brings no rows
        rows = [] if words else self._rows_of.get((self.node[op], self.key[op]), [])
        value = self._hub_sum(self.node[op], rows)
        self._return_gate_grads(self.key[op], rows)
        added, mine, is_last = self.sums.add(op, value)
        for gate in [gate for gate in self._gated if self.sums.is_open(gate)]:
            for copy in self._gated.pop(gate):
                self._deliver_later(copy)
        for row in self.fills(member) if is_last else ():
            self.layout.bind(row)
            if words:
                pass
            elif added:
                self._partial[row] = self._sum("switch", list(mine.values()))
            else:
                self._passed[row] = list(mine.values())
            self._arrived(row, self.bytes[op])
        for one in (mine if is_last else ()) if added else (op,):
            self.progress.fire(Tail.MEMBER_DELIVERED, self.ptr[one])
            self._one_less(one)

    def _take(self, op: int, member: int) -> None:
        """Write what the op brings to `member`."""
        rows, template = self.fills(member), self._template(op)
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

    def _respond(self, member: int) -> None:
        op = self.owner[member]
        new, heard = self._arrives(member, RESPOND)
        if new:
            self._answer(op, member)
        if heard:
            self._one_less(op)

    def _answer(self, op: int, member: int) -> None:
        """Add the answer of `member` to the answers of the op."""
        if self._template(op).src == "relay.partial":
            answer = self._domain_sum(op, self.member_node[member])
        else:
            far = self.member_node[member] != self.node[op]
            answer = self._hub_sum(self.member_node[member], self.fills(member), word=self._framing(op).answer.word if far else "")
        self._return_gate_grads(self.key[op], self.fills(member))
        self._answers[op].append((self.member_node[member], answer))
        self.progress.fire(Tail.MEMBER_DELIVERED, member)

    def _done(self, op: int) -> None:
        kind, template = self.kind[op], self._template(op)
        if kind == Kind.COMPUTE:
            self.memory.compute(template.fn, self.key[op], self.node[op], template.columns)
        elif kind in PULLS and template.fn == "sum":
            self._finish_pull(op)
        elif kind == Kind.JOIN and template.fn == "sum":
            self._sum_for_free(self.node[op])
        super()._done(op)
