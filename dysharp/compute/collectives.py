"""NCCL collectives as rate forms: latency plus bytes over bandwidth, by algorithm (ring, NVLS), protocol (LL, Simple).

A rate form describes the times of a library. It does not derive them from ops. Sizes are those of nccl-tests, and
collectives are out of place by default:

| collective | size |
|---|---|
| all-gather | gathered total |
| reduce-scatter | input total |
| all-reduce | buffer |
| alltoall | buffer per rank |

Sources: NCCL src/graph/tuning.cc (protocols and algorithms); nccl#1083 (bytes of NVLS).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dysharp.compute.operators import Constants, arch_of
from dysharp.specs.gpu import Gpu

F64 = NDArray[np.float64]
STEPS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Passes around the ring. An all-reduce is a reduce-scatter and an all-gather."""
BASE_US, LOW_HOP_US, HOP_US = 8.4, 0.6, 1.9
"""Start of a collective; one NVLink hop with LL; one with Simple (tuning.cc: ring base and hardware latencies)."""
NVLS_PART = {"hopper": 0.85, "blackwell": 0.74}
"""Rate of NVLS divided by the rate of plain stores (tuning.cc: nvlsEfficiency)."""
SYNC_GPUS = 8
"""The constant `ARCH.sync_us` is the time of a flag exchange between this number of GPUs."""
NVLS_FROM_GPUS = {"hopper": 5, "blackwell": 6}
"""Least number of GPUs for which all-reduce uses NVLS (nccl#2140)."""


def link_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """Time of `n_bytes` out of (or into) one GPU by SM stores, at the sustained part of the link rate."""
    return np.asarray(n_bytes, np.float64) / (1e3 * gpu.link_GBps * constants["link.fraction"])


def sync_us(gpu: Gpu, constants: Constants, n_gpus: ArrayLike = SYNC_GPUS) -> F64:
    """One exchange of flags between `n_gpus`: store, flight, poll, fence, and mostly the wait for the last GPU.

    The arrivals of n GPUs scatter alike (launches, clocks, memory). The last of n normal arrivals comes about
    sqrt(2 ln n) standard deviations after the mean. The constant is the exchange between eight GPUs.
    """
    n = np.asarray(n_gpus, np.float64)
    return np.asarray(constants[f"{arch_of(gpu)}.sync_us"] * np.sqrt(np.log(n) / math.log(SYNC_GPUS)))


def collective_us(
    gpu: Gpu, constants: Constants, kind: str, n_gpus: ArrayLike, n_bytes: ArrayLike, *, nvls: bool | None = None, in_place: bool = False
) -> F64:
    """Time in microseconds of a collective over `n_gpus` of one NVLink domain.

    `kind`: "all_gather", "reduce_scatter", "all_reduce" or "alltoall". `nvls`: True forces the in-switch form of
    all-reduce, False forbids it, None lets the number of GPUs decide, as NCCL does. `in_place`: the GPU does not copy
    its own chunk.
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
    # The same NCCL channels copy (or reduce) the own chunk, which crosses no link.
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
    """Each direction carries S(1 + 1/n) bytes: one multicast down, one reduced pull up (nccl#1083)."""
    return c["nccl.nvls_us"] + link_us(gpu, c, size * (1 + 1 / n)) / NVLS_PART[arch_of(gpu)]


def _alltoall_us(gpu: Gpu, c: Constants, n: F64, size: F64) -> F64:
    moved = link_us(gpu, c, size * (n - 1) / n + c["nccl.self_copy"] * size / n)
    return BASE_US + c["nccl.simple_syncs"] * sync_us(gpu, c, n) + moved
