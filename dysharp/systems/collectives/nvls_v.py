"""multimem with variable counts (`nvls-v`): Megatron-Core's NVLSAllGatherVDispatcher."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.errors import ConfigError
from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.systems.collectives.nvls_two_shot import BLOCK_BYTES, MOST_BLOCKS
from dysharp.systems.collectives.register import check_range, collective
from dysharp.workload.collective import Collective


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the kernels.

    | option | meaning |
    |---|---|
    | `row_bytes` | bytes of a token, which one thread block moves; at most 16 KiB; 0: 16 KiB |
    | `blocks` | thread blocks under way; 0: enough for the links |
    """

    row_bytes: int = 0
    blocks: int = 0

    def __post_init__(self) -> None:
        check_range("nvls-v.row_bytes", self.row_bytes, BLOCK_BYTES)
        check_range("nvls-v.blocks", self.blocks, MOST_BLOCKS)
        if 0 < self.row_bytes < 4:
            raise ConfigError(f"option nvls-v.row_bytes: found {self.row_bytes}, expected 0 or at least the 4 B of an element")


@collective(
    "nvls-v",
    source="https://github.com/NVIDIA/Megatron-LM (megatron/core/inference/communication/torch_symm_triton/variable_collectives.py)",
    options=Options,
    operations=("all-gather", "reduce-scatter"),
    switch="it multicasts and adds there",
)
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """multimem with a thread block per token and one barrier: behind the stores of an all-gather, before the loads of a reduce-scatter."""
    row = options.row_bytes // work.element_bytes * work.element_bytes
    return kernel_program(work, cluster, f"megatron {work.operation}", options.blocks * (row or BLOCK_BYTES), most=row)
