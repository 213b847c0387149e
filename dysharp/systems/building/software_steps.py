"""Steps of communication software in real forms: starts, copies on SMs, paced stores, flags, barriers.

A cost is a DELAY on a host or an SM. Bytes move in the transfers of rows and control words. A flag exchange on a real
machine takes `Software.sync_ps` (store, flight, poll, fence). The Program simulates the flight as a transfer; a DELAY
charges the remaining time.

Mediation is what software does around Dispatch and Combine because a store needs an address before it leaves. The option `mediation` of a system
adds it to a paper form. Costs are the choices `mediation.*`; they are the costs of no particular GPU. Real forms have the measured steps of their
software instead.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from dysharp.base.units import PS_PER_US, ns_to_ps
from dysharp.costs import collectives as times
from dysharp.program import I32, I64, OTHER, Alloc, Discipline, Kind
from dysharp.specs import choice_int
from dysharp.systems.building.batch import Batch, Sends, ids
from dysharp.systems.building.gpus import Software
from dysharp.systems.building.layer import CONTROL, LayerBuilder

SomeBatch = TypeVar("SomeBatch", bound=Batch)
SomeSends = TypeVar("SomeSends", bound=Sends)
WORD_BYTES = 16  # a flag or a count with its address: one flit


class SoftwareSteps:
    """Adds the software around the transfers of `layer`. Steps with a cost (`costs`) need an hw-* cluster."""

    def __init__(self, layer: LayerBuilder) -> None:
        self.layer, self.flight_ps = layer, layer.flight_ps
        self.visible_ps = layer.flight_ps + layer.b.hardware.ack  # until the source has the acknowledgement of the receiver

    @property
    def costs(self) -> Software:
        """Costs of software on the GPU of the cluster. Raises ConfigError on a cluster that names no GPU."""
        return self.layer.costs

    def alltoall_ps(self, sent_bytes: int, own_bytes: int) -> int:
        """`Software.alltoall_ps`, and a step of the network where there are several NVLink domains."""
        step = round(times.NET_STEPS_US[times.PROTOCOLS.index(times.SIMPLE)] * PS_PER_US) if self.layer.cluster.domains > 1 else 0
        return step + self.costs.alltoall_ps(sent_bytes, own_bytes)

    # ---- steps of one GPU --------------------------------------------------------------------------------------------

    def delay(self, name: str, cost_ps: int | Sequence[int] | I64, *, after: I32 | None = None, after_all: I32 | None = None) -> I32:
        """`[gpus]` one DELAY per GPU, of `cost_ps` or `cost_ps[gpu]`, which waits for the op `after[gpu]`, or for `after_all` of all GPUs."""
        layer, gpus = self.layer, self.layer.gpus
        costs = np.maximum(1, np.broadcast_to(np.asarray(cost_ps, np.int64), (layer.n_gpus,)))
        delays = layer.delays(name, np.append(0, costs), gpus, layer.issuers(name, slots=1), rows=gpus + 1)
        layer.wait_each(delays, after)
        layer.wait_all(delays, after_all)
        return delays

    def pools(self, name: str) -> list[int]:
        """`[gpus]` one pool of one slot per GPU: steps that share a pool run one at a time."""
        return self.layer.pools(1, name)

    def issuers(self, name: str, discipline: Discipline, n: int, side_by_side: int = 1) -> I32:
        """`[gpus, n]` issuers. Each has its own SM, which works on `side_by_side` rows at a time."""
        return self.layer.issuers(name, discipline, each=n, slots=side_by_side).reshape(-1, n)

    def copies(
        self,
        operator: str,
        durations: list[int],
        node: I32,
        issuer: I32,
        rows: I64 | int = 1,
        *,
        prio: I64 | int = 0,
        name: str = "sm",
        **after: I32 | None,
    ) -> Batch:
        """Add a DELAY of `durations[rows]` ps per row or copy, on the SM of `issuer[i]`. `after`: see `held`.

        The template is called "OPERATOR.NAME".
        """
        ops = self.layer.delays(f"{operator}.{name}", durations, node, issuer, operator, rows=rows, prio=prio)
        return self.held(Batch(op=ops, node=node), **after)

    def held(self, batch: SomeBatch, *, after: I32 | None = None, begun: I32 | None = None) -> SomeBatch:
        """`batch`, whose op i waits for the op `after[i]` and for the op `begun[gpu]` of its GPU."""
        self.layer.wait_each(batch.op, after)
        self.layer.wait_each(batch.op, None if begun is None else begun[batch.node])
        return batch

    def tokens_on_sms(self, n_sms: int, cost_ps: int) -> Batch:
        """Add a DELAY of `cost_ps` per token of `layer.p.sent`. Token i of a GPU runs on SM i modulo `n_sms`."""
        layer = self.layer
        used = min(n_sms, layer.tokens)
        issuers = self.issuers("send", Discipline.PROGRAM_ORDER, used)
        issuer = issuers[layer.p.sent_source, layer.p.sent % layer.tokens % used]
        return self.copies("dispatch", [0, cost_ps], layer.p.sent_source, issuer, name="token")

    def paced(
        self,
        operator: str,
        sends: SomeSends,
        cost_ps: int,
        discipline: Discipline = Discipline.READY_FIFO,
        *,
        pools: list[int] | None = None,
        own: bool = False,
        **after: I32 | None,
    ) -> SomeSends:
        """Add a DELAY of `cost_ps` before each op of `sends` that leaves its GPU by NVLink, one DELAY at a time per GPU.

        `pools`: stores with the same pools are paced together. `own`: copies that stay on the GPU are paced, too. `after`: see `held`.
        Returns `sends` with the DELAY in place of each paced op, so that later edges hold back the DELAY.
        """
        layer = self.layer
        far = np.flatnonzero(((sends.node != sends.to) | own) & ~layer.ways.leaves(sends.node, sends.to))
        issuer = layer.per_gpu(discipline, "stores", self.pools("stores") if pools is None else pools)[sends.node[far]]
        heads = sends.op.copy()
        heads[far] = layer.delays(f"{operator}.stores", [0, cost_ps], sends.node[far], issuer, operator)
        layer.wait_each(sends.op[far], heads[far])
        return self.held(dataclasses.replace(sends, op=heads), **after)

    def all_to_all(self, name: str, operator: str, batches: Sequence[Sends], n_bytes: int, *after: I32 | None) -> I32:
        """NCCL's all-to-all of rows of `n_bytes` behind the ops `after` of all GPUs: start, own chunk, last chunks, rows paced as stores.

        Returns `[gpus]` its start.
        """
        node = np.concatenate([batch.node for batch in batches])
        own = node[node == np.concatenate([batch.to for batch in batches])]
        rows = zip(*(self.layer.counted(of).tolist() for of in (node, own)), strict=True)
        start = self.delay(f"{name}.nccl", [self.alltoall_ps(n_bytes * sent, n_bytes * kept) for sent, kept in rows])
        for tails in after:
            self.layer.wait_all(start, tails)
        pace, pools = self.costs.stores_ps(n_bytes), self.pools("stores")
        for batch in batches:
            self.paced(operator, batch, pace, Discipline.PROGRAM_ORDER, pools=pools, begun=start)
        return start

    # ---- steps of all GPUs -------------------------------------------------------------------------------------------

    def flags(self, name: str, per_pair: int, after: I32, heads: I32) -> None:
        """Every GPU sends `per_pair` words to every GPU of its NVLink domain after the op `after[gpu]`.

        `heads[gpu]` waits for all words that the GPU receives.
        """
        layer, g = self.layer, self.layer.n_gpus
        size = layer.cluster.domain_gpus
        _, row, tile = layer.b.regions(np.arange(g), np.full(g, size * per_pair), WORD_BYTES, size * per_pair, alloc=Alloc.PREFIX, name=name)
        source, word, place = (axis.ravel() for axis in np.meshgrid(np.arange(g), np.arange(per_pair), np.arange(size), indexing="ij"))
        target = source - source % size + place
        template = layer.transfer(name, Kind.PUT, "other", cls=OTHER, framing=CONTROL)
        node, to = (axis.astype(np.int32) for axis in (source, target))
        rows = row + (target * size + source % size) * per_pair + word
        op = layer.puts(template, node, to, rows, issuer=layer.issuers(name)[source], bytes=WORD_BYTES)
        layer.wait_first(Batch(op=op, node=node), after)
        layer.wait_tiles(heads, ids(tile, g))

    def barrier(self, name: str, ends: str, after: I32, simulated_ps: int = 0) -> I32:
        """Every GPU sends a flag to every GPU after the op `after[gpu]`, and polls the flags that it receives.

        `simulated_ps`: the part of the exchange that the Program has simulated before.

        Returns `[gpus]` the polls, DELAYs called `ends`.
        """
        poll = self.delay(ends, max(0, self.costs.sync_ps - self.flight_ps - simulated_ps))
        self.flags(f"{name}.barrier", 1, after, poll)
        return poll

    def barrier_after(self, name: str, ends: str, start: I32, sends: Batch) -> I32:
        """A barrier after all `sends` of all GPUs. A GPU that sends nothing arrives with its op `start[gpu]`.

        Returns `[gpus]` the polls.
        """
        return self.barrier(name, ends, self.layer.join(f"{name}.sent", start, sends), self.visible_ps)


COUNT_BYTES = 4  # rows of an expert


def mediate(layer: LayerBuilder, *, counts: bool, permutes: bool, first: Sequence[Batch] = (), rows: bool = True) -> None:
    """Let Dispatch of `layer` wait for mediation, and end the pass with the permutation of the results.

    `counts`: the GPUs exchange rows per expert, and the host waits for these counts (a backward pass knows the counts).
    `permutes`: a kernel sorts the rows by expert before Dispatch, and another one puts the results back after Combine.
    `first`: ops that wait besides the transfers of rows. `rows` False: the transfers do not depend on the routing and do not wait.
    """
    steps = SoftwareSteps(layer)
    counted = layer.exchange(COUNT_BYTES * layer.model.n_experts, name="counts") if counts and layer.direction == "fwd" else None
    waits = ns_to_ps(choice_int("mediation.host_sync_ns") + choice_int("mediation.launch_ns")) if counted is not None else 0
    sent = layer.counted(layer.p.row_source)
    begin = steps.delay("mediation", waits + (_permute_ps(sent * layer.sent_bytes) if permutes else np.zeros(layer.n_gpus, np.int64)))
    layer.wait_tiles(begin, counted)
    for batch in (*(layer.dispatched if rows else ()), *first):
        layer.wait_each(batch.op, begin[batch.node])
    if permutes:
        end = steps.delay("unpermute", _permute_ps(sent * layer.back_bytes))
        for back in layer.returned:
            layer.wait_tiles(end, back.tile)


def sorted_at_receiver(layer: LayerBuilder) -> I32:
    """`[gpus]` DELAYs after which received rows are sorted by expert: one permutation behind the last row."""
    received = layer.counted(layer.p.row_gpu)
    several = layer.routing.placement.slots_per_gpu > 1
    sort = SoftwareSteps(layer).delay("sort", _permute_ps(received * layer.sent_bytes) if several else 0)
    layer.wait_each(sort, layer.rows_here())
    return sort


def _permute_ps(n_bytes: I64) -> I64:
    """Picoseconds of a kernel that reads `n_bytes` and writes as many, with its launch."""
    rate = 1000 * choice_int("mediation.permute_gbps")  # bytes per microsecond
    moved: I64 = -(-2 * n_bytes.astype(np.int64) * PS_PER_US // rate)
    return ns_to_ps(choice_int("mediation.launch_ns")) + moved
