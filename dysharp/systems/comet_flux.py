"""COMET as released (flux): an all-gather in front of GEMM-1, tiles in list order, SMs that only return results."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError
from dysharp.program import Discipline, Head, Program, Tail
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.batch import Batch, Returns
from dysharp.systems.building.collective import collective
from dysharp.systems.building.experts import GemmOps, add_stage, blocks_in_order, stages
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.mediation import mediate
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.registry import system
from dysharp.units import PS_PER_US
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of COMET as released.

    | option | meaning |
    |---|---|
    | `n_comm` | SMs that return results while GEMM-2 runs on the others; users tune it per shape |
    | `mediation` | the host counts rows and waits for the counts before GEMM-1 (building/mediation.py); the all-gather needs no routing |
    """

    n_comm: int = choice_int("comet_flux.n_comm")
    mediation: bool = False


@system(
    "comet-flux",
    source="COMET (MLSys'25); https://github.com/bytedance/flux",
    options=Options,
    traffic="ring",
    returns="one_copy_per_gpu",
    permutes=0,
    fused=False,
    colour="#882255",
    drops="column slices of GEMM-2 (a sum leaves when the tiles of its rows have ended); sorting, count copies and barriers of the host",
    today=True,
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """GEMM-1 waits for whole GPUs' tokens, tile by tile in list order. GEMM-2 shares the SMs with blocks that return sums.

    - Layer 0: copy engines bring all tokens of every GPU, the nearest GPU first. A flag says that a GPU's tokens are there.
      Rows of an expert are sorted by GPU. Thread blocks take tiles in the order in which flags come, and wait on their SM.
    - Layer 1: `n_comm` SMs add the rows of a token and store the sum at the token's GPU, one token at a time each.
    """
    if not 0 < options.n_comm < cluster.n_sms:
        raise ConfigError(f"comet-flux.n_comm: found {options.n_comm}, expected 1 to {cluster.n_sms - 1} of the {cluster.n_sms} SMs of a GPU")
    layer = LayerBuilder(model, cluster, routing, direction, listed=True)
    turns = layer.per_gpu(Discipline.SMALLEST_KEY, "dispatch")
    gathered = collective(layer, "dispatch", layer.dispatch_puts(turns=turns, by_rows=True), turns, by_sender=True)
    gemms = _gemms(layer, options)
    blocks = _wait_for_flags(layer, gemms, gathered.tile)
    layer.join_tiles(gemms.first[0], heads=gemms.second)
    layer.wait_rows(_returned(layer, options).of_useful_row, gemms.results)
    if options.mediation:
        mediate(layer, counts=True, permutes=False, first=[Batch(op=blocks, node=layer.tile_gpu)], rows=False)
    return layer.build("ring", back="one_copy_per_gpu")


def _gemms(layer: LayerBuilder, options: Options) -> GemmOps:
    """The first stage on all SMs, the second one on those that return nothing. The stages of a GPU do not overlap."""
    most = layer.cluster.n_sms
    sms = [[layer.b.pool(g, slots) for g in range(layer.n_gpus)] for slots in (most, most - options.n_comm)]
    ops = [
        add_stage(layer, stage, layer.per_gpu(Discipline.READY_FIFO, "sm", pools), layer.tiles)
        for stage, pools in zip(stages(layer.model, layer.direction), sms, strict=True)
    ]
    return GemmOps(ops[0], ops[1], sms[0])


def _wait_for_flags(layer: LayerBuilder, gemms: GemmOps, rest: I32) -> I32:
    """A tile waits for its rows, and for the rest of the tokens of every GPU that sent one of them.

    Returns `[tiles]` the ops that put the blocks of a tile on SMs.

    `rest`: `[gpus, senders]` region tiles of the tokens that no expert of the GPU reads, -1 = none. Blocks take tiles by
    the turn of the tile's last sender, then by expert.
    """
    n = layer.n_gpus
    tile = np.repeat(layer.tiles, layer.tile_rows)[layer.row_of]
    pairs = np.unique(tile.astype(np.int64) * n + layer.row_source)
    of, sender = (pairs // n).astype(np.int32), (pairs % n).astype(np.int32)
    flag = rest[layer.tile_gpu[of], sender]
    turn = (layer.tile_gpu[of] - sender) % n
    last = np.zeros(len(layer.tiles), np.int64)
    np.maximum.at(last, of, turn)
    started = blocks_in_order(layer, gemms, np.lexsort((layer.tile_slot, last, layer.tile_gpu)).astype(np.int32))
    for head in gemms.first:
        layer.wait_tiles(head, layer.tiles)
        layer.wait_each(head, started)
        layer.b.edges(Tail.TILE_READY, flag[flag >= 0], Head.OP_ISSUE, head[of[flag >= 0]])
    return started


def _returned(layer: LayerBuilder, options: Options) -> Returns:
    """Combine: one sum per (token, GPU), each on an SM of the communication blocks for the time of a copy."""
    combine, steps = layer.combine_puts(Discipline.READY_FIFO), SoftwareSteps(layer)
    pools = [layer.b.pool(g, options.n_comm, "comm") for g in range(layer.n_gpus)]
    issuer = layer.per_gpu(Discipline.READY_FIFO, "comm", pools)
    each = layer.back_bytes * PS_PER_US // choice_int("comet_flux.comm_mbps")
    copies = steps.copies("combine", [0, each], combine.node, issuer[combine.node], name="comm")
    layer.wait_each(combine.op, copies.op)
    return dataclasses.replace(combine, op=copies.op)
