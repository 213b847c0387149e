"""DeepEP's normal kernels over several NVLink domains: channels, RDMA rings, forwarders, sums per domain.

Dispatch of a GPU, per channel (a pair of SMs, with an equal run of the tokens):

| step | op | waits for |
|---|---|---|
| write a token into the send slots of its domains | DELAY per token on the sending SM | the notify and the fixed time of the call |
| a row to the rail's GPU of each remote domain | PUT by NIC, in the order of tokens | the DELAY, a slot of the ring of (channel, domain) |
| forward a chunk of rows | DELAY on the forwarding SMs, then a DELAY for the pace of stores | all rows of the chunk, whose slots it gives back |
| a row to each GPU of the domain that needs it | PUT by NVLink | the pace |

The own domain has the same steps without a NIC. Combine is the mirror: results gather at the relay, which adds a chunk of
tokens on its SMs and sends one row per token to the source. The source adds one row per domain; that time is in the fixed time.

Constants: `internode.*` in specs/data/fitted.toml. Source of the steps: DeepEP csrc/kernels/legacy/internode.cu.
"""

import numpy as np

from dysharp.base import ConfigError
from dysharp.program import I32, I64, Discipline, Ints, place_in, runs, spans, starts
from dysharp.systems.building.batch import Batch, placed
from dysharp.systems.building.between.two_hop import TwoHop
from dysharp.systems.building.layer import Kernels, LayerBuilder

RING_ROWS = 128  # rows of an RDMA ring per (channel, remote domain): DeepEP deep_ep/buffers/legacy.py
CHUNK = {16: (20, 12), 64: (8, 8), 1024: (12, 8)}
"""GPUs up to which it holds -> (rows per RDMA write of Dispatch, of Combine): DeepEP deep_ep/buffers/legacy.py."""
MOST_DOMAINS = 20  # DeepEP: NUM_MAX_RDMA_PEERS
CHUNK_TOKENS = 64  # neighbouring tokens that one SM of Hybrid-EP takes at a time: DeepEP, branch hybrid-ep
BARRIERS = 2  # rail barriers of a call with a cached handle: DeepEP
PACED = 8
"""Pushes of Combine that one DELAY paces."""


class Internode(Kernels):
    """The two kernels on `n_sm` SMs of every GPU."""

    def prepare(self) -> None:
        self.n, self.hop = pairs_of_sms(self), TwoHop(self)
        self.chunk = next(sizes for most, sizes in CHUNK.items() if self.n_gpus <= most)
        self.channel: I64 = self.hop.token.astype(np.int64) % self.tokens * self.n // self.tokens  # [units]

    # ---- what both kernels share -------------------------------------------------------------------------------------

    def _chunks(self, stream: I64, size: int) -> tuple[I64, int]:
        """(`[units]` chunk of each unit, number of chunks): `size` units in a row of one stream, units in token order."""
        order = np.argsort(stream, kind="stable")
        first = spans(0, runs(stream[order])[1]) % size == 0
        return placed(len(order), order, np.cumsum(first) - 1), int(first.sum())

    def queues(self, name: str) -> I32:
        """`[gpus, channels]` issuers of transfers in program order."""
        return self.issuers(name, each=self.n).reshape(-1, self.n)

    def begin(self, name: str, after: I32 | None) -> I32:
        """The notify with a cached handle ("NAME.notify", after `after` of all GPUs), and the fixed time behind it.

        A rail's barrier is NVSHMEM's sync of a team: dissemination with radix 2 (NVSHMEM_BARRIER_TG_DISSEM_KVAL), so as many
        rounds as n domains need doublings from one.
        """
        rounds = (self.cluster.domains - 1).bit_length()
        cost = BARRIERS * self.costs.ps("internode.barrier_us", rounds) + self.costs.ps("internode.notify_us")
        notify = self.delay(f"{name}.notify", cost, after_all=after)
        return self.delay(f"{name}.call", self.costs.ps(f"internode.{name}_us"), after=notify)

    def groups(self, name: str, stream: I64) -> tuple[I64, int]:
        """(`[units]` chunk of each unit, number of chunks): as many units in a row of one stream as an RDMA write has."""
        return self._chunks(stream, self.chunk[name == "combine"])

    def hold(self, stream: I64, sends: I32, work: I32) -> None:
        """A send takes a slot of its ring, which the work on its chunk gives back. All `[sends]`."""
        b, domains = self.b, self.cluster.domains
        rings, ring = np.unique(stream, return_inverse=True)
        slots = [b.semaphore(int(r) // (self.n * domains), RING_ROWS, "rdma ring", "rows") for r in rings.tolist()]
        b.hold(np.array(slots, np.int32)[ring], sends, work)

    def in_turn(self, each_ps: int, times: I64) -> list[int]:
        """Durations of `each_ps`, taken up to the most of `times`."""
        return [max(1, each_ps * n) for n in range(int(times.max(initial=0)) + 1)]

    def work(self, operator: str, gpu: I32, channel: I64, chunk: I64, n_bytes: int) -> I32:
        """A DELAY per chunk on the SMs of its channel, for every copied row. `gpu`, `channel`: `[chunks]`; `chunk`: `[units]`."""
        copies = np.bincount(chunk, weights=self.hop.copies, minlength=len(gpu)).astype(np.int64)
        row_ps = self.costs.copy_ps(f"internode.{operator}_GBps", n_bytes) // 2  # the two SMs of a channel
        issuer = self.sms(f"{operator}.forward", self.n)[gpu, channel]
        durations = self.in_turn(row_ps, copies)
        return self.copies(operator, durations, gpu, issuer, np.maximum(copies, 1), name="forward").op

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` JOINs: `[gpu]` ends when all rows of the GPU have arrived."""
        hop = self.hop
        start = self.begin("dispatch", None)
        writes = self.writes(start)
        stream = (hop.source.astype(np.int64) * self.n + self.channel) * self.cluster.domains + hop.domain
        chunk, n_chunks = self.groups("dispatch", stream)
        sender = self.queues("send")
        order = hop.remote
        sends, tiles = hop.send(sender[hop.source[order], self.channel[order]], order, chunk[order], n_chunks)
        first = starts(hop.token[order])
        self.wait_each(sends[first], writes[_layer_index(self, hop.token[order][first])])
        gpu = placed(n_chunks, chunk, hop.relay)
        work = self.work("dispatch", gpu, placed(n_chunks, chunk, self.channel), chunk, self.sent_bytes)
        self.wait_tiles(work, tiles)
        last = placed(n_chunks, chunk[~hop.far], hop.token[~hop.far])  # the last token of each chunk of the own domain: its slots are written then
        own = np.flatnonzero(last >= 0)
        self.wait_each(work[own], writes[_layer_index(self, last[own])])
        self.hold(stream[order], sends, work[chunk[order]])
        away = np.bincount(chunk[hop.unit_of_pair], weights=self.p.gpu != hop.relay[hop.unit_of_pair], minlength=n_chunks).astype(np.int64)
        durations, stores = self.in_turn(self.costs.stores_ps(self.sent_bytes), away), self.ready("stores", self.pools(1, "stores"))
        paced = self.copies("dispatch", durations, gpu, stores[gpu], away, name="stores", after=work).op
        forwards = hop.forward(self.ready("dispatch"))
        self.wait_each(forwards.op, paced[chunk[hop.unit_of_pair]])
        return self.join("received", start, Batch(op=forwards.op, node=self.p.gpu))

    def writes(self, start: I32) -> I32:
        """A DELAY per token of `layer.p.sent` on the sending SM of its channel: a copy into a send slot per domain."""
        units = np.bincount(_layer_index(self, self.hop.token), minlength=len(self.p.sent))
        copy = self.costs.copy_ps("sm.copy_GBps", self.sent_bytes)
        channel = self.p.sent % self.tokens * self.n // self.tokens
        issuer = self.sms("write", self.n, Discipline.PROGRAM_ORDER)[self.p.sent_source, channel]
        durations = [max(1, copy * n) for n in range(self.cluster.domains + 1)]
        writes = self.copies("dispatch", durations, self.p.sent_source, issuer, units, name="write")
        self.wait_first(writes, start, stream=issuer)
        return writes.op

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(self, finished: I32) -> None:
        """Add Combine, which starts when `finished[gpu]` of all GPUs are done."""
        hop = self.hop
        start = self.begin("combine", finished)
        stream = (hop.relay.astype(np.int64) * self.cluster.domains + hop.source // hop.size) * self.n + self.channel
        chunk, n_chunks = self.groups("combine", stream)
        order = self._side_by_side()
        node = self.p.gpu[order]
        gathers, tiles = hop.gather(self.issuers("combine"), order, chunk, n_chunks)
        place = place_in(node)
        group_first = np.flatnonzero(place % PACED == 0)
        group = np.cumsum(place % PACED == 0) - 1
        away = np.bincount(group, weights=node != hop.relay[hop.unit_of_pair[order]], minlength=len(group_first)).astype(np.int64)
        issuer = self.issuers("stores", pools=self.pools(1, "stores"))[node[group_first]]
        durations = [max(1, self.costs.stores_ps(self.model.row_bytes) * k) for k in range(PACED + 1)]
        paced = self.copies("combine", durations, node[group_first], issuer, away, name="stores")
        self.wait_first(paced, start)
        self.wait_each(gathers[group_first], paced.op)
        gpu, channel = placed(n_chunks, chunk, hop.relay), placed(n_chunks, chunk, self.channel)
        work = self.work("combine", gpu, channel, chunk, self.model.row_bytes)
        self.wait_tiles(work, tiles)
        units = np.argsort(chunk, kind="stable")
        self.wait_each(hop.give_back(units), work[chunk[units]])

    def _side_by_side(self) -> I64:
        """The pairs in the order of pushing: by GPU, then the first token of every channel, the second one, and so on."""
        channel = self.channel[self.hop.unit_of_pair]
        token = self.p.token % np.int32(self.tokens)
        place = token - -(-channel * self.tokens // self.n)
        turn = (self.p.source - self.p.gpu) % self.n_gpus
        return np.asarray(np.lexsort((channel, turn, place, self.p.gpu)))


def pairs_of_sms(layer: Kernels) -> int:
    """Channels of the option `n_sm`. Raises ConfigError for an odd number and for one that the GPU does not have."""
    n_sm, most = layer.options.n_sm, layer.cluster.n_sms
    if n_sm < 2 or n_sm % 2 or n_sm > most:
        raise ConfigError(f"{layer.name}.n_sm: found {n_sm}, expected an even number of SMs from 2 to {most}")
    return int(n_sm) // 2


def _layer_index(layer: LayerBuilder, token: Ints) -> I64:
    """Index into `layer.p.sent` of each token."""
    return np.asarray(np.searchsorted(layer.p.sent, token))


class HybridInternode(Internode):
    """The two kernels on `n_sm` SMs, which take turns at chunks of neighbouring tokens, `CHUNK_TOKENS` or the option `chunk`."""

    def prepare(self) -> None:
        self.n, self.hop = self.options.n_sm, TwoHop(self)
        self.part: I64 = self.hop.token.astype(np.int64) % self.tokens // getattr(self.options, "chunk", CHUNK_TOKENS)  # [units]
        self.channel = self.part % self.n

    def begin(self, name: str, after: I32 | None) -> I32:
        """The launch, behind `after` of all GPUs."""
        return self.delay(f"{name}.launch", self.costs.kernel_ps, after_all=after)

    def queues(self, name: str) -> I32:
        """`[gpus, SMs]` one queue per GPU: rows leave in token order, whichever SM takes their chunk."""
        return np.asarray(np.repeat(self.issuers(name)[:, None], self.n, axis=1))

    def writes(self, start: I32) -> I32:
        """Rows leave from the registered input."""
        return np.asarray(start[self.p.sent_source])

    def groups(self, name: str, stream: I64) -> tuple[I64, int]:
        """The units of one chunk of tokens in one domain; its flag covers all of them."""
        parts = int(self.part.max(initial=0)) + 1
        found, chunk = np.unique(stream * parts + self.part, return_inverse=True)
        return chunk.astype(np.int64), len(found)

    def hold(self, stream: I64, sends: I32, work: I32) -> None:
        """The buffer has room for all tokens."""

    def work(self, operator: str, gpu: I32, channel: I64, chunk: I64, n_bytes: int) -> I32:
        """A DELAY per chunk on its SM: a time per unit, whatever its copies."""
        units = np.bincount(chunk, minlength=len(gpu))
        unit_ps = self.costs.ps("internode.hybrid_row_us") + self.costs.copy_ps("internode.hybrid_GBps", n_bytes)
        issuer = self.sms(f"{operator}.forward", self.n)[gpu, channel]
        return self.copies(operator, self.in_turn(unit_ps, units), gpu, issuer, units, name="forward").op
