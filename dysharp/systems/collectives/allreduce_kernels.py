"""All-reduces by kernels of frameworks: PyTorch's symmetric memory, vLLM, TensorRT-LLM."""

from functools import partial

from dysharp.costs.allreduce import IN_FLIGHT
from dysharp.program import Program, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.systems.collective_system import collective
from dysharp.workload.collective import Collective

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


@frozen
class Options:
    """The kernels have no options."""


def plan(work: Collective, cluster: Cluster, options: Options, *, kernel: str) -> Program:
    """An all-reduce by a framework's kernel."""
    return kernel_program(work, cluster, kernel, IN_FLIGHT.get(kernel, 0))


for _name, (_kernel, _source, _switch) in KERNELS.items():
    _plan = partial(plan, kernel=_kernel)
    _plan.__doc__ = f'All-reduce by the kernel "{_kernel}".'
    collective(_name, source=_source, options=Options, operations=("all-reduce",), switch=_switch)(_plan)
