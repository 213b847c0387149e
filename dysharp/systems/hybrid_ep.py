"""Hybrid-EP inside one NVLink domain: one copy per GPU by TMA from few SMs, which take turns at chunks of tokens; Combine reads and sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError
from dysharp.program import Discipline, Head, Program, Tail
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.experts import one_after_another, phase_by_phase
from dysharp.systems.building.formats import row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.deepep import ROWS
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
CHUNK_TOKENS = 64  # neighbouring tokens that one SM takes at a time: spec/baselines.md section 3
IN_FLIGHT = {"store": 8, "read": 10}  # rows of an SM on their way, held in its shared memory: the library's defaults (csrc/hybrid_ep, configuration)
PROB_BYTES = 4  # a copy carries one FP32 probability for every expert of the domain (docs/Hybrid-EP_Implementation.md, buffers)


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): the exchange of routing maps and its scan, SMs with their chunks, the pace of their stores,
    barriers, and copies between the exchange buffer and the experts.

    `n_sm`: SMs of those kernels; `dispatch`: "rows" sends the model's rows, "fp8" a byte per element and an FP32 scale per 128 of them.
    `permute`: rows are put in expert order on their way out of the buffer (and back), else copied as they lie. `compute` = False leaves the
    GEMMs out: pure communication.
    """

    form: str = "auto"
    n_sm: int = choice_int("hybrid_ep.n_sm")
    dispatch: str = "rows"
    permute: bool = True
    compute: bool = True


@system(
    "hybrid-ep",
    source="https://github.com/deepseek-ai/DeepEP (branch hybrid-ep, inside one NVLink domain); spec/baselines.md section 3",
    options=Options,
    traffic="one_copy_per_gpu",
    permutes=0,
    fused=False,
    row_formats=ROWS,
    colour="#DDCC77",
    ships=Ships(
        "spec/baselines.md section 3: Hopper and Blackwell, Combine in BF16; hidden sizes: unknown, compiled when first used",
        ("hopper", "blackwell"),
        {"fp8": {"dispatch": "fp8"}, "bf16": {"dispatch": "rows"}},
    ),
    drops="SMs and their chunks, launches, barriers, routing maps, copies around the buffer (form real has them); Combine pushes, the kernel "
    "reads (the same bytes the same way)",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dispatch, GEMMs, Combine."""
    sent = row_bytes("hybrid-ep.dispatch", options.dispatch, ROWS, model)
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent)
    if is_real(options.form, cluster):
        kernels = _Chunks(layer, options.n_sm, permute=options.permute)
        kernels.combine(one_after_another(layer, kernels.dispatch()))
        return layer.build("one_copy_per_gpu")
    return phase_by_phase(layer)


class _Chunks(SoftwareSteps):
    """Persistent kernels on `n_sm` SMs of every GPU. Warps of an SM have roles that work side by side: load, store, sum."""

    def __init__(self, layer: LayerBuilder, n_sm: int, *, permute: bool) -> None:
        most = layer.cluster.n_sms
        if not 1 <= n_sm <= most:
            raise ConfigError(f"hybrid-ep.n_sm: found {n_sm}, expected 1 to {most} SMs")
        super().__init__(layer)
        self.n, self.permute = n_sm, permute
        self.received_copies = np.bincount(layer.p.gpu, minlength=layer.n_gpus)
        self.received_rows = np.bincount(layer.row_gpu, minlength=layer.n_gpus)

    def _sm(self, token: I64 | I32) -> I64:
        """The SM of a token at its source: chunk i goes to SM i modulo `n_sm`."""
        return token.astype(np.int64) % self.layer.tokens // CHUNK_TOKENS % self.n

    def _probabilities(self, aux_bytes: int) -> int:
        """Bytes beside a copy: those of every expert of the domain where the pass moves gate weights or their gradients, else none."""
        return PROB_BYTES * self.layer.routing.placement.n_slots if aux_bytes else 0

    def _in_flight(self, role: str) -> I32:
        """`[gpus, n_sm]` semaphores: rows that an SM's `role` has under way."""
        b = self.layer.b
        slots = [[b.semaphore(g, IN_FLIGHT[role], role, "rows") for _ in range(self.n)] for g in range(self.layer.n_gpus)]
        return np.array(slots, np.int32)

    def _around(self, name: str, row_bytes: int) -> I32:
        """The kernel between the buffer and the experts' rows. Returns a DELAY per GPU."""
        layer, costs = self.layer, self.costs
        pairs = zip(self.received_copies.tolist(), self.received_rows.tolist(), strict=True)
        if self.permute:
            element = row_bytes / layer.model.hidden
            return self.delay(name, [costs.reorder_ps(copies, rows, layer.model.hidden, element) for copies, rows in pairs])
        return self.delay(name, [costs.memory_ps(2 * copies * row_bytes) for copies, _ in pairs])

    def _maps(self, start: I32) -> None:
        """The routing maps of all GPUs (a byte per token and expert) by NCCL, and the kernel that scans them into places, before `start`."""
        layer, costs = self.layer, self.costs
        n_bytes = layer.routing.n_tokens * layer.routing.placement.n_slots
        scan = self.delay("scan", costs.memory_ps(n_bytes))
        self.all_wait(self.delay("maps", costs.collective_ps("all_gather", layer.n_gpus, n_bytes)), scan)
        self.each_waits(scan, start)

    def dispatch(self) -> I32:
        """Returns the DELAY of each GPU behind which its rows lie where its experts read them.

        On its SM a token is looked up and loaded once, then stored copy by copy; all stores of a GPU share its link. A row that waits for
        the link keeps its place in the SM's shared memory.
        """
        layer, costs, p, source = self.layer, self.costs, self.layer.p, self.layer.pair_source
        start = self.delay("dispatch.launch", costs.kernel_ps)
        if layer.direction == "fwd":  # a backward pass knows them
            self._maps(start)
        n_bytes = layer.sent_bytes + self._probabilities(layer.dispatch_aux)
        loader = self.issuers("load", Discipline.PROGRAM_ORDER, self.n)[layer.sent_source, self._sm(layer.sent)]
        loads = self.copies("dispatch", [0, costs.ps("deepep.token_us")], layer.sent_source, loader, 1)
        self.starts(start, loads, loader, layer.sent_source)
        order = np.lexsort(((p.gpu - source) % layer.n_gpus, p.token))  # the peers in turn, from the own GPU on
        copy = costs.copy_ps("sm.copy_GBps", n_bytes)  # a bulk store by one thread: what DeepEP's warps do per copy is not paid
        at = source[order], self._sm(p.token[order])
        storer = self.issuers("store", Discipline.PROGRAM_ORDER, self.n)[at]
        stores = self.copies("dispatch", [0, copy], source[order], storer, 1)
        layer.b.edges(Tail.OP_DONE, loads[layer.sent_of_pair[order]], Head.OP_ISSUE, stores)
        puts = layer.dispatch_puts(Discipline.READY_FIFO) + np.arange(len(order))
        paced = self.paced("dispatch", puts, source, p.gpu, costs.stores_ps(n_bytes))
        layer.b.edges(Tail.OP_DONE, stores, Head.OP_ISSUE, paced[order])
        layer.b.hold(self._in_flight("store")[at], stores, paced[order])
        around = self._around("permute", layer.sent_bytes)
        self.each_waits(self.behind("dispatch", "received", start, puts, source), around)
        return around

    def combine(self, finished: I32) -> None:
        """`finished[gpu]`: the GEMMs of a GPU. Behind a barrier SMs read the copies of their tokens, one after the other, and sum them.

        A row that is asked for has its place in the SM's shared memory; the peers answer through their links. The way of a request is that of
        the acknowledgement which a push waits for.
        """
        layer, costs, order = self.layer, self.costs, self.layer.push_order
        start = self.delay("combine.launch", costs.kernel_ps)
        around = self._around("unpermute", layer.model.row_bytes)
        self.each_waits(finished, around)
        self.each_waits(around, start)
        ready = self.barrier("combine", "ready", start, 0)
        token, node, home = layer.p.token[order], layer.p.gpu[order], layer.pair_source[order]
        puts = layer.combine_puts(Discipline.READY_FIFO) + np.arange(len(order))
        pace = costs.stores_ps(layer.model.row_bytes + self._probabilities(layer.combine_aux))
        paced = self.paced("combine", puts, node, home, pace)
        ask = np.argsort(token, kind="stable")
        at = home[ask], self._sm(token[ask])
        reader = self.issuers("read", Discipline.PROGRAM_ORDER, self.n)[at]
        copy = costs.copy_ps("sm.copy_GBps", layer.model.row_bytes)
        reads = self.copies("combine", [0, copy], home[ask], reader, 1)
        self.starts(ready, reads, reader, home[ask])
        layer.b.edges(Tail.OP_DONE, reads, Head.OP_ISSUE, paced[ask])
        layer.b.hold(self._in_flight("read")[at], reads, puts[ask])
        adder = self.issuers("sum", Discipline.READY_FIFO, self.n)[layer.sent_source, self._sm(layer.sent)]
        sums = self.copies("combine", [0, costs.ps("deepep.reduce_token_us")], layer.sent_source, adder, 1)
        layer.b.edges(Tail.OP_DONE, puts, Head.OP_ISSUE, sums[layer.sent_of_pair[order]])
