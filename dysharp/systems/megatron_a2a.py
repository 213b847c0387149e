"""Megatron-Core's alltoall dispatcher: permutation by expert, NCCL all-to-all of one row per (token, expert), grouped GEMMs, the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.program import Discipline, Program, Tail
from dysharp.specs import Cluster, Model
from dysharp.systems.building.experts import one_after_another, rows_phase_by_phase
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): permutations, the exchange of counts, NCCL's start and pace (as rates: its rings and
    channels are not modelled). `compute` = False leaves the GEMMs out: pure communication.
    """

    form: str = "auto"
    compute: bool = True


@system(
    "megatron-a2a",
    source="https://github.com/NVIDIA/Megatron-LM (alltoall dispatcher); spec/baselines.md section 10",
    options=Options,
    traffic="one_copy_per_expert",
    permutes=0,
    fused=False,
    colour="#004D40",
    ships=Ships("Megatron-LM dispatchers: rows in BF16 by NCCL", ("ampere", "hopper", "blackwell"), {"fp8": {}, "bf16": {}}),
    drops="permutations, the exchange of counts, NCCL's start and pace (form real has them); the host's wait for counts, shared experts",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Everything one after the other; an all-to-all sends to all peers in turn, each peer's rows by expert."""
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute)
    there, back = _stream_order(layer, layer.row_source, layer.row_gpu), _stream_order(layer, layer.row_gpu, layer.row_source)
    if is_real(options.form, cluster):
        kernels = _AllToAll(layer)
        kernels.combine(one_after_another(layer, kernels.dispatch(there)), back)
        return layer.build("one_copy_per_expert")
    return rows_phase_by_phase(layer, there, back)


def _stream_order(layer: LayerBuilder, node: I32, to: I32) -> I64:
    """Useful rows as an all-to-all sends them: each GPU's first row for every peer, then the second ones; a peer's rows by expert."""
    n = layer.n_gpus
    stream = node.astype(np.int64) * n + to
    by_stream = np.lexsort((layer.row_token, layer.p.slot, stream))
    length = np.bincount(stream, minlength=n * n)
    place = np.empty(len(stream), np.int64)
    place[by_stream] = np.arange(len(stream)) - np.repeat(np.cumsum(length) - length, length)
    return np.lexsort(((to - node) % n, place, node))


class _AllToAll(SoftwareSteps):
    """Kernels around two all-to-alls: rows are put in order by kernels of their own on both sides."""

    def dispatch(self, order: I64) -> I32:
        """Returns the DELAY of each GPU behind which its rows lie by expert."""
        layer, costs = self.layer, self.costs
        sent, received = self._rows(layer.row_source), self._rows(layer.row_gpu)
        permute = self.delay("permute", self._reorder(np.full(layer.n_gpus, layer.tokens), sent))
        if layer.direction == "fwd":  # a backward pass knows them
            self.each_waits(self.delay("counts", costs.nccl_small_ps + costs.kernel_ps), permute)
        puts = layer.dispatch_rows(Discipline.READY_FIFO, order) + np.arange(len(order))
        self._send("dispatch", permute, puts, layer.row_source[order], layer.row_gpu[order], layer.sent_bytes)
        sort = self.delay("received", self._reorder(received, received))
        self._after(layer.gpu_barrier(Tail.TILE_READY, 0), bool(layer.dispatch_aux), sort)
        return sort

    def combine(self, finished: I32, order: I64) -> None:
        """`finished[gpu]`: the GEMMs of a GPU."""
        layer = self.layer
        sent, received = self._rows(layer.row_gpu), self._rows(layer.row_source)
        unsort = self.delay("unsort", self._reorder(sent, sent))
        self.each_waits(finished, unsort)
        puts = layer.combine_rows(Discipline.READY_FIFO, order) + np.arange(len(order))
        self._send("combine", unsort, puts, layer.row_gpu[order], layer.row_source[order], layer.model.row_bytes)
        unpermute = self.delay("unpermute", self._reorder(np.full(layer.n_gpus, layer.tokens), received))
        arrived = self.join("returned")
        self.each_waits(finished, arrived)
        self.arrived(arrived)
        self._after(arrived, bool(layer.combine_aux), unpermute)

    def _after(self, arrived: I32, gates: bool, heads: I32) -> None:
        """`heads` behind the rows, and behind the all-to-all of the gate weights (or their gradients) that follows them."""
        if gates:
            second = self.delay("gates", self.costs.nccl_start_ps)
            self.all_wait(arrived, second)
            arrived = second
        self.each_waits(arrived, heads)

    def _rows(self, node: I32) -> I64:
        return np.bincount(node, minlength=self.layer.n_gpus)

    def _reorder(self, tokens: I64, rows: I64) -> list[int]:
        layer = self.layer
        element = layer.model.row_bytes / layer.model.hidden
        pairs = zip(tokens.tolist(), rows.tolist(), strict=True)
        return [self.costs.reorder_ps(t, r, layer.model.hidden, element) for t, r in pairs]

    def _send(self, name: str, after: I32, puts: I64, node: I32, to: I32, n_bytes: int) -> None:
        """An NCCL all-to-all when all GPUs are there: start and handshakes, the own chunk, rows at the pace of plain stores."""
        costs = self.costs
        own = costs.value("nccl.self_copy") * costs.stores_ps(n_bytes) * np.bincount(node[node == to], minlength=self.layer.n_gpus)
        start = self.delay(f"{name}.nccl", costs.nccl_start_ps + own.round().astype(np.int64))
        self.all_wait(after, start)
        sends = self.paced(name, puts, node, to, costs.stores_ps(n_bytes), Discipline.PROGRAM_ORDER)
        self.release(start, sends, node)
