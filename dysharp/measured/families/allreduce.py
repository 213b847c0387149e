"""Measured all-reduces by kernels beside NCCL's (families beyond the bars): which kernel ran, from the row or from its library's own rule by size.

Sources of the rules: vLLM csrc/custom_all_reduce.cuh and vllm/distributed/device_communicators (custom_all_reduce.py, symm_mem.py,
all_reduce_utils.py); TensorRT-LLM cpp/tensorrt_llm/common/customAllReduceUtils.h (best strategies without fusion, 4096 values per token).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dysharp.analysis.measured import Measurement
from dysharp.analysis.queries import Query, Unsupported, gpu_of, number, us_per_unit
from dysharp.specs.gpu import load_gpu

KIB, MIB = 1 << 10, 1 << 20
LOAD_BYTES = 16  # of one thread at a time
CONTRIB_THREADS = 1024  # per block, NCCL contrib/custom_algos
VLLM_IN_FLIGHT = 36 * 512 * LOAD_BYTES  # blocks and threads of vLLM's kernels
NAMED = {
    "one-shot multimem.ld_reduce": "one-shot",
    "two-shot ld_reduce+multimem.st, LSA exit barrier": "two-shot",
    "two-shot ld_reduce+multimem.st, poison": "two-shot polled",
    "multimem (torch symm mem)": "torch multimem",
    "two-shot P2P (torch symm mem)": "torch two-shot",
    "custom 1-stage": "vllm one-stage",
    "custom 2-stage": "vllm two-stage",
}
"""Start of the system column -> kernel."""
VLLM_CUSTOM_BELOW = {2: 8 * MIB, 4: 8 * MIB, 6: 512 * KIB, 8: 256 * KIB}
VLLM_ONE_STAGE_BELOW = {2: 8 * MIB, 4: 512 * KIB, 6: 256 * KIB, 8: 256 * KIB}
VLLM_SYMMETRIC_TO = {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB}
"""Of Hopper, with symmetric memory on, by GPUs."""
TRTLLM: Mapping[tuple[str, int], tuple[float, float, float]] = {
    ("hopper", 2): (16 * MIB, 0, 0),
    ("hopper", 4): (1 * MIB, 2 * MIB, 8 * MIB),
    ("hopper", 8): (MIB // 2, 2 * MIB, 4 * MIB),
    ("blackwell", 2): (16 * MIB, 0, 0),
    ("blackwell", 4): (4 * MIB, 8 * MIB, 16 * MIB),
}
"""(architecture, GPUs) -> one-shot up to so many bytes, two-shot from and to."""
BY_NCCL = "a kernel of NCCL"
SIZES = {"KiB": KIB, "MiB": MIB}


def allreduce(row: Measurement) -> Query:
    """One all-reduce of a kernel of `compute.allreduce.KERNELS`."""
    gpu, n = gpu_of(row), number(row, "gpus")
    n_bytes = vector_bytes(row)
    kernel = _kernel(row, gpu, round(n), n_bytes)
    in_flight = 0.0
    if kernel.startswith("vllm"):
        in_flight = VLLM_IN_FLIGHT
    elif "ctas" in row.config:
        in_flight = number(row, "ctas") * CONTRIB_THREADS * LOAD_BYTES
    numbers = {"gpus": n, "bytes": n_bytes, "in_flight": in_flight}
    return Query("kernel_allreduce", gpu, (kernel,), numbers, 0.0, us_per_unit(row), shape=f"{kernel} n={n:g}")


def vector_bytes(row: Measurement) -> float:
    """Bytes of the vector: a number, or a label such as "1.5MiB"."""
    if "size" not in row.config:
        return number(row, "bytes")
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([KM]iB)", str(row.config["size"]))
    if found is None:
        raise Unsupported("no size of the vector in config_json")
    return float(found[1]) * SIZES[found[2]]


def _kernel(row: Measurement, gpu: str, n: int, n_bytes: float) -> str:
    if "nccl" in row.system.lower():
        raise Unsupported(BY_NCCL)
    named = next((kernel for text, kernel in NAMED.items() if row.system.startswith(text)), None)
    if named is not None:
        return named
    arch = load_gpu(gpu).arch
    if row.system.startswith("vLLM") and arch == "hopper" and n in VLLM_CUSTOM_BELOW:
        return _vllm(n, n_bytes)
    if row.system.startswith("TRTLLM") and (arch, n) in TRTLLM:
        one, low, high = TRTLLM[arch, n]
        if n_bytes <= one:
            return "trtllm one-shot"
        if low <= n_bytes <= high:
            return "trtllm two-shot"
        raise Unsupported(BY_NCCL)
    raise Unsupported("not said which kernel ran")


def _vllm(n: int, n_bytes: float) -> str:
    if n_bytes < VLLM_CUSTOM_BELOW[n]:
        return "vllm one-stage" if n_bytes < VLLM_ONE_STAGE_BELOW[n] else "vllm two-stage"
    if n_bytes <= VLLM_SYMMETRIC_TO[n]:
        return "torch multimem" if n > 2 else "torch two-shot"
    raise Unsupported(BY_NCCL)
