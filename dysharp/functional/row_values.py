"""What the ops of the row path bring: copies of token rows, sums of expert rows, rows that wait on a GPU that forwards them."""

from collections import defaultdict
from functools import cached_property

import numpy as np

from dysharp.base import Array, ConfigError, EmulationMismatch
from dysharp.functional.layer import UNBOUND, ExpertMemory, Layout, RunRecord, Tensors
from dysharp.functional.op_events import OpEvents
from dysharp.functional.orders import Pool
from dysharp.functional.progress import Progress
from dysharp.functional.sums import Term, add_in_order
from dysharp.functional.wire import rounded
from dysharp.program import Framing, Program, Trace

ALL = slice(None)


class RowValues(OpEvents):
    """The tensors of one Program, in the memories of its GPUs and in the output. `rows.RowMachine` says when an op reads and writes."""

    tie_bits = 32

    def __init__(self, program: Program, tensors: Tensors, pool: Pool, trace: Trace | None, progress: Progress | None) -> None:
        super().__init__(program, pool, trace, progress)
        self.t, self.record = tensors, RunRecord()
        self.layout = Layout(program, tensors.routing)
        self.memory = ExpertMemory(tensors, self.layout, self.record)
        self.backward = tensors.saved is not None
        self._check_layout()
        self.offset = None if program.ops.offset is None else program.ops.offset.tolist()
        self.tokens_per_gpu = tensors.routing.tokens_per_gpu
        self._answers: dict[int, list[tuple[int, Term]]] = {}
        self._partial: dict[int, Term] = {}
        self._pulled: dict[int, list[tuple[int, Term]]] = defaultdict(list)  # by token: sums over a part of its GPUs
        self._passed: dict[int, list[Term]] = {}  # by partial row: the contributions of a sum that passed the switch
        self._domain_sums: dict[tuple[int, int], Term] = {}  # by (GPU that adds its domain, token)
        self._relays: dict[tuple[int, int], Array] = {}  # by (GPU, token): rows that wait to be forwarded
        self._left: dict[tuple[int, int], Term] = {}  # by (GPU, partial row that it will fill): results that wait
        self._relay_regions = {region for region, name in enumerate(program.regions.name) if name == "relay"}
        self._prepare_output()

    def tile_of(self, row: int) -> int:
        return self.layout.tile_of(row)

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
            source = self._relays[self.node[op], token] if relayed else t.tokens[token]
            if layout.region[row] in self._relay_regions:
                self._relays[layout.node[layout.region[row]], token] = source.copy()
                continue
            place = layout.place[row]
            part = self._part(op, row)
            buffer[place, part] = source[part]
            if is_last and not self.backward:
                self.memory.weight[place] = t.weight[token, layout.column[row]]

    def _part(self, op: int, row: int) -> slice:
        """The columns of `row` that the op's train carries."""
        offset, row_bytes, hidden = 0 if self.offset is None else self.offset[op], self.row_bytes[row], self.t.experts.hidden
        return slice(offset * hidden // row_bytes, (offset + self.bytes[op]) * hidden // row_bytes)

    def _domain_sum(self, op: int, node: int) -> Term:
        """The sum of a domain that an earlier pull has left on GPU `node` for the token of `op`."""
        if (node, self.key[op]) not in self._domain_sums:
            raise EmulationMismatch(f"op {op}: found no sum of token {self.key[op]} on GPU {node}, expected a wait for the pull that leaves it there")
        return self._domain_sums[node, self.key[op]]

    def _hub_sum(self, node: int, rows: list[int], part: slice = ALL, word: str = "") -> Term:
        """The sum of expert rows in one GPU's memory, in the columns `part`, `rounded` in the format `word`, and its expression."""
        t, layout = self.t, self.layout
        buffer = self.memory.rows("dx" if self.backward else "y")
        for row in rows:
            holder, where = layout.node[layout.region[row]], f"row {row} (token {layout.key[row]})"
            if holder != node:
                raise EmulationMismatch(f"{where}: found a read on GPU {node}, expected one on GPU {holder} that holds it")
            if layout.place[row] == UNBOUND:
                raise EmulationMismatch(f"{where}: found a read on GPU {node} before any transfer wrote the row, expected a wait for its arrival")
        total = add_in_order([buffer[layout.place[row], part] for row in rows], len(range(*part.indices(t.experts.hidden))), t.number)
        slots = tuple(layout.slot_of_region[layout.region[row]] for row in rows)
        return rounded(t.number, word, total), ("hub", node, slots, word)[: 4 if word else 3]

    def _return_gate_grads(self, token: int, rows: list[int]) -> None:
        if self.gate_grad is None:
            return
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
        self._return_gate_grads(self.key[op], mine)

    def _push_relayed(self, op: int, rows: list[int]) -> None:
        """Push the sum of the partial rows of a token that other GPUs have left on this GPU, rounded to the stored dtype."""
        here, token = self.node[op], self.key[op]
        mine = self._relayed_rows.get((here, token), [])
        if not mine or any(row not in self._partial for row in mine):
            raise EmulationMismatch(f"op {op}: found a sum of token {token} on GPU {here} before its parts arrived, expected a wait for them")
        value = self._sum("relay", [self._partial[row] for row in mine])
        self._partial.update((row, value) for row in rows)

    def _framing(self, op: int) -> Framing:
        return self.p.framings[self._template(op).framing]

    def _sum(self, where: str, parts: list[Term], word: str = "") -> Term:
        """The sum of `parts` in their order, `rounded` in the format `word`, and its expression."""
        total = add_in_order([value for value, _ in parts], self.t.experts.hidden, self.t.number)
        return rounded(self.t.number, word, total), (where, tuple(e for _, e in parts), word)[: 3 if word else 2]

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

    def _finish_pull(self, op: int) -> None:
        """The switch adds the other GPUs' sums in the order of their answers; the source adds its own."""
        answers = self._answers.pop(op)
        far = [answer for node, answer in answers if node != self.node[op]]
        parts = [answer for node, answer in answers if node == self.node[op]]
        if far:
            parts.insert(0, self._sum("switch", far, self._framing(op).total.word))
        dst = self._template(op).dst
        if dst == "relay.partial":
            self._domain_sums[self.node[op], self.key[op]] = self._sum("relay", parts)
        elif dst == "partial":
            self._pulled[self.key[op]].append((op, self._sum("source", parts)))
        else:
            self._write(self.key[op], parts)

    def _write(self, token: int, parts: list[Term]) -> None:
        self.out[token], added = self._sum("source", parts)
        self.record.sums[token] = (added,)

    def _sum_for_free(self, node: int) -> None:
        """Combine of a system with free communication: add all expert rows without a transfer."""
        nodes = range(self.p.n_nodes)
        for token in range(node * self.tokens_per_gpu, (node + 1) * self.tokens_per_gpu):
            groups = [(g, self._rows_of.get((g, token), [])) for g in nodes]
            parts = [self._hub_sum(g, rows) for g, rows in groups if rows]
            if parts:
                self._write(token, parts)
            for _, rows in groups:
                self._return_gate_grads(token, rows)

    def _copy_out(self) -> None:
        """Add the partial rows that pushes left at the source, in the order of rows.

        A token has one partial row per GPU or one per expert. Sums that were pulled over a part of its GPUs stand in the order of their ops.
        """
        partial = self.layout.rows_of_token(self.layout.partial)
        for token in partial | self._pulled:
            rows = partial.get(token, ())
            if all(self.row_missing[row] == 0 for row in rows):
                pushed = [part for row in rows for part in self._passed.get(row) or [self._partial[row]]]
                self._write(token, pushed + [value for _, value in sorted(self._pulled[token], key=lambda pull: pull[0])])
