"""All-reduces by kernels of frameworks: PyTorch's symmetric memory, vLLM, TensorRT-LLM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.systems.collectives.register import collective
from dysharp.workload.collective import Collective

VLLM_IN_FLIGHT = 36 * 512 * 16
"""Bytes that the blocks and threads of vLLM's kernels have under way."""
_TORCH, _VLLM = "https://github.com/pytorch/pytorch (CUDASymmetricMemoryOps.cu)", "https://github.com/vllm-project/vllm (csrc/custom_all_reduce.cuh)"
_TRTLLM = "https://github.com/NVIDIA/TensorRT-LLM (allReduceFusionKernels.cu)"
KERNELS = {
    "allreduce-torch-multimem": ("torch multimem", _TORCH, 0, "it multicasts and adds there"),
    "allreduce-torch-two-shot": ("torch two-shot", _TORCH, 0, ""),
    "allreduce-vllm-one-stage": ("vllm one-stage", _VLLM, VLLM_IN_FLIGHT, ""),
    "allreduce-vllm-two-stage": ("vllm two-stage", _VLLM, VLLM_IN_FLIGHT, ""),
    "allreduce-trtllm-one-shot": ("trtllm one-shot", _TRTLLM, 0, ""),
    "allreduce-trtllm-two-shot": ("trtllm two-shot", _TRTLLM, 0, ""),
}
"""System -> (kernel of `compute.allreduce.KERNELS`, source, bytes in flight, what the switch does)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The kernels have no options."""


def plan(work: Collective, cluster: Cluster, options: Options, *, kernel: str, in_flight: int) -> Program:
    """An all-reduce by a framework's kernel."""
    return kernel_program(work, cluster, kernel, in_flight)


for _name, (_kernel, _source, _in_flight, _switch) in KERNELS.items():
    _plan = partial(plan, kernel=_kernel, in_flight=_in_flight)
    _plan.__doc__ = f'All-reduce by the kernel "{_kernel}".'
    collective(_name, source=_source, options=Options, operations=("all-reduce",), switch=_switch)(_plan)
