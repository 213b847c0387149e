"""SMs that communication kernels take from GEMMs that run at once on a GPU. Memory bandwidth that both take is a server of the engine
(docs/design/0007).

In the real forms an SM channel has a pool of its own and GEMM tiles have all SMs (`systems.experts`). That is right where a GPU's kernels run
one after the other, as in every forward pass. In a backward pass weight gradients run beside Combine, and its SMs are missing there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.intervals import union_ps
from dysharp.program.tables import Kind, Program
from dysharp.program.trace import Trace
from dysharp.units import ps_to_us

I64 = NDArray[np.int64]
KERNELS = ("dispatch", "combine")


@dataclass(frozen=True, slots=True)
class Beside:
    """One GPU, in ps: how long GEMMs run beside communication kernels, when the last of both end."""

    shared_ps: int
    kernels_end_ps: int
    gemms_end_ps: int


def sm_contention_us(program: Program, trace: Trace, n_sm: int, n_sms: int) -> float:
    """By how much the layer ends later when the communication kernels keep `n_sm` of a GPU's `n_sms` SMs while they run.

    A kernel keeps its SMs from the first to the last of what they do for it (its DELAYs). GEMMs that ran beside it had all SMs and have to make
    up for `n_sm` of them: on the others until the kernel ends, on all behind it. GEMMs are taken to fill the SMs, so this is the most it can be.
    """
    if not 0 < n_sm <= n_sms:
        return 0.0
    ends = [trace.time_ps]
    for gpu in range(program.n_nodes):
        found = beside(program, trace, gpu)
        ends.append(found.gemms_end_ps + made_up_ps(found, n_sm, n_sms))
    return ps_to_us(max(ends) - trace.time_ps)


def made_up_ps(found: Beside, n_sm: int, n_sms: int) -> int:
    """How long a GPU's GEMMs take to make up for `n_sm` SMs that they did not have while they ran beside kernels."""
    missing = n_sm * found.shared_ps
    until = max(0, found.kernels_end_ps - found.gemms_end_ps)
    free = n_sms - n_sm
    if missing <= until * free:
        return -(-missing // free) if missing else 0
    return until + -(-(missing - until * free) // n_sms)


def beside(program: Program, trace: Trace, gpu: int) -> Beside:
    """What of `gpu`'s GEMMs ran beside its Dispatch or Combine."""
    mine = np.flatnonzero(program.ops.node == gpu)
    template = program.ops.template[mine]
    gemms = mine[np.array([t.kind == Kind.COMPUTE for t in program.templates], np.bool_)[template]]
    start, end = [], []
    for name in KERNELS:
        ops = mine[np.array([t.operator == name and t.kind == Kind.DELAY for t in program.templates], np.bool_)[template]]
        if len(ops):
            start.append(int(trace.start[ops].min()))
            end.append(int(trace.done[ops].max()))
    kernels = np.array(start, np.int64), np.array(end, np.int64)
    running = trace.start[gemms], trace.done[gemms]
    return Beside(_common_ps(kernels, running), max(end, default=0), int(trace.done[gemms].max(initial=0)))


def _common_ps(one: tuple[I64, I64], two: tuple[I64, I64]) -> int:
    """Length of what the unions of two sets of intervals (starts, ends) have in common."""
    both = union_ps(np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]]))
    return union_ps(*one) + union_ps(*two) - both
