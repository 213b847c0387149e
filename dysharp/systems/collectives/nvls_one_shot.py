"""multimem in one shot (`nvls-one-shot`): NCCL's contrib kernel."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.systems.collectives.nvls_two_shot import BLOCK_BYTES, MOST_BLOCKS
from dysharp.systems.collectives.register import check_range, collective
from dysharp.workload.collective import Collective


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the kernel.

    | option | meaning |
    |---|---|
    | `blocks` | thread blocks of 1024 threads; a thread waits for its 16 bytes before it asks for more; 0: enough for the links |
    """

    blocks: int = 0

    def __post_init__(self) -> None:
        check_range("nvls-one-shot.blocks", self.blocks, MOST_BLOCKS)


@collective(
    "nvls-one-shot",
    source="https://github.com/NVIDIA/nccl (contrib/custom_algos/allreduce)",
    options=Options,
    operations=("all-reduce",),
    switch="it adds there",
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """multimem: every GPU pulls the sum of the whole vector by `multimem.ld_reduce`; no GPU waits for another."""
    return kernel_program(work, cluster, "one-shot", options.blocks * BLOCK_BYTES)
