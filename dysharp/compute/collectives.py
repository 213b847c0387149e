"""NCCL collectives as rate forms: latency plus bytes over bandwidth, per algorithm (ring, NVLS) and protocol (LL, Simple).

These are rate forms and named so: they say what a library does, they do not derive it from ops. Sizes are nccl-tests sizes (all-gather:
gathered total, reduce-scatter: input total, all-reduce: buffer, alltoall: per-rank buffer), out of place unless said. Sources: NCCL
src/graph/tuning.cc (which protocols and algorithms exist); nccl#1083 (bytes of NVLS).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dysharp.compute.operators import Constants, arch_of
from dysharp.specs.gpu import Gpu

F64 = NDArray[np.float64]
STEPS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Ring passes: an all-reduce is a reduce-scatter and an all-gather."""
BASE_US, LOW_HOP_US, HOP_US = 8.4, 0.6, 1.9
"""Start of a collective, one hop over NVLink of small messages and of large ones (tuning.cc: ring base and hardware latencies)."""
NVLS_PART = {"hopper": 0.85, "blackwell": 0.74}
"""Rate of NVLS over that of plain stores (tuning.cc: nvlsEfficiency)."""
SYNC_GPUS = 8
"""GPUs of the flag exchange whose time is the constant."""
NVLS_FROM_GPUS = {"hopper": 5, "blackwell": 6}
"""All-reduce uses NVLS from this many GPUs on (nccl#2140)."""


def link_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """`n_bytes` out of (or into) one GPU by SM stores at the sustained part of the link rate."""
    return np.asarray(n_bytes, np.float64) / (1e3 * gpu.link_GBps * constants["link.fraction"])


def sync_us(gpu: Gpu, constants: Constants, n_gpus: ArrayLike = SYNC_GPUS) -> F64:
    """One exchange of flags between `n_gpus`: store, flight, poll, fence, and above all the wait for the last of them.

    The latest of n arrivals that scatter alike (launches, clocks, memory) comes sqrt(2 ln n) standard deviations behind the mean, the leading term
    for normal ones; the constant is the exchange of eight GPUs.
    """
    n = np.asarray(n_gpus, np.float64)
    return np.asarray(constants[f"{arch_of(gpu)}.sync_us"] * np.sqrt(np.log(n) / math.log(SYNC_GPUS)))


def collective_us(
    gpu: Gpu, constants: Constants, kind: str, n_gpus: ArrayLike, n_bytes: ArrayLike, *, nvls: bool | None = None, in_place: bool = False
) -> F64:
    """`kind` of "all_gather", "reduce_scatter", "all_reduce", "alltoall" over `n_gpus` of one NVLink domain.

    `nvls` forces (True) or forbids (False) the in-switch form of all-reduce; None lets the GPU count decide, as NCCL does. In place, no own
    chunk is copied.
    """
    n, size = np.asarray(n_gpus, np.float64), np.asarray(n_bytes, np.float64)
    if kind == "alltoall":
        return _alltoall_us(gpu, constants, n, size)
    own = 0.0 if in_place else constants["nccl.self_copy"]
    ring = _ring_us(gpu, constants, kind, n, size, own)
    if kind != "all_reduce" or nvls is False:
        return ring
    in_switch = np.minimum(_nvls_us(gpu, constants, n, size), _ring_us(gpu, constants, kind, n, size, own, protocols=("ll",)))
    return in_switch if nvls else np.where(n >= NVLS_FROM_GPUS[arch_of(gpu)], in_switch, ring)


def _ring_us(
    gpu: Gpu, c: Constants, kind: str, n: F64, size: F64, own: float, protocols: tuple[str, ...] = ("ll", "simple")
) -> F64:
    passes = STEPS[kind]
    # The own chunk is copied (or reduced) by the same channels, without crossing a link.
    moved = link_us(gpu, c, passes * size * (n - 1) / n + own * size / n)
    hops = passes * (n - 1)
    times = {
        "ll": BASE_US + hops * LOW_HOP_US + moved / c["nccl.ll_part"],
        "simple": BASE_US + c["nccl.simple_syncs"] * sync_us(gpu, c, n) + hops * HOP_US + moved,
    }
    best = np.full(np.broadcast_shapes(n.shape, size.shape), np.inf)
    for name in protocols:
        best = np.minimum(best, times[name])
    return best


def _nvls_us(gpu: Gpu, c: Constants, n: F64, size: F64) -> F64:
    """Each direction carries S(1 + 1/n): one multicast down, one reduced pull up (nccl#1083)."""
    return c["nccl.nvls_us"] + link_us(gpu, c, size * (1 + 1 / n)) / NVLS_PART[arch_of(gpu)]


def _alltoall_us(gpu: Gpu, c: Constants, n: F64, size: F64) -> F64:
    moved = link_us(gpu, c, size * (n - 1) / n + c["nccl.self_copy"] * size / n)
    return BASE_US + c["nccl.simple_syncs"] * sync_us(gpu, c, n) + moved
