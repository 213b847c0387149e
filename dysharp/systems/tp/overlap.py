"""Software that overlaps the first GEMM with its all-reduce: CoCoNet and FuseLib, with rings and with NVLS."""

import numpy as np

from dysharp.program import I32, Tail, frozen
from dysharp.specs import choice_int
from dysharp.systems.building.tp import PARTIAL, ROWS, SUM, SUMS, Ways, sub_layer
from dysharp.systems.tp.nvls import Options as Fused
from dysharp.systems.tp.nvls import all_reduced, gemm2_after, norm_all

COCONET = "https://arxiv.org/abs/2105.05720"
FUSELIB = "https://arxiv.org/abs/2305.06942"


@frozen
class Options:
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
    told = build.told_home("told", _by_chunk(build, build.gemm1(build.launch("gemm1")), chunks))
    sums = build.reduce_pulled(told[build.block_of(build.every_chunk)], Tail.TILE_READY)
    gemm2_after(build, norm_all(build, build.barrier("allreduce.end", all_reduced(build, sums))), ROWS)


@sub_layer("coconet", COCONET, Options, rotated=True, comm_sms=lambda work, options: options.comm_sms)
def coconet(build: Ways, options: Options) -> None:
    """CoCoNet: the all-reduce of a part of the GEMM, a ring on SMs of its own, runs beside the next part."""
    _ring(build, options.chunks)


@sub_layer("fuselib", FUSELIB, Fused, rotated=True)
def fuselib(build: Ways, options: Fused) -> None:
    """FuseLib: one persistent kernel; thread blocks put slices on the ring as soon as a block of rows is done."""
    _ring(build, 0)


@sub_layer("coconet-nvls", COCONET, Options, switch=SUMS, comm_sms=lambda work, options: options.comm_sms)
def coconet_nvls(build: Ways, options: Options) -> None:
    """CoCoNet on multimem instructions: only the first GEMM overlaps."""
    _in_switch(build, options.chunks)


@sub_layer("fuselib-nvls", FUSELIB, Fused, switch=SUMS)
def fuselib_nvls(build: Ways, options: Fused) -> None:
    """FuseLib on multimem instructions: only the first GEMM overlaps."""
    _in_switch(build, 0)
