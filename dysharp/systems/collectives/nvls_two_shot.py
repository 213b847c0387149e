"""multimem kernels in two shots (`nvls-two-shot`): PyTorch's symmetric memory, TokenWeave, NCCL's contrib kernels."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.systems.collectives.register import check_range, collective
from dysharp.workload.collective import Collective

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter")
MOST_BLOCKS = 1024
BLOCK_BYTES = 1024 * 16
"""Bytes under way of a block: 16 B for each of its 1024 threads."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of multimem kernels in two shots.

    | option | meaning |
    |---|---|
    | `blocks` | thread blocks of 1024 threads; a thread waits for its 16 bytes before it asks for more; 0: enough for the links |
    | `late` | GPUs come at different times, so the first flags wait for the last one; False: in step, as in a replayed CUDA graph |
    """

    blocks: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        check_range("nvls-two-shot.blocks", self.blocks, MOST_BLOCKS)


@collective(
    "nvls-two-shot",
    source="https://github.com/pytorch/pytorch (CUDASymmetricMemoryOps.cu), https://github.com/microsoft/tokenweave",
    options=Options,
    operations=OPERATIONS,
    switch="it multicasts and adds there",
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """multimem: every GPU pulls the sum of its share by `multimem.ld_reduce`, or sends its share to all by `multimem.st`, or both."""
    return kernel_program(work, cluster, f"multimem {work.operation}", options.blocks * BLOCK_BYTES, late=options.late)
