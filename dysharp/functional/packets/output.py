"""The results of a pass at the tokens' source GPUs: outputs with their history, and gate gradients."""

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from dysharp.base.arrays import Array
from dysharp.functional.layer import ExpertMemory
from dysharp.functional.network.hub_tables import Place
from dysharp.functional.network.messages import Value
from dysharp.functional.packets.hub import Hub
from dysharp.functional.packets.instructions import Instruction
from dysharp.functional.sums import Expression


class Output:
    """Results of a pass.

    `out`: `[tokens, hidden]` in the stored dtype, poison in unwritten rows. `gate_grad`: `[tokens, topk]` in the work dtype, backward pass only.
    """

    def __init__(self, memory: ExpertMemory, hubs: Sequence[Hub]) -> None:
        self._t, self._layout, self._record, self._hubs = memory.t, memory.layout, memory.record, hubs
        r, n = self._t.routing, self._t.number
        self.out = n.poison((r.n_tokens, self._t.experts.hidden))
        self.out[(r.slot < 0).all(axis=1)] = 0
        self.gate_grad: Array = np.zeros((r.n_tokens if self._t.saved is not None else 0, r.topk), n.work)
        self._history: dict[int, dict[int, Expression]] = defaultdict(dict)  # by token, by chunk
        self._partial: dict[int, dict[int, Value]] = defaultdict(dict)  # by row, by chunk
        self._pulled: dict[int, dict[int, dict[int, Value]]] = defaultdict(dict)  # by token, by op, by chunk: sums over a part of its GPUs

    def pulled(self, one: Instruction, value: Value) -> None:
        """Store the result of a complete pull: the rounded sum, and gate gradients in their columns."""
        if not one.weights and one.template.dst == "partial":
            stored = Value(self._t.number.load(self._t.number.store(value.array)), (("source", value.parts),))
            self._pulled[one.token].setdefault(one.op, {})[one.chunk] = stored
        elif not one.weights:
            self._store(one.token, one.chunk, one.columns, value)
        elif one.dynamic:
            columns = [self._layout.column_of[one.token, slot] for slot in one.targets]
            self.gate_grad[one.token, columns] = value.array[: len(columns)]
        else:
            for gpu in set(one.far):
                columns = self._hubs[gpu].columns(one.token, self._hubs[gpu].places(one.token))
                self.gate_grad[one.token, columns] = value.array[columns]

    def own_gate_grads(self, token: int, gpu: int, places: list[Place]) -> None:
        """Store gate gradients of a token's rows on its source GPU `gpu`, without a transfer."""
        hub = self._hubs[gpu]
        self.gate_grad[token, hub.columns(token, places)] = [hub.memory.gate_grad[place] for _, place in places]

    def pushed(self, one: Instruction, token: int, row: int, places: list[Place], values: Array) -> None:
        """Write a push into partial row `row`. `places`: the rows on the sending GPU that the push adds."""
        hub = self._hubs[one.source]
        if one.weights:
            columns = hub.columns(token, places)
            self.gate_grad[token, columns] = values[columns]
        else:
            self._partial[row][one.chunk] = Value(values, (("hub", one.source, hub.slots(places)),))

    def _store(self, token: int, chunk: int, columns: slice, value: Value) -> None:
        self.out[token, columns] = self._t.number.store(value.array)
        self._history[token][chunk] = ("source", value.parts)

    def add_partial_rows(self, row_missing: Sequence[int]) -> None:
        """Add the partial rows that pushes have brought, in the order of rows: one per GPU or one per expert of a token."""
        partial = self._layout.rows_of_token(self._layout.partial)
        for token in partial | self._pulled:
            rows, pulled = partial.get(token, ()), self._pulled[token]
            if any(row_missing[row] for row in rows):
                continue
            parts = [*(self._partial[row] for row in rows), *(pulled[op] for op in sorted(pulled))]
            for chunk in parts[0]:
                total = reduce(add, (part[chunk] for part in parts))
                begin = chunk * self._record.chunk
                self._store(token, chunk, slice(begin, begin + len(total.array)), total)

    def sum_for_free(self, node: int) -> None:
        """Combine of a system with free communication, for all tokens of GPU `node`."""
        r, hidden, width = self._t.routing, self._t.experts.hidden, self._record.chunk
        for token in range(node * r.tokens_per_gpu, (node + 1) * r.tokens_per_gpu):
            groups = [(hub, places) for hub in self._hubs if (places := hub.places(token))]
            if not groups:
                continue
            for chunk, begin in enumerate(range(0, hidden, width)):
                columns = slice(begin, min(begin + width, hidden))
                self._store(token, chunk, columns, reduce(add, (hub.results(places, columns) for hub, places in groups)))
            if self._t.saved is not None:
                for hub, places in groups:
                    self.own_gate_grads(token, hub.gpu, places)

    def record_history(self) -> None:
        """Write the expression of every token's sum into the record."""
        for token, chunks in self._history.items():
            self._record.sums[token] = tuple(chunks[c] for c in sorted(chunks))
