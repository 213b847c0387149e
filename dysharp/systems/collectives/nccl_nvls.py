"""NCCL's NVLS (`nccl-nvls`). On one node NCCL uses it for all-reduces only; its all-gathers and reduce-scatters are rings.

Channels take turns at chunks, and all GPUs exchange flags once a turn. `costs.collectives.nvls_rounds` has the bytes of a turn and its time,
`nvls_loads` the loads that the threads of a GPU have under way. Two turns fill and empty the pipeline: they have no transfers here, because a chunk
is then copied inside its GPU.
"""

from __future__ import annotations

import numpy as np

from dysharp.base.units import PS_PER_US
from dysharp.costs.collectives import NVLS_PART, RING_PART, SIMPLE, nvls_loads, nvls_rounds, sync_us
from dysharp.costs.operators import arch_of
from dysharp.program import Program, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.collectives.kernels import Kernel
from dysharp.systems.building.collectives.steps import SUM, reaching
from dysharp.systems.collective_system import collective
from dysharp.workload.collective import Collective


@frozen
class Options:
    """Options of NCCL's NVLS; its chunks follow from the size.

    | option | values |
    |---|---|
    | `held` | whether a GPU has no more loads under way than NCCL's threads hold (`nvls_loads`); without it, all of a turn |
    """

    held: bool = True


@collective(
    "nccl-nvls",
    source="https://github.com/NVIDIA/nccl (src/transport/nvls.cc, src/enqueue.cc)",
    options=Options,
    operations=("all-reduce",),
    switch="it multicasts and adds there",
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL's NVLS all-reduce: every GPU pulls the sum of its part of a chunk and sends it to all, turn by turn."""
    gpu, m = cluster.own_gpu, cluster.fitted
    build = Kernel(work, cluster, nvls_loads(gpu, work.gpus) if options.held else 0)
    block, fill_us = (float(value) for value in nvls_rounds(gpu, m, work.gpus, work.size))
    build.store = reaching("store", RING_PART[arch_of(gpu)] * NVLS_PART[arch_of(gpu)], ack=1)
    hardware = build.b.hardware
    # The exchange is from end to end of a turn: a load and a store of the Program are parts of it.
    simulated = 4 * hardware.lat + hardware.responder + 2 * hardware.lat + hardware.ack
    flags = max(1, round(float(sync_us(gpu, m, work.gpus)) * PS_PER_US) - simulated)
    build.then(build.start("launch", round((SIMPLE.start_us + fill_us) * PS_PER_US)))
    size, share, waiters = build.chunks.size, build.chunks.share, build.issuers("turn", slots=1)
    before = np.cumsum(size) - size - np.array(work.first)[share]  # bytes of the share before the chunk
    turn = before * work.gpus // round(block)
    for number in range(int(turn.max(initial=0)) + 1):
        mine = np.flatnonzero(turn == number)
        exchange = build.delay("turn", flags, waiters)
        build.wait(np.tile(exchange, build.n), np.repeat(build.before, build.n))
        build.before = exchange
        node, pull = build.pull(share[mine], mine, SUM)
        node, store = build.multicast(node, mine, SUM, pull)
        build.then(build.join("turn.done", Batch(op=store, node=node)))
    return build.build(build.traffic)
