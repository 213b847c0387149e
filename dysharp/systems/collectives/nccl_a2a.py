"""NCCL's all-to-all (`nccl-a2a`): grouped sends and receives."""

import numpy as np

from dysharp.base.units import PS_PER_US
from dysharp.costs.collectives import NET_STEPS_US, PROTOCOLS, SIMPLE, alltoall_start_us
from dysharp.program import BETWEEN_NET, I32, I64, NIC, Kind, Program, Tail, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.steps import RESULT, SCRATCH, VECTOR, Steps, reaching
from dysharp.systems.building.layer import RDMA
from dysharp.systems.collective_system import collective
from dysharp.workload.collective import Collective

RELAY = f"{SCRATCH}first"
SIDES = ("up", "down", *NIC.sides)


@frozen
class Options:
    """NCCL's all-to-all has no options."""


@collective("nccl-a2a", source="https://github.com/NVIDIA/nccl (src/enqueue.cc, PXN)", options=Options, operations=("all-to-all",), domains=True)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL's all-to-all: every GPU stores its parts to all peers; a part for another node leaves at the GPU of the receiver's rail (PXN)."""
    return _AllToAll(work, cluster).program()


class _AllToAll(Steps):
    """An all-to-all under construction."""

    def program(self) -> Program:
        """The Program. The flight and the acknowledgement of a store are parts of the start's time."""
        chunks, size = self.chunks, self.cluster.domain_gpus
        late = self.flight_ps + self.b.hardware.ack if self.n > 1 else 0
        net_us = NET_STEPS_US[PROTOCOLS.index(SIMPLE)] if self.cluster.domains > 1 else 0.0
        start_us = net_us + float(alltoall_start_us(self.cluster.own_gpu, self.cluster.fitted, self.work.size, max(self.work.shares)))
        begun = self.start("launch", round(start_us * PS_PER_US) - late)
        self.senders, self.traffic = self.ready("exchange"), {side: {"exchange": 0} for side in SIDES}
        node, to = chunks.vector, chunks.share
        order = np.lexsort((chunks.place, (to - node) % self.n, node))
        order = order[np.argsort(node[order], kind="stable")]
        rail = node - node % size + to % size
        far, stays = node // size != to // size, node == to
        self.send(order[(~far & ~stays)[order]], node, to, VECTOR, RESULT, begun)
        self.send(order[(far & (rail == node))[order]], node, to, VECTOR, RESULT, begun, BETWEEN_NET)
        two = order[(far & (rail != node))[order]]
        if len(two):
            rows, tiles = self.arrivals("relay", rail[two], chunks.size[two])
            self.send(two, node, rail, VECTOR, RELAY, begun, row=rows)
            self.wait(self.send(two, rail, to, RELAY, RESULT, begun, BETWEEN_NET), tiles, Tail.TILE_READY)
        kept = np.flatnonzero(stays)
        self.keep(VECTOR, RESULT, kept, to[kept], begun[to[kept]])
        return self.build(self.traffic)

    def send(self, chunk: I64, node: I32, to: I32, src: str, dst: str, after: I32, net: int = 0, row: I32 | None = None) -> I32:
        """Chunks from `node[chunk]` to `to[chunk]`."""
        if not len(chunk):
            return np.zeros(0, np.int32)
        framing = RDMA if net else reaching("store", self.costs.value("link.fraction"), ack=1)
        template = self.template("exchange", Kind.PUT, "exchange", "copy", framing, src=src, dst=dst, net=net)
        op = self.move(template, node[chunk], chunk, self.senders[node[chunk]], to[chunk], row=row)
        self.wait(op, after[node[chunk]])
        for side in SIDES[2:] if net else SIDES[:2]:
            self.traffic[side]["exchange"] += int(self.chunks.size[chunk].sum())
        return op
