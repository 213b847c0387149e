"""`CombineBlocks`: the ways in which results come back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dysharp.program import I32, I64, Discipline, Framing, Ints, Kind, Template, To
from dysharp.systems.building.base import DYMULTIMEM, STORE, LayerBase, flat_ones, turns_by
from dysharp.systems.building.batch import Returns, Transfers
from dysharp.systems.building.windows import sessions_that_fit


class CombineBlocks(LayerBase):
    """Blocks that push or pull the results of a pass back to the sources of the tokens, which sum them."""

    def combine_puts(self, order: Discipline | I32) -> Returns:
        """Push the sum over a GPU's experts back to the source of the token. One op per pair, in `p.push_order`.

        `order`: the discipline of the issuers, or issuers of `turn`.
        """
        turns = order if isinstance(order, np.ndarray) else None
        issuer = order if isinstance(order, np.ndarray) else self.per_gpu(order, "combine")
        columns = self.p.token, self.p.gpu, self.p.source
        prio = self.turn(self.p.gpu, self.p.source, turns)
        into = self.partial_rows(columns)
        return self._push_back("combine.put", "sum", issuer, self.p.push_order, columns, self.p.rows, into, prio)

    def combine_pair_chunks(self, orders: Sequence[I64]) -> list[Returns]:
        """As `combine_puts`, in chunks that may wait for each other: a batch with issuers of its own for each of `orders` (together all pairs)."""
        columns = self.p.token, self.p.gpu, self.p.source
        into = self.partial_rows(columns)
        issuers = (self.issuers("combine") for _ in orders)
        return [
            self._push_back("combine.put", "sum", issuer, order, columns, self.p.rows, into) for issuer, order in zip(issuers, orders, strict=True)
        ]

    def combine_rows(self, discipline: Discipline, order: I64 | None = None, *, framing: Framing = STORE) -> Returns:
        """Push every expert's row back to the source of the token, which sums the rows.

        `order`: the useful rows in the order of sending (default: `p.row_push_order`).
        """
        return self.combine_row_chunks(discipline, [self.p.row_push_order if order is None else order], framing=framing)[0]

    def combine_row_chunks(self, discipline: Discipline, orders: Sequence[I64], *, framing: Framing = STORE) -> list[Returns]:
        """As `combine_rows`, in chunks that may wait for each other: a batch with issuers of its own for each of `orders`.

        `orders`: together all useful rows. `of_useful_row` is for a single chunk only.
        """
        columns = self.p.row_token, self.p.row_gpu, self.p.row_source
        into = self.partial_rows(columns)
        batches = []
        for order in orders:
            issuer, prio, rows = self.per_gpu(discipline, "combine"), turns_by(discipline, order), flat_ones(len(order))
            batches.append(self._push_back("combine.row", "row", issuer, order, columns, rows, into, prio, framing=framing))
        return batches

    def partial_rows(self, columns: tuple[I32, I32, I32]) -> tuple[I32, I32]:
        """Add the regions "partial", with a row per entry of `columns`. Returns (row of each, `Returns.tile`)."""
        return self.gathering_rows("partial", columns[2], self.back_bytes, columns[0])

    def _push_back(
        self,
        name: str,
        fn: str,
        issuer: I32,
        order: I64,
        columns: tuple[I32, I32, I32],
        unit_rows: Ints,
        into: tuple[I32, I32],
        prio: I32 | int = 0,
        framing: Framing = STORE,
    ) -> Returns:
        """PUTs in `order` of (token, from GPU, to GPU) `columns`, each into its own row of the regions "partial".

        `issuer`: `[gpus]`. `into`: of `partial_rows`. `prio`: one per column entry, or one for all entries.
        """
        template = self.transfer(name, Kind.PUT, "combine", fn, self.result, "partial", framing=framing)
        token, node, home = columns
        own: dict[str, Any] = {"issuer": issuer[node[order]], "key": token[order], "prio": prio if np.ndim(prio) == 0 else np.asarray(prio)[order]}
        op = self.puts(template, node[order], home[order], into[0][order], **self.result_columns, **own)
        self.returned.append(batch := Returns(op=op, node=node[order], to=home[order], unit=order, unit_rows=unit_rows, tile=into[1]))
        return batch

    def combine_pulls(self, discipline: Discipline, window: int, framing: Framing = DYMULTIMEM, *, every_gpu: bool = False) -> Transfers:
        """The source of each token in `sent` pulls the sum over the token's GPUs through the switch.

        `window`: most tokens in flight per source. `every_gpu`: every token is pulled, from all GPUs.
        """
        ends, table = (self.result, self.summed_buffer), self._al_table(framing)
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

    def combine_free(self, results: I32) -> None:
        """Sums without cost: one JOIN per GPU, which waits for the ops `results[tile]` of all tiles on all GPUs."""
        own = self.join_tiles(results)
        template = Template("combine.free", Kind.JOIN, "combine", "sum", src=self.result, dst=self.summed_buffer)
        self.wait_all(self.add(template, self.gpus), own)
