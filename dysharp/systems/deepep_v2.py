"""DeepEP V2, normal kernels: TMA stores into places fixed by the source, then a kernel that copies or sums what arrived.

| step of Dispatch | step of Combine |
|---|---|
| launch, barrier of all GPUs | the same |
| an SM loads a token once and stores it once per GPU | an SM loads a result and stores it at the source |
| counts, beside the rows, and a barrier | a barrier |
| the second kernel copies the received rows together, on all SMs | the second kernel adds the rows of a token |

Over several NVLink domains (hybrid mode) a row goes once per remote domain by NIC, and SMs there forward it.
"""

import math
from functools import cached_property

import numpy as np

from dysharp.base import ConfigError
from dysharp.costs.collectives import SYNC_GPUS
from dysharp.program import I32, I64, Discipline, frozen, runs, spans
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems import BOTH_FORMS, BY_TYPE, HOPPER_ON, Costs, Facts, Moves, Reach, Ships, Shown, deepep, kernels
from dysharp.systems.building import ROWS_OR_FP8, Batch, Kernels, Sends, TwoHop, placed
from dysharp.systems.building.between.deepep_internode import BARRIERS
from dysharp.systems.building.gpus import Software
from dysharp.workload import expected_copies

SM_GBPS = {"read": 200.0, "write": 50.0}
"""Rates of one SM that the library assumes when it chooses its number of SMs."""
MORE, FEWEST = 1.25, 4
"""The library takes this many times the SMs of its estimate, an even number, at least `FEWEST`."""


@frozen
class Options(deepep.Options):
    """Options of DeepEP V2's normal kernels.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `n_sm` | SMs of the first kernel of a call; 0: the library's own number (`_own_sms`); real form only |
    | `dispatch` | format of rows: "rows" (the model's) or "fp8" (a byte per element and an FP32 scale per 128) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    n_sm: int = choice_int("deepep_v2.n_sm")


CHUNK = 6
"""Rows of a channel that are posted and forwarded together (kScaleoutUpdateInterval, kNumSlotsPerForwardChunk)."""
MOST_CHANNELS = 8
SHARED_BYTES, ROW_EXTRA, COUNT_BYTES = 232448, 128, 4
"""Shared memory of an SM of Hopper and Blackwell; what a row has there besides its values: indices, weights, a barrier; a count."""

LOADED, AT_ONCE, WARPS = 2048, 2, 32
"""Bytes of a load of a warp that adds a token, copies that it loads at once where there are no more, and the most warps of an SM.

Source: DeepEP impls/combine_utils.cuh, combine_reduce; csrc/kernels/elastic/combine.hpp.
"""


def _channels_of_sm(model: Model, gpus: int, sent_bytes: int) -> int:
    """Channels of an SM between nodes: two warps share the rows that its shared memory holds, beside the counts of Dispatch.

    Source: DeepEP csrc/elastic/buffer.hpp, num_channels_per_sm.
    """
    counts = COUNT_BYTES * (gpus + model.n_experts)
    held = min((SHARED_BYTES - counts) // (sent_bytes + ROW_EXTRA), SHARED_BYTES // (model.row_bytes + ROW_EXTRA))
    return max(1, min(held // 2, MOST_CHANNELS))


def _own_sms(model: Model, cluster: Cluster) -> int:
    """The SMs that the library chooses: enough for the slower of NVLink and NIC at `SM_GBPS` per SM.

    Source: DeepEP deep_ep/buffers/elastic.py, get_theoretical_num_sms.
    """
    gpus, domains, inside = cluster.n_gpus, cluster.domains, cluster.domain_gpus
    copies, link = expected_copies(gpus, model.n_experts, model.topk), cluster.link_bytes_per_us / 1000
    read, write, traffic, rate = 1 / copies, 1.0, 1 - 1 / inside, link
    if domains > 1:
        assert cluster.scale_out is not None
        nodes, nic = expected_copies(domains, model.n_experts, model.topk), cluster.scale_out.rate / 1000
        read, write = (1 + nodes) / copies, 1 + (1 + nodes / domains) / copies
        by_nic = nodes * (1 - 1 / domains) / copies
        if by_nic / nic > traffic / link:
            traffic, rate = by_nic, nic
    if not traffic:
        return cluster.n_sms
    sms = rate / traffic * max(read / SM_GBPS["read"], write / SM_GBPS["write"])
    return min(-(-max(FEWEST, math.ceil(sms * MORE)) // 2) * 2, cluster.n_sms)


FACTS = Facts(
    source="https://github.com/deepseek-ai/DeepEP (V2, ElasticBuffer, normal)",
    options=Options,
    moves=Moves("one_copy_per_gpu", between="two_hop", formats=ROWS_OR_FP8),
    costs=Costs(
        permutes=1,
        fused=False,
        sms=_own_sms,
        drops="SMs and their copy rate, launches, barriers, kernels that copy and sum received rows (form real has them); the host's wait for counts",
    ),
    reach=Reach(domains=BOTH_FORMS, no_switch=("paper",)),
    shown=Shown("#1B9E77"),
    ships=Ships("DeepEP README: Hopper and Blackwell; kernels are compiled when first used; rows of whole 32 B", HOPPER_ON, BY_TYPE, step=32),
)


class _Elastic(Kernels):
    """Both kernels of each call on one NVLink domain. The first one has `n_sm` SMs."""

    @cached_property
    def costs(self) -> Software:
        """A thread per GPU sends a flag and all fly at once, so an exchange does not grow with the GPUs (nvlink_barrier_wo_local_sync)."""
        return Software(self.cluster, SYNC_GPUS)

    def prepare(self) -> None:
        if not 0 <= self.options.n_sm <= self.cluster.n_sms:
            found = f"found {self.options.n_sm}, expected 0 (the library's own number) to {self.cluster.n_sms} SMs"
            raise ConfigError(f"deepep-v2.n_sm: {found}")
        self.n = self.options.n_sm or _own_sms(self.model, self.cluster)

    def begin(self, name: str, after: I32 | None) -> I32:
        """The launch, behind `after[gpu]`, and the barrier. Returns `[gpus]` DELAYs."""
        return self.barrier(f"{name}.begin", f"{name}.begun", self.delay(f"{name}.launch", self.costs.kernel_ps, after=after))

    def on_sms(self, operator: str, node: I32, token: I32, n_bytes: int, name: str = "sm", begun: I32 | None = None) -> Batch:
        """A DELAY per copy on an SM of `node[i]`: the SMs take turns at tokens and work on a token's copies one after the other.

        `name`: of the template. Copies with another name have warps of their own on these SMs.
        """
        issuer = self.sms(operator if name == "sm" else f"{operator}.{name}", self.n)[node, token % self.n]
        return self.copies(operator, [0, self.costs.copy_ps("sm.copy_GBps", n_bytes)], node, issuer, name=name, begun=begun)

    def stored(self, operator: str, sends: Sends, token: I32, n_bytes: int, begun: I32) -> None:
        """`sends` follow the copies on SMs and the pace of stores; the copies follow `begun[gpu]`."""
        work = self.on_sms(operator, sends.node, token, n_bytes, begun=begun)
        self.paced(operator, sends, self.costs.stores_ps(n_bytes), after=work.op)

    def copied(self, name: str, after: I32) -> I32:
        """The second kernel of Dispatch: `[gpus]` DELAYs in which all SMs copy the received rows."""
        rows = self.counted(self.p.gpu)
        return self.delay(name, [self.costs.memory_ps(2 * int(n) * self.sent_bytes) for n in rows], after=after)

    def summed(self, name: str, source: I32, token: I32, after: I32) -> None:
        """The second kernel of Combine: reads row i of `token[i]` on `source[i]` and writes one per token. A warp adds a token by loads in turn."""
        row, tokens = self.model.row_bytes, self.counted(self.p.sent_source)
        copies = np.zeros(self.n_gpus, np.int64)
        np.maximum.at(copies, source, np.bincount(token)[token])
        turns = -(-tokens // (self.cluster.n_sms * min(WARPS, SHARED_BYTES // row)))
        loads = turns * np.where(copies > AT_ONCE, copies, 1) * -(-row // LOADED)
        moved = (self.counted(source) + tokens) * row
        memory = [self.costs.memory_ps(n) for n in moved.tolist()]
        self.delay(name, np.maximum(memory, self.costs.kernel_ps + loads * self.costs.load_ps), after=after)

    def counts(self, begun: I32) -> I32:
        """GPUs tell each other their counts of rows beside the rows (notify warps). Returns `[gpus]` DELAYs."""
        return self.barrier("dispatch.counts", "dispatch.counted", begun)

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs after which a GPU has its rows in one piece."""
        begun = self.begin("dispatch", None)
        puts = self.dispatch_puts(Discipline.READY_FIFO)
        self.stored("dispatch", puts, self.p.token, self.sent_bytes, begun)
        return self.copied("received", self.barrier_after("dispatch", "dispatch.ended", self.counts(begun), puts))

    def combine(self, finished: I32) -> None:
        """Add Combine, which starts after the GEMMs of each GPU, `finished[gpu]`."""
        begun = self.begin("combine", finished)
        puts = self.combine_puts(Discipline.READY_FIFO)
        self.stored("combine", puts, self.p.token[puts.unit], self.model.row_bytes, begun)
        ended = self.barrier_after("combine", "combine.ended", begun, puts)
        self.summed("combined", self.p.source, self.p.token, ended)


class _Hybrid(_Elastic):
    """The same over NVLink domains: rows and sums cross once per remote domain by NIC, through the GPU of the source's index.

    A warp is a channel, which takes every `channels`-th token. Rows of a channel to one domain are posted and forwarded in chunks of `CHUNK`.
    """

    def prepare(self) -> None:
        super().prepare()
        self.hop, self.per_sm = TwoHop(self), _channels_of_sm(self.model, self.n_gpus, self.sent_bytes)

    def begin(self, name: str, after: I32 | None) -> I32:
        """As on one domain, then a barrier of the GPUs of a rail; its time includes the barrier that ends the call."""
        begun = super().begin(name, after)
        rounds = (self.cluster.domains - 1).bit_length()
        return self.delay(f"{name}.rails", BARRIERS * self.costs.ps("internode.barrier_us", rounds), after=begun)

    def chunks(self, units: I64) -> tuple[I64, I64]:
        """(`[units]` chunk of each unit, `[chunks]` its last unit), by source, domain and channel, in token order."""
        hop = self.hop
        channel = hop.token[units] % self.tokens % (self.n * self.per_sm)
        order = np.lexsort((hop.token[units], channel, hop.domain[units], hop.source[units]))
        _, length = runs(*(axis[order] for axis in (hop.source[units], hop.domain[units], channel)))
        first = spans(0, length) % CHUNK == 0
        chunk = placed(len(order), order, np.cumsum(first) - 1)
        last = np.append(np.flatnonzero(first)[1:], len(order)) - 1
        return chunk, units[order[last]]

    def dispatch(self) -> I32:
        """Add Dispatch. The NIC gets a chunk when its last row is written, and the SMs of the remote domain forward it when it has landed."""
        hop = self.hop
        begun = self.begin("dispatch", None)
        order = hop.remote
        chunk, last = self.chunks(order)
        written = self.on_sms("dispatch", hop.source[order], hop.token[order], self.sent_bytes, "write", begun=begun)
        queue = self.ready("nic")[hop.source[order]]
        by_nic, tiles = hop.send(queue, order, chunk, len(last))
        write_of = placed(len(hop.token), order, written.op)
        self.wait_each(by_nic, write_of[last[chunk]])
        landed = placed(len(hop.token), order, tiles[chunk])
        unit = hop.unit_of_pair
        work = self.on_sms("dispatch", hop.relay[unit], hop.token[unit], self.sent_bytes, begun=begun)
        self.wait_tiles(work.op, landed[unit])
        forwards = hop.forward(self.ready("dispatch"))
        sends = Sends(op=forwards.op, node=forwards.node, to=self.p.gpu)
        self.paced("dispatch", sends, self.costs.stores_ps(self.sent_bytes), after=work.op)
        return self.copied("received", self.barrier_after("dispatch", "dispatch.ended", begun, forwards))

    def combine(self, finished: I32) -> None:
        """Add Combine. Results gather at the relay, which adds those of its domain and sends one row per token on, in the chunks of Dispatch."""
        hop = self.hop
        begun = self.begin("combine", finished)
        back = self.p.push_order
        gathers, tiles = hop.gather(self.ready("combine"), back)
        node = self.p.gpu[back]
        sends = Sends(op=gathers, node=node, to=hop.relay[hop.unit_of_pair[back]])
        self.stored("combine", sends, self.p.token[back], self.model.row_bytes, begun)
        added = self.on_sms("combine", hop.relay, hop.token, self.model.row_bytes, "add")
        self.wait_tiles(added.op, tiles)
        returns = hop.give_back()
        self.wait_each(returns, added.op)
        far = np.flatnonzero(hop.far)
        chunk, last = self.chunks(far)
        self.wait_each(returns[far], added.op[last[chunk]])
        ended = self.barrier_after("combine", "combine.ended", begun, Batch(op=returns, node=hop.relay))
        self.summed("combined", hop.source, hop.token, ended)


kernels("deepep-v2", FACTS, between=_Hybrid)(_Elastic)
