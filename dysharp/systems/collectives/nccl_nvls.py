"""NCCL's NVLS (`nccl-nvls`). On one node NCCL uses it for all-reduces only; its all-gathers and reduce-scatters are rings."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.turns import turns_program
from dysharp.systems.collectives.register import collective
from dysharp.workload.collective import Collective


@dataclass(frozen=True, slots=True)
class Options:
    """NCCL's NVLS has no options: its chunks follow from the size."""


@collective(
    "nccl-nvls",
    source="https://github.com/NVIDIA/nccl (src/transport/nvls.cc, src/enqueue.cc)",
    options=Options,
    operations=("all-reduce",),
    switch="it multicasts and adds there",
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """NCCL's NVLS all-reduce: every GPU pulls the sum of its part of a chunk and sends it to all, turn by turn."""
    return turns_program(work, cluster)
