"""Communication kernels as they run, in parts that several systems share: starts, tokens on SMs, flags behind messages, ends.

Costs are DELAYs on hosts and SMs; bytes are the rows' own transfers and control words. What a flag exchange takes on real machines
(`Software.sync_ps`: store, flight, poll, fence) is charged less the flight that the machine simulates anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dysharp.program import Alloc, Discipline, Head, Kind, Tail, Template, To
from dysharp.program.constants import OTHER
from dysharp.systems.building.layer import CONTROL, LayerBuilder
from dysharp.systems.building.software import Software

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
WORD_BYTES = 16  # a flag or a count with its address: one flit


class SoftwareSteps:
    """Builds the software around the transfers of `layer`."""

    def __init__(self, layer: LayerBuilder) -> None:
        self.layer, self.costs = layer, Software(layer.cluster, layer.n_gpus)
        m = layer.b.machine
        self.flight_ps = 2 * m.lat  # source to switch to receiver
        self.visible_ps = 2 * m.lat + m.ack  # until the source knows of it

    def delay(self, name: str, cost_ps: int | Sequence[int] | I64) -> I32:
        """A DELAY per GPU, of `cost_ps` or its own `cost_ps[gpu]`. Returns the ops."""
        layer, gpus = self.layer, np.arange(self.layer.n_gpus)
        costs = np.maximum(1, np.broadcast_to(np.asarray(cost_ps, np.int64), (layer.n_gpus,)))
        template = layer.b.template(Template(name, Kind.DELAY, "other", "delay", tasks=1, duration=layer.b.duration(np.append(0, costs))))
        pools = [layer.b.pool(g, 1, name) for g in range(layer.n_gpus)]
        op = layer.b.ops(template, gpus, issuer=layer.per_gpu(Discipline.PROGRAM_ORDER, name, pools), rows=gpus + 1)
        return (op + gpus).astype(np.int32)

    def join(self, name: str) -> I32:
        """A JOIN per GPU. Returns the ops."""
        gpus = np.arange(self.layer.n_gpus)
        op = self.layer.b.ops(self.layer.b.template(Template(name, Kind.JOIN, "other", "join")), gpus)
        return (op + gpus).astype(np.int32)

    def each_waits(self, tails: I32, heads: I32) -> None:
        """`heads[gpu]` waits for `tails[gpu]`."""
        self.layer.b.edges(Tail.OP_DONE, tails, Head.OP_ISSUE, heads)

    def all_wait(self, tails: I32, heads: I32) -> None:
        """Every one of `heads` waits for all `tails`: nobody goes on before the last GPU is there."""
        tail, head = np.meshgrid(tails, heads)
        self.layer.b.edges(Tail.OP_DONE, tail.ravel(), Head.OP_ISSUE, head.ravel())

    def issuers(self, name: str, discipline: Discipline, n: int, side_by_side: int = 1) -> I32:
        """`[gpus, n]` issuers, each on an SM of its own that works on `side_by_side` rows at a time."""
        b = self.layer.b
        rows = [[b.issuer(g, discipline, pool=b.pool(g, side_by_side, name), name=name) for _ in range(n)] for g in range(self.layer.n_gpus)]
        return np.array(rows, np.int32)

    def copies(self, name: str, durations: list[int], node: I32, issuer: I32, rows: I64 | int) -> I64:
        """A DELAY per row or copy on its SM, `durations[rows]` ps each. `name` is the operator. Returns the ops."""
        b = self.layer.b
        template = b.template(Template(f"{name}.sm", Kind.DELAY, name, "delay", tasks=1, duration=b.duration(durations)))
        return b.ops(template, node, issuer=issuer, rows=rows) + np.arange(len(node))

    def starts(self, call: I32, ops: I64, stream: I32 | I64, node: I32) -> None:
        """The first op of every `stream` (an issuer, a ring: any number that tells them apart) waits for the call of its GPU."""
        _, first = np.unique(stream, return_index=True)
        self.layer.b.edges(Tail.OP_DONE, call[node[first]], Head.OP_ISSUE, ops[first])

    def release(self, starts: I32, ops: I64, node: I32) -> None:
        """`ops` of each node wait for `starts[node]`."""
        self.layer.b.edges(Tail.OP_DONE, starts[node], Head.OP_ISSUE, ops)

    def stores(self) -> list[int]:
        """A pool per GPU for all that paces its stores."""
        return [self.layer.b.pool(g, 1, "stores") for g in range(self.layer.n_gpus)]

    def paced(
        self,
        name: str,
        ops: I64,
        node: I32,
        to: I32,
        cost_ps: int,
        discipline: Discipline = Discipline.READY_FIFO,
        pools: list[int] | None = None,
    ) -> I64:
        """What sends `ops`: a DELAY of `cost_ps` in front of each that leaves its GPU, one at a time per GPU (and of all that shares `pools`).
        Returns the op to hold back for each of `ops` (the op itself where nothing leaves)."""
        layer, far = self.layer, np.flatnonzero(node != to)
        template = Template(f"{name}.stores", Kind.DELAY, name, "delay", tasks=1, duration=layer.b.duration([0, cost_ps]))
        issuer = layer.per_gpu(discipline, "stores", self.stores() if pools is None else pools)[node[far]]
        stores = layer.b.ops(layer.b.template(template), node[far], issuer=issuer)
        heads = ops.copy()
        heads[far] = stores + np.arange(len(far))
        layer.b.edges(Tail.OP_DONE, heads[far], Head.OP_ISSUE, ops[far])
        return heads

    def sent(self, ops: I64, node: I32, heads: I32) -> None:
        """`heads[gpu]` waits for all `ops` of its GPU: transfers are visible where they go, copies are taken."""
        self.layer.b.edges(Tail.OP_DONE, ops, Head.OP_ISSUE, heads[node])

    def arrived(self, heads: I32) -> None:
        """`heads[gpu]` waits for all partial rows of its tokens."""
        tiles = self.layer.partial_tile
        self.layer.b.edges(Tail.TILE_READY, tiles[tiles >= 0], Head.OP_ISSUE, heads[tiles >= 0])

    def tokens_on_sms(self, n_sms: int, cost_ps: int) -> I64:
        """A DELAY of `cost_ps` per token of `layer.sent`, token i of a GPU on SM i modulo `n_sms`. Returns the ops."""
        layer = self.layer
        used = min(n_sms, layer.tokens)
        template = Template("dispatch.token", Kind.DELAY, "dispatch", "delay", tasks=1, duration=layer.b.duration([0, cost_ps]))
        issuer = self.issuers("send", Discipline.PROGRAM_ORDER, used)[layer.sent_source, layer.sent % layer.tokens % used]
        return layer.b.ops(layer.b.template(template), layer.sent_source, issuer=issuer) + np.arange(len(layer.sent))

    def flags(self, name: str, per_pair: int, after: I32, heads: I32) -> None:
        """`per_pair` words from every GPU to every GPU behind `after[source]`; `heads[gpu]` waits for all words of its own."""
        layer, g = self.layer, self.layer.n_gpus
        _, row, tile = layer.b.regions(np.arange(g), np.full(g, g * per_pair), WORD_BYTES, g * per_pair, alloc=Alloc.PREFIX, name=name)
        source, word, target = (axis.ravel() for axis in np.meshgrid(np.arange(g), np.arange(per_pair), np.arange(g), indexing="ij"))
        one = np.ones(len(source), np.int32)
        template = Template(name, Kind.PUT, "other", "control", OTHER, framing=layer.b.framing(CONTROL))
        ops = layer.b.ops(
            layer.b.template(template),
            source,
            issuer=layer.per_gpu(Discipline.PROGRAM_ORDER, name)[source],
            bytes=WORD_BYTES,
            to=To(one, target, one, row + (target * g + source) * per_pair + word),
            targets=1,
        )
        layer.all_of_gpu_wait(Tail.OP_DONE, after, ops, source.astype(np.int32))
        layer.b.edges(Tail.TILE_READY, tile + np.arange(g), Head.OP_ISSUE, heads)

    def barrier(self, name: str, ends: str, after: I32, simulated_ps: int) -> I32:
        """A flag from every GPU to every GPU behind `after`, polled; `simulated_ps` of the exchange has passed before."""
        poll = self.delay(ends, max(0, self.costs.sync_ps - self.flight_ps - simulated_ps))
        self.flags(f"{name}.barrier", 1, after, poll)
        return poll

    def behind(self, name: str, ends: str, start: I32, puts: I64, node: I32) -> I32:
        """The barrier behind everything that every GPU has to send; a GPU that sends nothing is there with its `start`."""
        sent = self.join(f"{name}.sent")
        self.each_waits(start, sent)
        self.sent(puts, node, sent)
        return self.barrier(name, ends, sent, self.visible_ps)
