"""Overlap of a GEMM with its collective, without merging in the switch.

In software: CoCoNet and FuseLib, with rings and with NVLS. In hardware: T3's track and trigger, with rings and with NVLS, and LADM's placement.
"""

import numpy as np

from dysharp.costs import gemm_gang
from dysharp.program import I32, Tail, frozen
from dysharp.specs import choice_int
from dysharp.systems.building.tp import GATHERED, PARTIAL, ROWS, SUM, SUMS, Ways, sub_layer
from dysharp.systems.tp.cais import STAGES
from dysharp.systems.tp.nvls import Options, all_reduced, gemm2_after, norm_all, norm_own, own_done

COCONET = "https://arxiv.org/abs/2105.05720"
FUSELIB = "https://arxiv.org/abs/2305.06942"


@frozen
class _Parted:
    """`chunks`: parts of the GEMM whose all-reduce may begin. `comm_sms`: SMs of the collective's kernel. Others: as of `tp-nvls`."""

    chunks: int = choice_int("tp.overlap_chunks")
    comm_sms: int = choice_int("tp.comm_sms")
    seed: int = 0
    chunk_bytes: int = 16384


def _by_chunk(build: Ways, done: I32, chunks: int) -> I32:
    """`[gpus, blocks]` JOINs behind all tiles of the block's part of the GEMM; 0 parts: of the block alone."""
    n, blocks = build.n, build.cuts.blocks
    whole = build.all_of("tiles", done)
    if not chunks:
        return whole
    turns = -(-blocks // n)
    part = build.blocks // n * min(chunks, turns) // turns
    ended = build.joins("part", np.repeat(build.gpus, int(part.max()) + 1)).reshape(n, -1)
    build.wait(ended[:, part], whole)
    return np.asarray(ended[:, part])


def _ring(build: Ways, chunks: int) -> None:
    """All-reduce by a ring behind parts of the first GEMM; norm of all rows; the second GEMM."""
    ended = _by_chunk(build, build.gemm1(build.launch("gemm1")), chunks)
    gate = ended[:, build.block_of(build.every_chunk)]
    sums = build.ring("reduce", "add", gate, (PARTIAL, SUM), 1)
    at_home = build.joins("summed", build.home_of_chunk)
    build.wait(at_home, sums[build.home_of_chunk, build.every_chunk], Tail.TILE_READY)
    build.wait(at_home, gate[build.home_of_chunk, build.every_chunk])
    copies = build.ring("gather", "copy", np.broadcast_to(at_home, gate.shape), (SUM, SUM), 0)
    done = build.join_of("reduced", build.home_of_chunk, at_home)
    gpu, chunk = np.nonzero(copies >= 0)
    build.wait(done[gpu], copies[gpu, chunk], Tail.TILE_READY)
    gemm2_after(build, norm_all(build, done), ROWS)


def _in_switch(build: Ways, chunks: int) -> None:
    """All-reduce by multimem behind parts of the first GEMM, when every GPU has told the home; norm of all rows; the second GEMM."""
    told = build.told_home(_by_chunk(build, build.gemm1(build.launch("gemm1")), chunks))
    sums = build.reduce_pulled(told[build.block_of(build.every_chunk)], Tail.TILE_READY)
    gemm2_after(build, norm_all(build, build.barrier("allreduce.end", all_reduced(build, sums))), ROWS)


@sub_layer("coconet", COCONET, _Parted, rotated=True, comm_sms=lambda work, options: options.comm_sms)
def _coconet(build: Ways, options: _Parted) -> None:
    """CoCoNet: the all-reduce of a part of the GEMM, a ring on SMs of its own, runs beside the next part."""
    _ring(build, options.chunks)


@sub_layer("fuselib", FUSELIB, Options, rotated=True)
def _fuselib(build: Ways, options: Options) -> None:
    """FuseLib: one persistent kernel; thread blocks put slices on the ring as soon as a block of rows is done."""
    _ring(build, 0)


@sub_layer("coconet-nvls", COCONET, _Parted, switch=SUMS, comm_sms=lambda work, options: options.comm_sms)
def _coconet_nvls(build: Ways, options: _Parted) -> None:
    """CoCoNet on multimem instructions: only the first GEMM overlaps."""
    _in_switch(build, options.chunks)


@sub_layer("fuselib-nvls", FUSELIB, Options, switch=SUMS)
def _fuselib_nvls(build: Ways, options: Options) -> None:
    """FuseLib on multimem instructions: only the first GEMM overlaps."""
    _in_switch(build, 0)


T3 = "https://arxiv.org/abs/2401.16677"


def _second(build: Ways, begun: I32) -> I32:
    second = build.gemm2()
    build.wait(second, begun[:, None])
    return second


@sub_layer("t3", T3, Options, rotated=True)
def _t3(build: Ways, options: Options) -> None:
    """T3: a DMA engine sends tracked tiles around a ring and memory adds, behind the first GEMM; the same for the gather, before the second."""
    done = build.gemm1(build.launch("gemm1")).reshape(build.n, -1)
    gate = done[:, build.every_chunk // build.cuts.parts]
    sums = build.ring("reduce", "add", gate, (PARTIAL, SUM), 1)
    here = build.home_of_chunk
    summed = own_done(build, "own tiles", gate[here, build.every_chunk])
    build.wait(summed[here], sums[here, build.every_chunk], Tail.TILE_READY)
    normed = norm_own(build, build.barrier("reduce.end", summed))
    copies = build.ring("gather", "copy", np.repeat(normed[:, None], len(here), axis=1), (ROWS, GATHERED), 0)
    second = _second(build, build.launch("gemm2", normed))
    gpu, chunk = np.nonzero(copies >= 0)
    build.wait(second[gpu, build.block_of(chunk)], copies[gpu, chunk], Tail.TILE_READY)


@sub_layer("t3-nvls", T3, Options, switch=SUMS)
def _t3_nvls(build: Ways, options: Options) -> None:
    """T3 with DMA-driven NVLS: sums behind the first GEMM, multicasts before the second; sums, norms and copies wait for each other as a whole."""
    told = build.told_home(build.all_of("tiles", build.gemm1(build.launch("gemm1"))))
    sums = build.reduce_pulled(told[build.block_of(build.every_chunk)], Tail.TILE_READY)
    normed = norm_own(build, build.barrier("reduce.end", own_done(build, "pulled", sums)))
    tiles = build.multicast(ROWS, GATHERED, normed[build.home_of_chunk])
    build.wait(_second(build, build.launch("gemm2", normed)), tiles, Tail.TILE_READY)


@sub_layer("ladm", "https://doi.org/10.1109/MICRO50266.2020.00086", Options, rotated=True)
def _ladm(build: Ways, options: Options) -> None:
    """LADM: thread blocks near their data, plain remote stores and loads; every thread block of the second GEMM loads its rows again."""
    second = build.gemm2()
    sums = build.reduce_stores(build.gemm1(build.launch("gemm1")))
    normed = norm_own(build, build.barrier("sums.end", build.join_of("summed", build.home, sums, Tail.TILE_READY)))
    begun = np.repeat(build.launch("gemm2", normed)[:, None], build.cuts.blocks, axis=1)
    build.gather_loaded(begun, Tail.OP_DONE, second, merged=False, window=STAGES * build.slots, times=gemm_gang(build.work.outer))
