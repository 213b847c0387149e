"""NCCL's rings (`nccl-ring`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.compute.collectives import NET_STEPS_US, PROTOCOLS, RING_PART, hop_us, ring_protocol, start_us
from dysharp.compute.operators import arch_of
from dysharp.errors import ConfigError, nearest
from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.chunks import VECTOR
from dysharp.systems.building.collectives.rings import NAMES, place_of, ring_program, rings_of
from dysharp.systems.building.collectives.trees import Trees, Way
from dysharp.systems.collectives.register import collective
from dysharp.workload.collective import Collective

TRAINS, BULK = "trains", "bulk"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of NCCL's rings.

    | option | meaning |
    |---|---|
    | `protocol` | "ll", "ll128", "simple", or "auto": the one that NCCL's tuner takes among rings |
    | `ops` | "trains": an op is a train of a link. "bulk": an op is what one step passes on, in one domain; few ops for many GiB, and no timeline |
    """

    protocol: str = "auto"
    ops: str = TRAINS

    def __post_init__(self) -> None:
        if self.ops not in (TRAINS, BULK):
            raise ConfigError(f"option nccl-ring.ops: found {self.ops!r}{nearest(self.ops, (TRAINS, BULK))}")


def place(work: Collective, cluster: Cluster, options: Options) -> int:
    """Place of a run's protocol in `PROTOCOLS`. Raises ConfigError for an unknown name."""
    passes = 2 if work.operation == "all-reduce" else 1
    return int(ring_protocol(cluster.own_gpu, passes, work.gpus, work.size)) if options.protocol == "auto" else place_of(options.protocol)


def says(work: Collective, cluster: Cluster, options: Options) -> tuple[str, ...]:
    """The protocol, where NCCL chooses it."""
    return (f"NCCL's tuner takes protocol {list(NAMES)[place(work, cluster, options)]}",) if options.protocol == "auto" else ()


@collective(
    "nccl-ring",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, src/device)",
    options=Options,
    operations=("all-reduce", "all-gather", "reduce-scatter", "broadcast"),
    domains=True,
    says=says,
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL's ring: at each step every GPU passes one share on to the next GPU; over several NVLink domains a ring per rail."""
    at, bulk = place(work, cluster, options), options.ops == BULK
    if bulk and (cluster.domains > 1 or work.operation == "broadcast"):
        where = "broadcast" if work.operation == "broadcast" else f"{cluster.domains} NVLink domains"
        raise ConfigError(f"option nccl-ring.ops: found 'bulk' with {where}, expected 'trains' (a chunk goes on when it has arrived)")
    return broadcast(work, cluster, at) if work.operation == "broadcast" else ring_program(work, cluster, PROTOCOLS[at], bulk=bulk)


def broadcast(work: Collective, cluster: Cluster, at: int) -> Program:
    """Chunks go around the rings from GPU 0 to the GPU before it."""
    gpu, protocol = cluster.own_gpu, PROTOCOLS[at]
    start, part = start_us(gpu, cluster.fitted, protocol), protocol.part
    way = Way(start, float(hop_us(gpu, protocol)), NET_STEPS_US[at], RING_PART[arch_of(gpu)] * part, part)
    rings = rings_of(cluster)
    parents = np.empty_like(rings)
    np.put_along_axis(parents, rings, np.roll(rings, 1, axis=1), axis=1)
    parents[:, 0] = -1
    chains = Trees(work, cluster, parents, way)
    chains.keep_root()
    chains.gather({}, VECTOR)
    return chains.build(chains.traffic)
