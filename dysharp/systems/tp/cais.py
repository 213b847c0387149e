"""CAIS and its ablations: loads and stores of GEMM kernels merge in the switch (arXiv 2605.05628)."""

import numpy as np

from dysharp.program import I32, Tail, frozen
from dysharp.systems.building.tp.ways import Ways, sub_layer
from dysharp.systems.tp.nvls import norm_own

SOURCE = "https://arxiv.org/abs/2605.05628"
APART = ("loads", "reductions", "responses", "other")
"""Classes of `cais`: loads and reductions have virtual channels of their own."""
SHARED = ("responses", "other")
"""Classes without traffic control: loads, replies and reductions share channels."""
MERGES = "it merges loads and sums there"
STAGES = 64 << 10
"""Bytes that an SM asks for ahead without throttling: four stages of 128 rows x 64 elements."""
THROTTLED = 1280 << 10
"""Most bytes that a throttled GPU has under way: the merge tables of all 32 ports (section VI)."""


@frozen
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


@frozen
class _Alone(Options):
    """The same without coordination."""

    prelaunch: bool = False
    preaccess: bool = False
    throttle: bool = False


def _load(build: Ways, ready: I32, tail: Tail, second: I32, options: Options) -> None:
    window = THROTTLED if options.throttle else STAGES * build.slots
    build.gather_loaded(ready, tail, second, merged=True, window=window, together=options.prelaunch, throttle=options.throttle)


def _fused(build: Ways, options: Options) -> None:
    """One pipeline: a block is normed when its sum is at home, and loaded when its home has told."""
    second = build.gemm2()
    done = build.gemm1(build.launch("kernel"), together=options.prelaunch)
    sums = build.reduce_merged(done, together=options.preaccess, throttle=options.throttle)
    rows = build.norm(build.home, build.blocks)
    build.wait(rows, sums, Tail.TILE_READY)
    flags = build.block_flags(rows)
    _load(build, flags, Tail.TILE_READY, second, options)


@sub_layer("cais", SOURCE, Options, switch=MERGES, channels=APART)
def _cais(build: Ways, options: Options) -> None:
    """CAIS: merged loads and sums, coordinated thread blocks, one pipeline over both GEMMs, channels of their own."""
    _fused(build, options)


@sub_layer("cais-partial", SOURCE, Options, switch=MERGES, channels=SHARED)
def _partial(build: Ways, options: Options) -> None:
    """CAIS without traffic control: loads, replies and reductions share virtual channels."""
    _fused(build, options)


@sub_layer("cais-pipeline", SOURCE, _Alone, switch=MERGES, channels=SHARED)
def _pipeline(build: Ways, options: Options) -> None:
    """CAIS's merging and pipeline over both GEMMs: no coordination of thread blocks, shared virtual channels."""
    _fused(build, options)


@sub_layer("cais-no-coord", SOURCE, _Alone, switch=MERGES, channels=APART)
def _no_coord(build: Ways, options: Options) -> None:
    """CAIS without coordination of thread blocks: merging works as far as the table and the drift of GPUs allow."""
    _fused(build, options)


@sub_layer("cais-base", SOURCE, _Alone, switch=MERGES, channels=SHARED)
def base(build: Ways, options: Options) -> None:
    """CAIS's instructions and merge unit alone: GEMM, norm and GEMM are kernels with barriers between them, and nothing is coordinated."""
    second = build.gemm2()
    done = build.gemm1(build.launch("gemm1"), together=options.prelaunch)
    sums = build.reduce_merged(done, together=options.preaccess, throttle=options.throttle)
    normed = norm_own(build, build.barrier("sums.end", build.join_of("summed", build.home, sums, Tail.TILE_READY)))
    begun = build.launch("gemm2", normed)
    ready = np.repeat(begun[:, None], build.cuts.blocks, axis=1)
    _load(build, ready, Tail.OP_DONE, second, options)
