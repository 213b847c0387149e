"""All-reduces by kernels that are not NCCL's, beyond the bars: in the switch (multimem) and between peers.

Which kernel ran follows from the measurement's system or from its library's own rule by size (`tables.toml`).
"""

import re
from operator import le, lt

from dysharp.base import F64, PS_PER_US, KiB, MiB, frozen_keywords
from dysharp.costs import allreduce
from dysharp.engine.burst.run import run_burst
from dysharp.measured.ep_kernels import cluster_of
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, check_cluster, family, gpu_of, number, whole
from dysharp.measured.measurements import TABLES
from dysharp.measured.predictions import hashable_constants
from dysharp.specs import Gpu, load_gpu
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.workload import even

LOAD_BYTES = 16  # bytes that one thread loads at a time
CONTRIB_THREADS = 1024  # per block, NCCL contrib/custom_algos
MOST_BYTES = 1 << 34
"""Largest number of bytes between all pairs of GPUs, because a Program has one op per train."""
BY_NCCL = "a kernel of NCCL"
BY_HOST = "the host's calls are in the time, and no constant has them"
COMPARED = {"<": lt, "<=": le}
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
    """The kernel that the measurement names, or that its library takes for so many bytes."""
    if "nccl" in m.system.lower():
        raise Unsupported(BY_NCCL)
    named = next((kernel for text, kernel in TABLES["allreduce_kernels"].items() if m.system.startswith(text)), None)
    if named is not None:
        return str(named)
    arch, what = load_gpu(gpu).arch, str(gpus)
    library = (rule for rule in TABLES["allreduce"] if m.system.startswith(tuple(rule["system"])) and rule["arch"] == arch)
    rule = next((rule for rule in library if what in rule), None)
    if rule is None:
        raise Unsupported("the measurement does not name its kernel")
    if rule["host"] and "eager" in str(m.config.get("kernel", "")):
        raise Unsupported(BY_HOST)
    steps = (step.split(maxsplit=3) for step in rule[what])
    kernel = next((kernel for sign, most, unit, kernel in steps if COMPARED[sign](n_bytes, float(most) * SIZES[unit])), "nccl")
    if kernel == "nccl":
        raise Unsupported(BY_NCCL)
    return str(kernel)
