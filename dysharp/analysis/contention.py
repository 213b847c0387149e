"""Time that GEMMs lose because communication kernels hold SMs at the same time.

The engine simulates shared memory bandwidth (docs/design/0007), but not shared SMs: in the real forms communication has
pools of its own, and GEMM tiles have all SMs (`systems.building.experts`). This assumption is right where the kernels of a GPU run one after the
other, as in every forward pass. In a backward pass weight gradients run beside Combine and cannot use the
SMs of Combine.
"""

from dataclasses import dataclass

import numpy as np

from dysharp.analysis.intervals import union_ps
from dysharp.arrays import I64
from dysharp.program.operators import Nature
from dysharp.program.tables import Kind, Program
from dysharp.program.trace import Trace
from dysharp.units import ps_to_us


@dataclass(frozen=True, slots=True)
class Overlap:
    """Times of one GPU in ps: GEMMs beside communication kernels, end of the last kernel, end of the last GEMM."""

    shared_ps: int
    kernels_end_ps: int
    gemms_end_ps: int


def sm_contention_us(program: Program, trace: Trace, n_sm: int, n_sms: int) -> float:
    """Delay of the layer's end in us when communication kernels keep `n_sm` of a GPU's `n_sms` SMs while they run.

    A kernel keeps its SMs from its first to its last DELAY. The engine gave all SMs to the GEMMs beside the kernel. The
    GEMMs repeat the work of `n_sm` SMs: on the free SMs until the kernel ends, then on all SMs. GEMMs are assumed to
    fill the SMs, so the result is an upper bound.
    """
    if not 0 < n_sm <= n_sms:
        return 0.0
    ends = [trace.time_ps]
    for gpu in range(program.n_nodes):
        overlap = overlap_of(program, trace, gpu)
        ends.append(overlap.gemms_end_ps + made_up_ps(overlap, n_sm, n_sms))
    return ps_to_us(max(ends) - trace.time_ps)


def made_up_ps(overlap: Overlap, n_sm: int, n_sms: int) -> int:
    """Time in ps in which the GEMMs of a GPU do the work of the `n_sm` SMs that the kernels kept."""
    missing = n_sm * overlap.shared_ps
    until = max(0, overlap.kernels_end_ps - overlap.gemms_end_ps)
    free = n_sms - n_sm
    if missing <= until * free:
        return -(-missing // free) if missing else 0
    return until + -(-(missing - until * free) // n_sms)


def overlap_of(program: Program, trace: Trace, gpu: int) -> Overlap:
    """The times of `gpu`: GEMMs beside communication, and the ends of both."""
    own = np.flatnonzero(program.ops.node == gpu)
    template = program.ops.template[own]
    gemms = own[np.array([t.kind == Kind.COMPUTE for t in program.templates], np.bool_)[template]]
    start, end = [], []
    for name in program.with_nature(Nature.COMMUNICATION):
        ops = own[np.array([t.operator == name and t.kind == Kind.DELAY for t in program.templates], np.bool_)[template]]
        if len(ops):
            start.append(int(trace.start[ops].min()))
            end.append(int(trace.done[ops].max()))
    kernels = np.array(start, np.int64), np.array(end, np.int64)
    running = trace.start[gemms], trace.done[gemms]
    return Overlap(_common_ps(kernels, running), max(end, default=0), int(trace.done[gemms].max(initial=0)))


def _common_ps(one: tuple[I64, I64], two: tuple[I64, I64]) -> int:
    """Length of the intersection of two unions of intervals (starts, ends)."""
    both = union_ps(np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]]))
    return union_ps(*one) + union_ps(*two) - both
