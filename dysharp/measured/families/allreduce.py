"""All-reduces by kernels that are not NCCL's, beyond the bars: in the switch (multimem) and between peers.

Which kernel ran follows from the measurement's system or from its library's own rule by size. Sources of the rules:
vLLM csrc/custom_all_reduce.cuh and vllm/distributed/device_communicators (custom_all_reduce.py, symm_mem.py,
all_reduce_utils.py); SGLang custom_all_reduce_v2.py; TensorRT-LLM cpp/tensorrt_llm/common/customAllReduceUtils.h (best strategies without fusion,
4096 values per token).
"""

import re
from collections.abc import Mapping

from dysharp.base import F64, PS_PER_US, KiB, MiB, frozen_keywords
from dysharp.costs import allreduce
from dysharp.engine.burst.run import run_burst
from dysharp.measured.ep_kernels import cluster_of
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, check_cluster, family, gpu_of, number, whole
from dysharp.measured.predictions import hashable_constants
from dysharp.specs import Gpu, load_gpu
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.workload import even

LOAD_BYTES = 16  # bytes that one thread loads at a time
CONTRIB_THREADS = 1024  # per block, NCCL contrib/custom_algos
MOST_BYTES = 1 << 34
"""Largest number of bytes between all pairs of GPUs, because a Program has one op per train."""
NAMED = {
    "one-shot multimem.ld_reduce": "one-shot",
    "two-shot ld_reduce+multimem.st, LSA exit barrier": "two-shot",
    "two-shot ld_reduce+multimem.st, poison": "two-shot polled",
    "multimem (torch symm mem)": "torch multimem",
    "two-shot P2P (torch symm mem)": "torch two-shot",
    "custom 1-stage": "vllm one-stage",
    "custom 2-stage": "vllm two-stage",
}
"""Start of the column `system` -> kernel."""
VLLM_CUSTOM_BELOW = {"hopper": {2: 8 * MiB, 4: 8 * MiB, 6: 512 * KiB, 8: 256 * KiB}, "blackwell": {2: 2 * MiB, 4: 2 * MiB, 6: 1 * MiB, 8: 1 * MiB}}
VLLM_ONE_STAGE_BELOW = {2: 8 * MiB, 4: 512 * KiB, 6: 256 * KiB, 8: 256 * KiB}
VLLM_SYMMETRIC_TO = {
    "hopper": {2: 64 * MiB, 4: 32 * MiB, 6: 64 * MiB, 8: 64 * MiB},
    "blackwell": {2: 8 * MiB, 4: 32 * MiB, 6: 128 * MiB, 8: 128 * MiB},
}
"""Architecture -> GPUs -> bytes, with symmetric memory on."""
TRTLLM: Mapping[tuple[str, int], tuple[float, float, float]] = {
    ("hopper", 2): (16 * MiB, 0, 0),
    ("hopper", 4): (1 * MiB, 2 * MiB, 8 * MiB),
    ("hopper", 8): (MiB // 2, 2 * MiB, 4 * MiB),
    ("blackwell", 2): (16 * MiB, 0, 0),
    ("blackwell", 4): (4 * MiB, 8 * MiB, 16 * MiB),
}
"""(architecture, GPUs) -> one-shot up to so many bytes, two-shot from and to."""
SGLANG_PUSH = {"hopper": {2: 2 * MiB, 4: 384 * KiB, 8: 160 * KiB}, "blackwell": {2: 4 * MiB, 4: 2 * MiB, 8: 720 * KiB}}
"""Architecture -> GPUs -> bytes up to which every GPU stores its vector into its peers; above them two GPUs load whole vectors, others shares."""
SGLANG_MOST = 16 * MiB
BY_NCCL = "a kernel of NCCL"
BY_HOST = "the host's calls are in the time, and no constant has them"
SIZES = {"KiB": KiB, "MiB": MiB}


@frozen_keywords
class _AllReduceCase(Case):
    """`n_bytes` on each GPU by `kernel` of `costs.allreduce`.

    `in_flight`: largest number of bytes in flight of each load of a GPU; 0: no limit.
    """

    kernel: str
    gpus: int
    n_bytes: int
    in_flight: int

    def effort(self) -> int:
        """KiB of all GPUs."""
        return self.gpus * self.n_bytes // KiB


def _closed_us(case: _AllReduceCase, gpu: Gpu, constants: Constants) -> F64:
    """The kernel's steps one behind the other (`costs.allreduce`)."""
    return allreduce.kernel_allreduce_us(gpu, constants, case.kernel, case.gpus, case.n_bytes, case.in_flight)


def _program_us(case: _AllReduceCase, constants: Constants) -> float:
    """The Program that systems of the kernel run."""
    cluster = cluster_of(case.gpu, case.gpus, hashable_constants(constants))
    program = kernel_program(even("all-reduce", case.n_bytes, case.gpus), cluster, case.kernel, case.in_flight)
    return run_burst(program)[0].time_ps / PS_PER_US


@family("inswitch-allreduce", belongs=lambda m: m.kind == "inswitch_allreduce", closed_us=_closed_us, program_us=_program_us)
@family("custom-allreduce", belongs=lambda m: m.kind == "custom_allreduce", closed_us=_closed_us, program_us=_program_us)
def case(m: Measurement) -> _AllReduceCase:
    """The case of a latency."""
    gpu, gpus = gpu_of(m), whole(number(m, "gpus"), "GPUs")
    size = _vector_bytes(m)
    kernel = _kernel(m, gpu, gpus, size)
    check_cluster(gpu, gpus)
    if size % 2:
        raise Unsupported("an odd number of bytes, which no BF16 vector has")
    if gpus * gpus * size > MOST_BYTES:
        raise Unsupported("more than a million trains")
    in_flight = 0 if m.system.startswith("SGLang") else allreduce.IN_FLIGHT.get(kernel, 0)
    if "ctas" in m.config:
        in_flight = int(number(m, "ctas") * CONTRIB_THREADS * LOAD_BYTES)
    return _AllReduceCase(gpu=gpu, kernel=kernel, gpus=gpus, n_bytes=whole(size, "bytes"), in_flight=in_flight, shape=f"{kernel} n={gpus}")


def _vector_bytes(m: Measurement) -> float:
    """Bytes of the vector: a number, or a label such as "1.5MiB"."""
    if "size" not in m.config:
        return number(m, "bytes")
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([KM]iB)", str(m.config["size"]))
    if match is None:
        raise Unsupported("no size of the vector in config_json")
    return float(match[1]) * SIZES[match[2]]


def _kernel(m: Measurement, gpu: str, gpus: int, n_bytes: float) -> str:
    if "nccl" in m.system.lower():
        raise Unsupported(BY_NCCL)
    named = next((kernel for text, kernel in NAMED.items() if m.system.startswith(text)), None)
    if named is not None:
        return named
    arch = load_gpu(gpu).arch
    if m.system.startswith("SGLang") and gpus in SGLANG_PUSH.get(arch, {}):
        if "eager" in str(m.config.get("kernel", "")):
            raise Unsupported(BY_HOST)
        return _sglang(arch, gpus, n_bytes)
    if m.system.startswith("vLLM") and gpus in VLLM_CUSTOM_BELOW.get(arch, {}):
        if arch == "blackwell" and "eager" in str(m.config.get("kernel", "")):
            raise Unsupported(BY_HOST)
        return _vllm(arch, gpus, n_bytes)
    if m.system.startswith(("TRTLLM", "TensorRT-LLM")) and (arch, gpus) in TRTLLM:
        one, low, high = TRTLLM[arch, gpus]
        if n_bytes <= one:
            return "trtllm one-shot"
        if low <= n_bytes <= high:
            return "trtllm two-shot"
        raise Unsupported(BY_NCCL)
    raise Unsupported("the measurement does not name its kernel")


def _sglang(arch: str, gpus: int, n_bytes: float) -> str:
    if n_bytes <= SGLANG_PUSH[arch][gpus]:
        return "trtllm one-shot"
    if n_bytes <= SGLANG_MOST:
        return "vllm one-stage" if gpus == 2 else "vllm two-stage"
    raise Unsupported(BY_NCCL)


def _vllm(arch: str, gpus: int, n_bytes: float) -> str:
    if n_bytes < VLLM_CUSTOM_BELOW[arch][gpus]:
        return "vllm one-stage" if n_bytes < VLLM_ONE_STAGE_BELOW[gpus] else "vllm two-stage"
    if n_bytes <= VLLM_SYMMETRIC_TO[arch][gpus]:
        return "torch multimem" if gpus > 2 else "torch two-shot"
    raise Unsupported(BY_NCCL)
