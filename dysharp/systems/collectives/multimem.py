"""Kernels of frameworks as lists of steps: through the switch (multimem), and all-reduces between peers.

| system | kernels |
|---|---|
| `nvls-one-shot` | in one shot: NCCL's contrib kernel |
| `nvls-two-shot` | in two shots: PyTorch's symmetric memory, TokenWeave, NCCL's contrib kernels |
| `nvls-v` | with variable counts: Megatron-Core's NVLSAllGatherVDispatcher |
| `KERNELS` | PyTorch's symmetric memory, vLLM, TensorRT-LLM |
"""

from functools import partial

from dysharp.base import ConfigError
from dysharp.costs.allreduce import IN_FLIGHT
from dysharp.program import Program, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.systems.collective_system import NoOptions, check_range, collective
from dysharp.workload import Collective

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter")
MOST_BLOCKS = 1024
BLOCK_BYTES = 1024 * 16
"""Bytes under way of a block: 16 B for each of its 1024 threads."""


@frozen
class _OneShot:
    """Options of the kernel.

    | option | meaning |
    |---|---|
    | `blocks` | thread blocks of 1024 threads; a thread waits for its 16 bytes before it asks for more (PyTorch: at most 8); 0: no limit |
    """

    blocks: int = 0

    def __post_init__(self) -> None:
        check_range("nvls-one-shot.blocks", self.blocks, MOST_BLOCKS)


@collective(
    "nvls-one-shot",
    source="https://github.com/NVIDIA/nccl (contrib/custom_algos/allreduce)",
    options=_OneShot,
    operations=("all-reduce",),
    switch="it adds there",
)
def _one_shot(work: Collective, cluster: Cluster, options: _OneShot) -> Program:
    """multimem: every GPU pulls the sum of the whole vector by `multimem.ld_reduce`; no GPU waits for another."""
    return kernel_program(work, cluster, "one-shot", options.blocks * BLOCK_BYTES)


@frozen
class _TwoShot:
    """Options of multimem kernels in two shots.

    | option | meaning |
    |---|---|
    | `blocks` | thread blocks of 1024 threads; a thread waits for its 16 bytes before it asks for more (PyTorch: at most 8); 0: no limit |
    | `late` | GPUs come at different times, so the first flags wait for the last one; False: in step, as in a replayed CUDA graph |
    """

    blocks: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        check_range("nvls-two-shot.blocks", self.blocks, MOST_BLOCKS)


@collective(
    "nvls-two-shot",
    source="https://github.com/pytorch/pytorch (CUDASymmetricMemoryOps.cu), https://github.com/microsoft/tokenweave",
    options=_TwoShot,
    operations=OPERATIONS,
    switch="it multicasts and adds there",
)
def _two_shot(work: Collective, cluster: Cluster, options: _TwoShot) -> Program:
    """multimem: every GPU pulls the sum of its share by `multimem.ld_reduce`, or sends its share to all by `multimem.st`, or both."""
    return kernel_program(work, cluster, f"multimem {work.operation}", options.blocks * BLOCK_BYTES, late=options.late)


@frozen
class _Variable:
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
    options=_Variable,
    operations=("all-gather", "reduce-scatter"),
    switch="it multicasts and adds there",
)
def _variable(work: Collective, cluster: Cluster, options: _Variable) -> Program:
    """multimem with a thread block per token and one barrier: behind the stores of an all-gather, before the loads of a reduce-scatter."""
    row = options.row_bytes // work.element_bytes * work.element_bytes
    return kernel_program(work, cluster, f"megatron {work.operation}", options.blocks * (row or BLOCK_BYTES), most=row)


_TORCH, _VLLM = "https://github.com/pytorch/pytorch (CUDASymmetricMemoryOps.cu)", "https://github.com/vllm-project/vllm (csrc/custom_all_reduce.cuh)"
_TRTLLM = "https://github.com/NVIDIA/TensorRT-LLM (allReduceFusionKernels.cu)"
KERNELS = {
    "allreduce-torch-multimem": ("torch multimem", _TORCH, "it multicasts and adds there"),
    "allreduce-torch-two-shot": ("torch two-shot", _TORCH, ""),
    "allreduce-vllm-one-stage": ("vllm one-stage", _VLLM, ""),
    "allreduce-vllm-two-stage": ("vllm two-stage", _VLLM, ""),
    "allreduce-trtllm-one-shot": ("trtllm one-shot", _TRTLLM, ""),
    "allreduce-trtllm-two-shot": ("trtllm two-shot", _TRTLLM, ""),
}
"""System -> (kernel of `costs.allreduce.KERNELS`, source, what the switch does)."""


def plan(work: Collective, cluster: Cluster, options: NoOptions, *, kernel: str) -> Program:
    """An all-reduce by a framework's kernel."""
    return kernel_program(work, cluster, kernel, IN_FLIGHT.get(kernel, 0))


for _name, (_kernel, _source, _switch) in KERNELS.items():
    _plan = partial(plan, kernel=_kernel)
    _plan.__doc__ = f'All-reduce by the kernel "{_kernel}".'
    collective(_name, source=_source, operations=("all-reduce",), switch=_switch)(_plan)
