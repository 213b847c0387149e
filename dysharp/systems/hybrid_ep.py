"""Hybrid-EP: one copy per GPU by TMA from few SMs; Combine reads and sums.

The SMs take turns at chunks of tokens. Over several NVLink domains: `building.between.deepep_internode`.
"""

import numpy as np

from dysharp.base import ConfigError
from dysharp.program import I32, I64, Discipline, frozen
from dysharp.specs import choice_int
from dysharp.systems import BOTH_FORMS, BY_TYPE, HOPPER_ON, Costs, Facts, Form, Moves, Reach, Ships, Shown, kernels
from dysharp.systems.building import ROWS_OR_FP8, Batch, HybridInternode, Kernels
from dysharp.systems.building.between.deepep_internode import CHUNK_TOKENS

IN_FLIGHT = {"store": 8, "read": 10}
"""Rows in flight that an SM holds in its shared memory: defaults of DeepEP, branch hybrid-ep (csrc/hybrid_ep)."""
PROB_BYTES = 4
"""An FP32 probability. A copy has one per expert of the domain.

Source: DeepEP, branch hybrid-ep, docs/Hybrid-EP_Implementation.md, buffers.
"""


@frozen
class Options(Form):
    """Options of Hybrid-EP.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `n_sm` | SMs of the communication kernels; real form only |
    | `chunk` | neighbouring tokens that one SM takes at a time; real form only |
    | `permute` | the buffer kernels sort rows by expert and back; False: they keep the order. Real form only |
    | `dispatch` | format of rows: "rows" (the model's) or "fp8" (a byte per element and an FP32 scale per 128) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds the exchange of routing maps and its scan, SMs with their chunks, the pace of SM stores,
    barriers, and the kernels between the exchange buffer and the experts' rows.
    """

    n_sm: int = choice_int("hybrid_ep.n_sm")
    chunk: int = CHUNK_TOKENS
    dispatch: str = "rows"
    permute: bool = True
    compute: bool = True


FACTS = Facts(
    source="https://github.com/deepseek-ai/DeepEP (branch hybrid-ep, inside one NVLink domain)",
    options=Options,
    moves=Moves("one_copy_per_gpu", between="two_hop", formats=ROWS_OR_FP8),
    costs=Costs(
        permutes=0,
        fused=False,
        drops="SMs and their chunks, launches, barriers, routing maps, copies around the buffer (form real has them); Combine pushes, the kernel "
        "reads (the same bytes the same way)",
    ),
    reach=Reach(domains=BOTH_FORMS),
    shown=Shown("#DDCC77"),
    ships=Ships(
        "DeepEP, branch hybrid-ep: Hopper and Blackwell, Combine in BF16; hidden sizes: any, a kernel is compiled when first used", HOPPER_ON, BY_TYPE
    ),
)


@kernels("hybrid-ep", FACTS, between=HybridInternode)
class ChunkKernels(Kernels):
    """Persistent kernels on `n_sm` SMs of every GPU.

    The warps of an SM have roles that work side by side: load, store, read, sum.
    """

    def prepare(self) -> None:
        self.n, self.chunk, most = self.options.n_sm, getattr(self.options, "chunk", CHUNK_TOKENS), self.cluster.n_sms
        if not 1 <= self.n <= most:
            raise ConfigError(f"{self.name}.n_sm: found {self.n}, expected 1 to {most} SMs")
        if self.chunk < 1:
            raise ConfigError(f"{self.name}.chunk: found {self.chunk}, expected at least 1 token")
        self.received_copies = self.counted(self.p.gpu)

    def _sm(self, token: I64 | I32) -> I64:
        """The SM that sends a token at its source: chunk i goes to SM i modulo `n_sm`."""
        return np.asarray(token.astype(np.int64) % self.tokens // self.chunk % self.n)

    def _probabilities(self, aux_bytes: int) -> int:
        """Bytes of probabilities beside a copy: one per expert of the domain if gate weights ride along, else none."""
        return PROB_BYTES * self.routing.placement.n_slots if aux_bytes else 0

    def _in_flight(self, role: str) -> I32:
        """`[gpus, n_sm]` semaphores that limit the rows in flight of the warps of `role` on each SM."""
        return self.semaphores(IN_FLIGHT[role], role, "rows", each=self.n).reshape(-1, self.n)

    def _looks(self, operator: str, after: I32) -> Batch:
        """Add a DELAY per token of `layer.p.sent` on the SM of the token, behind `after[gpu]`.

        One thread of the SM reads the place of the token's row at every GPU of the domain, and issues the copies.
        """
        looker = self.sms("look", self.n, Discipline.PROGRAM_ORDER)[self.p.sent_source, self._sm(self.p.sent)]
        look = [0, self.costs.ps("hybrid.rank_us", self.n_gpus)]
        looks = self.copies(operator, look, self.p.sent_source, looker, name="look")
        self.wait_first(looks, after, stream=looker)
        return looks

    def buffer_kernel(self, name: str, row_bytes: int) -> I32:
        """Add the kernel between the exchange buffer and the experts' rows. Returns `[gpus]` its DELAYs."""
        if self.options.permute:
            return self.reorder(name, self.received_copies, self.counted(self.p.row_gpu), row_bytes)
        return self.delay(name, [self.costs.memory_ps(2 * copies * row_bytes) for copies in self.received_copies.tolist()])

    def _maps(self, start: I32) -> None:
        """`start[gpu]` waits for the all-gather of routing maps and for the kernel that turns the maps into places.

        A map has a byte per token and expert; NCCL gathers the maps.
        """
        n_bytes = self.routing.n_tokens * self.routing.placement.n_slots
        scan = self.delay("scan", self.costs.memory_ps(n_bytes))
        self.wait_all(scan, self.delay("maps", self.costs.collective_ps("all_gather", self.n_gpus, n_bytes)))
        self.wait_each(start, scan)

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs: when `[gpu]` is done, the experts of the GPU can read its rows.

        The SM of a token looks the token up, loads it once, and stores it copy by copy. All stores of a GPU share
        its link. A row that waits for the link keeps its place in the shared memory of the SM.
        """
        source = self.p.source
        start = self.delay("dispatch.launch", self.costs.kernel_ps)
        if self.direction == "fwd":  # a backward pass knows the maps
            self._maps(start)
        n_bytes = self.sent_bytes + self._probabilities(self.dispatch_aux)
        loader = self.sms("load", self.n, Discipline.PROGRAM_ORDER)[self.p.sent_source, self._sm(self.p.sent)]
        loads = self.copies("dispatch", [0, self.costs.ps("deepep.token_us")], self.p.sent_source, loader)
        self.wait_first(loads, start, stream=loader)
        looks = self._looks("dispatch", start)
        self.wait_each(looks.op, loads.op)
        order = np.lexsort(((self.p.gpu - source) % self.n_gpus, self.p.token))  # peers in turn, own GPU first
        # One thread issues a bulk store, so a copy does not cost the warp time that it costs in DeepEP.
        copy = self.costs.copy_ps("sm.copy_GBps", n_bytes)
        sm = source[order], self._sm(self.p.token[order])
        storer = self.sms("store", self.n, Discipline.PROGRAM_ORDER)[sm]
        stores = self.copies("dispatch", [0, copy], source[order], storer, after=looks.op[self.p.sent_of_pair[order]])
        puts = self.dispatch_puts(Discipline.READY_FIFO)
        paced = self.paced("dispatch", puts, self.costs.stores_ps(n_bytes)).op[order]
        self.wait_each(paced, stores.op)
        self.b.hold(self._in_flight("store")[sm], stores.op, paced)
        permute = self.buffer_kernel("permute", self.sent_bytes)
        self.wait_each(permute, self.barrier_after("dispatch", "received", start, puts))
        return permute

    def combine(self, finished: I32) -> None:
        """Behind `finished[gpu]` and a barrier, SMs read the copies of their tokens, one after the other, and sum them.

        A row that an SM has asked for has its place in the shared memory of the SM; the peers answer through their
        links. A request takes as long as the acknowledgement that a push waits for.
        """
        start = self.delay("combine.launch", self.costs.kernel_ps)
        unpermute = self.buffer_kernel("unpermute", self.model.row_bytes)
        self.wait_each(unpermute, finished)
        self.wait_each(start, unpermute)
        ready = self.barrier("combine", "ready", start)
        puts = self.combine_puts(Discipline.READY_FIFO)
        token = self.p.token[puts.unit]
        pace = self.costs.stores_ps(self.model.row_bytes + self._probabilities(self.combine_aux))
        paced = self.paced("combine", puts, pace)
        ask = np.argsort(token, kind="stable")
        sm = puts.to[ask], self._sm(token[ask])
        reader = self.sms("read", self.n, Discipline.PROGRAM_ORDER)[sm]
        copy = self.costs.copy_ps("sm.copy_GBps", self.model.row_bytes)
        reads = self.copies("combine", [0, copy], puts.to[ask], reader)
        looks = self._looks("combine", ready)
        self.wait_each(reads.op, looks.op[self.p.sent_of_pair[puts.unit[ask]]])
        self.wait_each(paced.op[ask], reads.op)
        self.b.hold(self._in_flight("read")[sm], reads.op, puts.op[ask])
        adder = self.sms("sum", self.n)[self.p.sent_source, self._sm(self.p.sent)]
        sums = self.copies("combine", [0, self.costs.ps("deepep.reduce_token_us")], self.p.sent_source, adder)
        self.wait_each(sums.op[self.p.sent_of_pair[puts.unit]], puts.op)
