"""All-reduces, all-gathers and reduce-scatters by multimem kernels on symmetric memory, beyond the bars: Programs of `nvls-two-shot`."""

from dysharp.base import PS_PER_US, KiB, frozen_keywords
from dysharp.engine.burst.run import run_burst
from dysharp.measured.ep_kernels import cluster_of
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, check_cluster, family, gpu_of, number, whole
from dysharp.measured.predictions import hashable_constants
from dysharp.systems.collectives import get_collective
from dysharp.workload import even

MOST_BYTES = 1 << 33
"""Largest number of bytes of all GPUs, because a Program has one op per train."""
OPERATIONS = {f"multimem_{name.replace('-', '_')}": name for name in ("all-reduce", "all-gather", "reduce-scatter")}
"""Kind -> operation of a Collective."""


@frozen_keywords
class MultimemCase(Case):
    """A collective of `n_bytes`, as nccl-tests counts them, with `blocks` thread blocks (0: not known, enough for the links).

    `late`: something else ran on every GPU before each call, so the GPUs come at different times.
    """

    operation: str
    gpus: int
    n_bytes: int
    blocks: int
    late: bool

    def effort(self) -> int:
        """KiB of all GPUs."""
        return self.gpus * self.n_bytes // KiB


def program_us(case: MultimemCase, constants: Constants) -> float:
    """All bytes through the engine."""
    one = get_collective("nvls-two-shot")
    work, cluster = even(case.operation, case.n_bytes, case.gpus), cluster_of(case.gpu, case.gpus, hashable_constants(constants))
    return run_burst(one.plan(work, cluster, one.options(blocks=case.blocks, late=case.late)))[0].time_ps / PS_PER_US


def vector_of(m: Measurement) -> tuple[str, int, int, bool]:
    """GPU, number of GPUs, bytes, and whether GPUs may be late."""
    gpu, gpus, size = gpu_of(m), whole(number(m, "gpus"), "GPUs"), whole(number(m, "bytes"), "bytes")
    check_cluster(gpu, gpus)
    if gpus * size > MOST_BYTES:
        raise Unsupported("more than a million trains")
    return gpu, gpus, size, "graph" not in str(m.config.get("timing", "")).lower()


@family("multimem", belongs=lambda m: m.kind in OPERATIONS, program_us=program_us)
def _case(m: Measurement) -> MultimemCase:
    """The case of a latency."""
    gpu, gpus, size, late = vector_of(m)
    if size % 2:
        raise Unsupported("an odd number of bytes in BF16 elements")
    operation = OPERATIONS[m.kind]
    blocks = whole(number(m, "ctas"), "blocks") if "ctas" in m.config else 0
    return MultimemCase(gpu=gpu, operation=operation, gpus=gpus, n_bytes=size, blocks=blocks, late=late, shape=f"{operation} n={gpus}")
