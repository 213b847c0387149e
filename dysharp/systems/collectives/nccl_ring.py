"""NCCL's rings (`nccl-ring`)."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.compute.collectives import PROTOCOLS, Protocol, ring_protocol
from dysharp.errors import ConfigError, nearest
from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.rings import NAMES, ring_program
from dysharp.systems.collectives.register import collective
from dysharp.workload.collective import Collective

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of NCCL's rings.

    | option | meaning |
    |---|---|
    | `protocol` | "ll", "ll128", "simple", or "auto": the one that NCCL's tuner takes among rings |
    """

    protocol: str = "auto"


def protocol_of(work: Collective, cluster: Cluster, options: Options) -> Protocol:
    """The protocol of a run. Raises ConfigError for an unknown name."""
    if options.protocol == "auto":
        passes = 2 if work.operation == "all-reduce" else 1
        return PROTOCOLS[int(ring_protocol(cluster.own_gpu, passes, work.gpus, work.size))]
    if options.protocol not in NAMES:
        raise ConfigError(f"protocol: found {options.protocol!r}{nearest(options.protocol, ('auto', *NAMES))}")
    return NAMES[options.protocol]


def says(work: Collective, cluster: Cluster, options: Options) -> tuple[str, ...]:
    """The protocol, where NCCL chooses it."""
    chosen = protocol_of(work, cluster, options)
    name = next(name for name, one in NAMES.items() if one is chosen)
    return (f"NCCL's tuner takes protocol {name.upper() if chosen is not NAMES['simple'] else 'Simple'}",) if options.protocol == "auto" else ()


@collective(
    "nccl-ring",
    source="https://github.com/NVIDIA/nccl (src/graph/tuning.cc, src/device)",
    options=Options,
    operations=OPERATIONS,
    domains=True,
    says=says,
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL's ring: at each step every GPU passes one share on to the next GPU; over several NVLink domains a ring per rail."""
    return ring_program(work, cluster, protocol_of(work, cluster, options))
