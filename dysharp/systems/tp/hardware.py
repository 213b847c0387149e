"""Hardware that overlaps without merging: T3's track and trigger, with rings and with NVLS, and LADM's placement."""

import numpy as np

from dysharp.costs.gemm import gemm_gang
from dysharp.program import I32, Tail
from dysharp.systems.building.tp import GATHERED, PARTIAL, ROWS, SUM, SUMS, Ways, sub_layer
from dysharp.systems.tp.cais import STAGES
from dysharp.systems.tp.nvls import Options, norm_own, own_done

T3 = "https://arxiv.org/abs/2401.16677"


def _second(build: Ways, begun: I32) -> I32:
    second = build.gemm2()
    build.wait(second, begun[:, None])
    return second


@sub_layer("t3", T3, Options, rotated=True)
def t3(build: Ways, options: Options) -> None:
    """T3: a DMA engine sends tracked tiles around a ring and memory adds, behind the first GEMM; the same for the gather, before the second."""
    done = build.gemm1(build.launch("gemm1")).reshape(build.n, -1)
    gate = done[:, build.every_chunk // build.cuts.parts]
    sums = build.ring("reduce", "add", gate, (PARTIAL, SUM), 1)
    here = build.home_of_chunk
    summed = own_done(build, "own tiles", gate[here, build.every_chunk])
    build.wait(summed[here], sums[here, build.every_chunk], Tail.TILE_READY)
    _, normed = norm_own(build, build.barrier("reduce.end", summed))
    copies = build.ring("gather", "copy", np.repeat(normed[:, None], len(here), axis=1), (ROWS, GATHERED), 0)
    second = _second(build, build.launch("gemm2", normed))
    gpu, chunk = np.nonzero(copies >= 0)
    build.wait(second[gpu, build.block_of(chunk)], copies[gpu, chunk], Tail.TILE_READY)


@sub_layer("t3-nvls", T3, Options, switch=SUMS)
def t3_nvls(build: Ways, options: Options) -> None:
    """T3 with DMA-driven NVLS: sums behind the first GEMM, multicasts before the second; sums, norms and copies wait for each other as a whole."""
    told = build.told_home("told", build.all_of("tiles", build.gemm1(build.launch("gemm1"))))
    sums = build.reduce_pulled(told[build.block_of(build.every_chunk)], Tail.TILE_READY)
    _, normed = norm_own(build, build.barrier("reduce.end", own_done(build, "pulled", sums)))
    tiles = build.multicast(ROWS, GATHERED, normed[build.home_of_chunk])
    build.wait(_second(build, build.launch("gemm2", normed)), tiles, Tail.TILE_READY)


@sub_layer("ladm", "https://doi.org/10.1109/MICRO50266.2020.00086", Options, rotated=True)
def ladm(build: Ways, options: Options) -> None:
    """LADM: thread blocks near their data, plain remote stores and loads; every thread block of the second GEMM loads its rows again."""
    second = build.gemm2()
    sums = build.reduce_stores(build.gemm1(build.launch("gemm1")))
    _, normed = norm_own(build, build.barrier("sums.end", build.join_of("summed", build.home, sums, Tail.TILE_READY)))
    begun = np.repeat(build.launch("gemm2", normed)[:, None], build.cuts.blocks, axis=1)
    build.gather_loaded(begun, Tail.OP_DONE, second, merged=False, window=STAGES * build.slots, times=gemm_gang(build.work.outer))
