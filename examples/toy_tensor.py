"""Toy sub-layer: GEMM and reduce-scatter, norm, all-gather and GEMM by plain stores, each step behind the whole step before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.program import Kind, Program, Tail, To
from dysharp.specs import Cluster
from dysharp.systems.building.tp import GATHERED, ROWS, Machine, Ways
from dysharp.systems.collectives import collective
from dysharp.workload.sublayer import SUB_LAYER, SubLayer


@dataclass(frozen=True, slots=True)
class Options:
    """The toy has no options."""


@collective("toy-tensor", source="https://github.com/example/toy", options=Options, operations=(SUB_LAYER,))
def plan(work: SubLayer, cluster: Cluster, options: Options) -> Program:
    """Every GPU stores its parts of a block to the block's home, which adds them and stores normed rows to every GPU."""
    build = Ways(work, cluster, Machine())
    sums = build.reduce_stores(build.gemm1(build.launch("gemm1")))  # [blocks] tiles: all parts of a block have come
    rows = build.norm(build.home, build.blocks)  # [blocks]
    build.wait(rows, sums, Tail.TILE_READY)
    peer, chunk = build.every_pair()  # every chunk on every GPU but its home
    home, block, one = build.home_of_chunk[chunk], build.block_of(chunk), np.ones(len(chunk), np.int32)
    store = build.template("gather", Kind.PUT, "gather", "copy", ROWS, GATHERED)
    first = build.b.ops(store, home, issuer=build.ready("gather")[home], bytes=build.cuts.chunk_bytes, key=chunk, to=To(one, peer))
    stores = first + np.arange(len(chunk))
    build.wait(stores, rows[block])
    build.count("gather", work.gpus - 1, work.gpus - 1)  # activations out of and into all GPUs
    second = build.gemm2()  # [gpus, blocks]
    build.wait(second[peer, block], stores)
    build.wait(second[build.home, build.blocks], rows)
    return build.build()
