"""`Rings`: NCCL's ring collectives, step by step. One ring over one NVLink domain, a ring per rail over several.

At each step every GPU passes one share on to the next GPU of the ring. A share is `SIMPLE_SLICES` slices with protocol Simple, one slice with others.
The next step of a GPU begins

- the time of a hop after all slices of the step have arrived, and
- with Simple also the time of a fence and a flag (`nccl.simple_syncs` exchanges of two GPUs) after the first slice has arrived.

The flight is in the transfer, the rest of a hop is a DELAY. `costs.collectives` has the closed form of the same steps.
"""

import numpy as np

from dysharp.base import PS_PER_US, Tally
from dysharp.costs import collectives as times
from dysharp.program import BETWEEN_NET, I32, I64, NIC, Kind, Program, Tail, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.batch import placed
from dysharp.systems.building.collectives.steps import OPERATORS, RESULT, SUM, VECTOR, Steps, reaching
from dysharp.workload import Collective, rail_rings

NAMES = {"ll": times.LL, "ll128": times.LL128, "simple": times.SIMPLE}
"""Values of the option `protocol` besides "auto"."""


@frozen
class _Hop:
    """Step of a ring for every chunk: who sends it to whom, which function, from which buffer to which. All `[chunks]`, or one for all."""

    node: I32
    to: I32
    fn: str
    src: str
    dst: str


def rings_of(cluster: Cluster) -> I64:
    """`[rings, gpus]` GPUs in the order in which each ring passes them."""
    return rail_rings(cluster.n_gpus, cluster.domain_gpus) if cluster.domains > 1 else np.arange(cluster.n_gpus)[None]


def ring_program(work: Collective, cluster: Cluster, protocol: times.RingProtocol, *, bulk: bool = False) -> Program:
    """The Program of an all-gather, reduce-scatter or all-reduce by rings with `protocol`. `bulk`: see `Steps`."""
    rings = _Rings(work, cluster, protocol, bulk=bulk)
    if work.operation != "all-gather":
        rings.scatter()
    if work.operation != "reduce-scatter":
        rings.gather(VECTOR if work.operation == "all-gather" else RESULT)
    return rings.end()


class _Rings(Steps):
    """Rings under construction. A stream is a (GPU, ring): streams of one GPU are neighbours."""

    def __init__(self, work: Collective, cluster: Cluster, protocol: times.RingProtocol, *, bulk: bool = False) -> None:
        self.rings = rings_of(cluster)
        self.slices = times.SIMPLE_SLICES if protocol is times.SIMPLE else 1
        super().__init__(work, cluster, len(self.rings) * self.slices, bulk=bulk)
        gpu, constants, self.protocol = cluster.own_gpu, cluster.fitted, protocol
        place, count = self.chunks.place, np.maximum(self.chunks.of_share // len(self.rings), 1)
        self.ring: I64 = place % len(self.rings)
        self.slice: I64 = np.minimum(place // len(self.rings) * self.slices // count, self.slices - 1)
        self.at = np.empty_like(self.rings)  # place of each GPU in each ring
        np.put_along_axis(self.at, self.rings, np.broadcast_to(np.arange(self.n), self.rings.shape), axis=1)
        self.streams = np.repeat(self.gpus, len(self.rings))
        self.senders = self.issuers("ring", each=len(self.rings))
        self.hops, self.exchanges = (self.issuers(name, each=len(self.rings), slots=1) for name in ("hop", "exchange"))
        self.framings = reaching("ring", times.ring_part(gpu) * protocol.part), reaching("ring", protocol.part)
        near = round(float(times.hop_us(gpu, protocol)) * PS_PER_US) - self.flight_ps
        self.near_ps, self.far_ps = near, 0
        if self.b.nets:
            self.far_ps = round(times.NET_STEPS_US[times.PROTOCOLS.index(protocol)] * PS_PER_US) - 2 * self.b.nets[BETWEEN_NET - 1].lat
        self.exchange_ps = round(constants["nccl.simple_syncs"] * float(times.sync_us(gpu, constants, 2)) * PS_PER_US) - self.flight_ps
        own_us = float(times.ring_us(gpu, constants["nccl.self_copy"] * work.size / self.n)) / protocol.part
        # A kernel ends when its last store is acknowledged. The start, which is known as a part of whole times, is shorter by what that adds.
        late = max(0, self.flight_ps - max(1, near)) if self.n > 1 else 0
        self.begun = self.start("launch", round((times.start_us(gpu, constants, protocol) + own_us) * PS_PER_US) - late)
        self.before: list[I32] = [np.repeat(self.begun, len(self.rings))]  # [streams] each: what the next step of a stream waits for

    def scatter(self) -> None:
        """A reduce-scatter: share g goes around from the GPU behind g to g, and every GPU adds its own."""
        for k in range(self.n - 1):
            self.step(self.hop(k + 1, "add", VECTOR if k == 0 else SUM, RESULT if k == self.n - 2 else SUM), "reduce")
        if self.n == 1:
            self.own()

    def gather(self, src: str) -> None:
        """An all-gather: share g goes around from g."""
        if src == VECTOR:
            self.own()
        for k in range(self.n - 1):
            self.step(self.hop(k, "copy", src if k == 0 else RESULT, RESULT), "gather")

    def own(self) -> None:
        """A GPU's own share goes from its vector to its result."""
        self.keep(VECTOR, RESULT, np.arange(len(self.chunks.size)), self.chunks.share, self.begun[self.chunks.share])

    def hop(self, k: int, fn: str, src: str, dst: str) -> _Hop:
        """Every chunk goes from the GPU `k` places behind its share's GPU to the next."""
        at = self.at[self.ring, self.chunks.share] + k
        node, to = (self.rings[self.ring, (at + i) % self.n].astype(np.int32) for i in (0, 1))
        return _Hop(node, to, fn, src, dst)

    def step(self, hop: _Hop, operator: str) -> None:
        """Add one step of all streams."""
        n_rings, size = len(self.rings), self.chunks.size
        group = (hop.to.astype(np.int64) * n_rings + self.ring) * self.slices + self.slice  # (stream of the receiver, slice)
        arriving = np.bincount(group, weights=size, minlength=len(self.streams) * self.slices).astype(np.int64)
        used = np.flatnonzero(arriving)
        rows, tiles = self.arrivals("arrived", self.streams[used // self.slices], arriving[used])
        row_of, tile_of = (placed(len(arriving), used, ids) for ids in (rows, tiles))
        sender = hop.node.astype(np.int64) * n_rings + self.ring
        far = hop.node // self.cluster.domain_gpus != hop.to // self.cluster.domain_gpus
        first: I32 = np.full(len(self.streams), -1, np.int32)
        for net, mine in ((0, np.flatnonzero(~far)), (BETWEEN_NET, np.flatnonzero(far))):
            if len(mine):
                order = mine[np.lexsort((mine, self.slice[mine], sender[mine]))]
                template = self.template(operator, Kind.PUT, operator, hop.fn, self.framings[bool(net)], src=hop.src, dst=hop.dst, net=net)
                ops = self.move(template, hop.node[order], order, self.senders[sender[order]], hop.to[order], row=row_of[group[order]])
                first[sender[order[::-1]]] = ops[::-1]
        sends = np.flatnonzero(first >= 0)
        for tails in self.before:
            self.wait(first[sends], tails[sends])
        self._gates(tile_of.reshape(-1, self.slices), np.bincount(group[far] // self.slices, minlength=len(self.streams)) > 0)

    def _gates(self, tiles: I32, far: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """DELAYs behind the arrivals of a step, for which the next one waits. `tiles`: `[streams, slices]`, -1 = nothing arrives."""
        self.before = []
        gate: I32 = np.empty(len(self.streams), np.int32)
        for cost, mine in ((self.near_ps, np.flatnonzero(~far)), (self.far_ps, np.flatnonzero(far))):
            if len(mine):
                gate[mine] = self.delay("hop", cost, self.hops[mine], self.streams[mine])
        for column in tiles.T:
            some = column >= 0
            self.wait(gate[some], column[some], Tail.TILE_READY)
        self.before.append(gate)
        if self.slices > 1:
            exchange, some = self.delay("exchange", self.exchange_ps, self.exchanges, self.streams), tiles[:, 0] >= 0
            self.wait(exchange[some], tiles[some, 0], Tail.TILE_READY)
            self.before.append(exchange)

    def end(self) -> Program:
        """The finished Program."""
        passes = {"reduce": 0, "gather": -1}
        self._declare({name: passes[name] for name in OPERATORS[self.work.operation]})
        return self.build()

    def _declare(self, passes: Tally) -> None:
        """A share takes all hops of its ring but one: the hop out of the share's GPU (0) or the hop into it (-1), by the operator in `passes`."""
        n_bytes = np.zeros(self.rings.shape, np.int64)  # by ring and place of the share's GPU
        np.add.at(n_bytes, (self.ring, self.at[self.ring, self.chunks.share]), self.chunks.size)
        domain = self.rings // self.cluster.domain_gpus
        far = domain != np.roll(domain, -1, axis=1)  # by ring and place of the sender
        for operator, skipped in passes.items():
            skips = np.roll(far, -skipped, axis=1)
            outside = int((n_bytes * (far.sum(axis=1, keepdims=True) - skips)).sum())
            inside = int(n_bytes.sum()) * (self.n - 1) - outside
            self.declare(operator, inside, "up", "down")
            self.declare(operator, outside, *NIC.sides)
