"""CAIS and its ablations: loads and stores of GEMM kernels merge in the switch (arXiv 2605.05628)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.base.arrays import I32
from dysharp.program import Program, Tail
from dysharp.specs import Cluster
from dysharp.systems.building.tp.sublayer import Machine
from dysharp.systems.building.tp.ways import Ways
from dysharp.systems.collective_system import collective
from dysharp.workload.sublayer import SUB_LAYER, SubLayer

SOURCE = "https://arxiv.org/abs/2605.05628"
APART = ("loads", "reductions", "responses", "other")
"""Classes of `cais`: loads and reductions have virtual channels of their own."""
SHARED = ("responses", "other")
"""Classes without traffic control: loads, replies and reductions share channels."""
STAGES = 64 << 10
"""Bytes that an SM asks for ahead without throttling: four stages of 128 rows x 64 elements."""
THROTTLED = 1280 << 10
"""Most bytes that a throttled GPU has under way: the merge tables of all 32 ports (section VI)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of CAIS.

    | option | meaning |
    |---|---|
    | `prelaunch` | thread blocks of equal number start together on all GPUs |
    | `preaccess` | reductions of a tile wait until it has ended on every GPU |
    | `throttle` | a GPU has at most 1280 KiB of loads under way |
    | `chunk_bytes` | most bytes of a load or a reduction in this simulation |
    | `seed` | of launches and jitter |
    """

    prelaunch: bool = True
    preaccess: bool = True
    throttle: bool = True
    chunk_bytes: int = 16384
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Alone(Options):
    """The same without coordination."""

    prelaunch: bool = False
    preaccess: bool = False
    throttle: bool = False


def _build(work: SubLayer, cluster: Cluster, options: Options, channels: tuple[str, ...]) -> Ways:
    return Ways(work, cluster, Machine(seed=options.seed, chunk_bytes=options.chunk_bytes, channels=channels))


def _load(build: Ways, ready: I32, tail: Tail, second: I32, options: Options) -> None:
    window = THROTTLED if options.throttle else STAGES * build.slots
    build.gather_loaded(ready, tail, second, merged=True, window=window, together=options.prelaunch, throttle=options.throttle)


def _fused(work: SubLayer, cluster: Cluster, options: Options, channels: tuple[str, ...]) -> Program:
    """One pipeline: a block is normed when its sum is at home, and loaded when its home has told."""
    build = _build(work, cluster, options, channels)
    second = build.gemm2()
    done = build.gemm1(build.launch("kernel"), together=options.prelaunch)
    sums = build.reduce_merged(done, together=options.preaccess, throttle=options.throttle)
    rows = build.norm(build.home, build.blocks)
    build.wait(rows, sums, Tail.TILE_READY)
    flags = build.block_flags("ready", rows)
    _load(build, flags, Tail.TILE_READY, second, options)
    return build.build()


@collective("cais", source=SOURCE, options=Options, operations=(SUB_LAYER,), switch="it merges loads and sums there")
def cais(work: SubLayer, cluster: Cluster, options: Options) -> Program:
    """CAIS: merged loads and sums, coordinated thread blocks, one pipeline over both GEMMs, channels of their own."""
    return _fused(work, cluster, options, APART)


@collective("cais-partial", source=SOURCE, options=Options, operations=(SUB_LAYER,), switch="it merges loads and sums there")
def partial(work: SubLayer, cluster: Cluster, options: Options) -> Program:
    """CAIS without traffic control: loads, replies and reductions share virtual channels."""
    return _fused(work, cluster, options, SHARED)


@collective("cais-no-coord", source=SOURCE, options=Alone, operations=(SUB_LAYER,), switch="it merges loads and sums there")
def no_coord(work: SubLayer, cluster: Cluster, options: Options) -> Program:
    """CAIS without coordination of thread blocks: merging works as far as the table and the drift of GPUs allow."""
    return _fused(work, cluster, options, APART)


@collective("cais-base", source=SOURCE, options=Alone, operations=(SUB_LAYER,), switch="it merges loads and sums there")
def base(work: SubLayer, cluster: Cluster, options: Options) -> Program:
    """CAIS's instructions and merge unit alone: GEMM, norm and GEMM are kernels with barriers between them, and nothing is coordinated."""
    build = _build(work, cluster, options, SHARED)
    second = build.gemm2()
    done = build.gemm1(build.launch("gemm1"), together=options.prelaunch)
    sums = build.reduce_merged(done, together=options.preaccess, throttle=options.throttle)
    summed = build.joins("summed", build.gpus)
    build.wait(summed[build.home], sums, Tail.TILE_READY)
    begun = build.launch("norm", build.barrier("sums.end", summed))
    rows = build.norm(build.home, build.blocks)
    build.wait(rows, begun[build.home])
    normed = build.joins("normed", build.gpus)
    build.wait(normed[build.home], rows)
    begun = build.launch("gemm2", build.barrier("norm.end", normed))
    ready = np.repeat(begun[:, None], build.cuts.blocks, axis=1)
    _load(build, ready, Tail.OP_DONE, second, options)
    return build.build()
