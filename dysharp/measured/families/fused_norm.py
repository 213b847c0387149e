"""RMSNorm beside multimem all-reduces, in one kernel or behind them (TokenWeave), beyond the bars."""

from dysharp.base import frozen_keywords
from dysharp.costs import launch_us, memory_kernel_us
from dysharp.measured.families import Case, Constants, Measurement, family
from dysharp.measured.families.multimem import MultimemCase, vector_of
from dysharp.measured.families.multimem import program_us as allreduce_us
from dysharp.measured.families.operator import EVENTS
from dysharp.specs import load_gpu

PASSES = 4
"""Rows that the kernel moves for each token: the row and its residual, read and written (vLLM fused_add_rms_norm)."""
KINDS = {"rms_norm": (False, True), "allreduce_rms_norm_fused": (True, False), "allreduce_rms_norm": (True, True)}
"""Kind -> (whether it sums over GPUs, whether a kernel of its own norms)."""


@frozen_keywords
class _NormCase(Case):
    """`n_bytes`: of the rows that are normed. `summed`, `alone`: as in `KINDS`."""

    gpus: int
    n_bytes: int
    summed: bool
    alone: bool
    late: bool

    def effort(self) -> int:
        """KiB of all GPUs."""
        return self.gpus * self.n_bytes // 1024 if self.summed else 1


def _program_us(case: _NormCase, constants: Constants) -> float:
    """The all-reduce through the engine, and behind it the norm's kernel, where the norm has one. A fused norm of an eighth of the tokens hides.

    Without a graph the two events take what they take around other operators.
    """
    gpu = load_gpu(case.gpu)
    whole_us = (EVENTS - 1) * launch_us(gpu, constants) if case.late else 0.0
    if case.summed:
        sums = MultimemCase(gpu=case.gpu, shape=case.shape, operation="all-reduce", gpus=case.gpus, n_bytes=case.n_bytes, blocks=0, late=case.late)
        whole_us += allreduce_us(sums, constants)
    return whole_us + (float(memory_kernel_us(gpu, constants, PASSES * case.n_bytes)) if case.alone else 0.0)


@family("fused-norm", belongs=lambda m: m.kind in KINDS, program_us=_program_us)
def _case(m: Measurement) -> _NormCase:
    """The case of a latency."""
    gpu, gpus, size, late = vector_of(m)
    summed, alone = KINDS[m.kind]
    return _NormCase(gpu=gpu, gpus=gpus, n_bytes=size, summed=summed, alone=alone, late=late, shape=f"{m.kind} n={gpus}")
