"""Tensor parallelism with NVLS collectives between kernels (`tp-nvls`, `sp-nvls`): Megatron-LM."""

import numpy as np

from dysharp.program import I32, Tail, frozen
from dysharp.systems.building.tp import GATHERED, ROWS, SUM, SUMS, Ways, sub_layer

SOURCE = "https://github.com/NVIDIA/Megatron-LM"


@frozen
class Options:
    """`seed`: of launches and jitter. `chunk_bytes`: most bytes of a load or store in this simulation."""

    seed: int = 0
    chunk_bytes: int = 16384


def _gemm_then_barrier(build: Ways) -> I32:
    """The first GEMM on all GPUs, then a barrier."""
    return build.barrier("gemm1.end", build.all_of("gemm1.done", build.gemm1(build.launch("gemm1")).reshape(build.n, -1)))


def own_done(build: Ways, name: str, ops: I32) -> I32:
    """`[gpus]` JOINs that wait for `ops[chunk]` of their own blocks."""
    return build.join_of(name, build.home_of_chunk, ops)


def norm_all(build: Ways, after: I32) -> I32:
    """`[gpus]` JOINs behind the norm of all rows on every GPU, a kernel behind `after[gpu]`."""
    begun = build.launch("norm", after)
    rows = build.norm(np.repeat(build.gpus, build.cuts.blocks), np.tile(build.blocks, build.n)).reshape(build.n, -1)
    build.wait(rows, begun[:, None])
    return build.all_of("normed", rows)


def norm_own(build: Ways, after: I32) -> I32:
    """The norm of every block at home, a kernel behind `after[gpu]`, and a barrier: `[gpus]`."""
    begun = build.launch("norm", after)
    rows = build.norm(build.home, build.blocks)
    build.wait(rows, begun[build.home])
    return build.barrier("norm.end", build.join_of("normed", build.home, rows))


def gemm2_after(build: Ways, after: I32, src: str) -> None:
    """The second GEMM, a kernel behind `after[gpu]`."""
    build.wait(build.gemm2(src), build.launch("gemm2", after)[:, None])


def all_reduced(build: Ways, sums: I32) -> I32:
    """`[gpus]` JOINs behind the multicast of all sums to every GPU."""
    tiles = build.multicast(SUM, SUM, sums)
    done = own_done(build, "pulled", sums)
    build.wait(done[:, None], tiles, Tail.TILE_READY)
    return done


@sub_layer("tp-nvls", SOURCE, Options, switch=SUMS)
def _tp_nvls(build: Ways, options: Options) -> None:
    """Megatron's tensor parallelism: GEMM, all-reduce by NVLS, norm of all rows on every GPU, GEMM, with barriers around the all-reduce."""
    begun = build.launch("allreduce", _gemm_then_barrier(build))
    sums = build.reduce_pulled(begun[build.home_of_chunk], Tail.OP_DONE)
    gemm2_after(build, norm_all(build, build.barrier("allreduce.end", all_reduced(build, sums))), ROWS)


@sub_layer("sp-nvls", SOURCE, Options, switch=SUMS)
def _sp_nvls(build: Ways, options: Options) -> None:
    """Megatron's sequence parallelism: reduce-scatter by NVLS, norm of own rows, all-gather by NVLS, each behind a barrier."""
    begun = build.launch("reduce", _gemm_then_barrier(build))
    sums = build.reduce_pulled(begun[build.home_of_chunk], Tail.OP_DONE)
    normed = norm_own(build, build.barrier("reduce.end", own_done(build, "pulled", sums)))
    begun = build.launch("gather", normed)
    tiles = build.multicast(ROWS, GATHERED, begun[build.home_of_chunk])
    here = build.join("gathered")
    build.wait(here[:, None], tiles, Tail.TILE_READY)
    gemm2_after(build, build.barrier("gather.end", here), GATHERED)
