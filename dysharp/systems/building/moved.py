"""Replicas whose weights move in each micro-batch (`Placement.moved`): the plan, weights over links, gradients back to the expert's home.

| step | op |
|---|---|
| the plan, forward: a backward pass has it | DELAY of `Moved.plan_us` before Dispatch |
| weights of a replica | PUTs from the expert's home (`Moved.relay`: from the replica before), in the format of the GEMMs |
| the first GEMMs of a replica's tile | wait for its weights (`Moved.prefetch` before: Dispatch waits for all weights of its GPU, too) |
| gradients of a replica, FP32 | PUTs to the home behind the GPU's last weight gradient of replicas |

The bytes are control words: the functional machine takes weights from the expert and sums gradients per expert.
"""

import numpy as np

from dysharp.base import us_to_ps
from dysharp.costs.gemm import ACCUMULATOR_BYTES
from dysharp.program import I32, Head, Kind, Tail, place_in
from dysharp.systems.building.batch import Batch, ids, placed
from dysharp.systems.building.layer import LayerBuilder

GRADIENTS = "gradients"
"""Name of the JOINs between weight gradients and their sum over GPUs. No other op waits for weight gradients (docs/design/0005-backward.md)."""


def with_moved_weights(layer: LayerBuilder) -> None:
    """Add what replicas with moved weights cost to a planned pass."""
    p = layer.routing.placement
    if p.moved is None:
        return
    per_gpu, held = p.slots_per_gpu // p.parts, p.slot_expert[:: p.parts]
    slots = np.flatnonzero((np.arange(len(held)) % per_gpu >= per_gpu - p.moved.slots) & (held >= 0))
    home, here = (held[slots] // (layer.routing.n_experts // p.n_gpus)).astype(np.int32), (slots // per_gpu).astype(np.int32)
    begin = layer.delay("balance.plan", us_to_ps(p.moved.plan_us)) if layer.direction == "fwd" else None
    if len(slots) and p.moved.prefetch != "hidden":
        fetched = placed(len(held), slots, _fetched(layer, held[slots], home, here, layer.expert_bytes, begin, p.moved.relay))
        for gemm, tiles, ops in layer.gemms:
            after = fetched[layer.tile_slot[tiles] // p.parts]
            if gemm.src == layer.arrived:  # weight gradients need no weights, but start as data gradients do
                layer.wait_each(ops[after >= 0], after[after >= 0])
        if p.moved.prefetch == "before":
            begin = layer.join("weights.here", begin)
            layer.wait_each(begin[here], fetched[slots])
    for batch in layer.dispatched:
        layer.wait_each(batch.op, None if begin is None else begin[batch.node])
    if len(slots) and layer.direction == "bwd" and layer.compute:
        end = layer.join(GRADIENTS)
        for gemm, tiles, ops in layer.gemms:
            if gemm.of_weights:
                mine = np.isin(layer.tile_slot[tiles] // p.parts, slots)
                layer.wait_each(end[layer.tile_gpu[tiles[mine]]], ops[mine])
        op, node, _ = _put(layer, "weights.gradients", here, home, layer.model.expert_weights * ACCUMULATOR_BYTES)
        layer.wait_first(Batch(op=op, node=node), end)


def _fetched(layer: LayerBuilder, expert: I32, home: I32, here: I32, n_bytes: float, after: I32 | None, relay: bool) -> I32:
    """`[replicas]` JOINs behind the weights of each. `relay`: a replica sends trains on to the next one of its expert as they arrive."""
    rank = place_in(expert) if relay else np.zeros(len(expert), np.int64)
    joins, last = layer.joins("weights.fetched", here), ids(0, 0)
    tile = ids(0, 0).reshape(0, 0)
    for hop in range(int(rank.max()) + 1):  # regions and a template of its own, so that the verifier sees that no hop waits for itself
        mine = np.flatnonzero(rank == hop).astype(np.int32)
        before = placed(layer.routing.n_experts, expert[last], ids(0, len(last)))[expert[mine]]
        op, node, landed = _put(layer, f"weights.{hop}", here[last][before] if hop else home[mine], here[mine], n_bytes)
        if hop:
            layer.wait_tiles(op, tile[before].ravel())
        else:
            layer.wait_first(Batch(op=op, node=node), after)
        tile, last = landed.reshape(len(mine), -1), mine
        layer.b.edges(Tail.TILE_READY, landed, Head.OP_ISSUE, np.repeat(joins[mine], tile.shape[1]))
    return joins


def _put(layer: LayerBuilder, name: str, node: I32, to: I32, n_bytes: float) -> tuple[I32, I32, I32]:
    """`n_bytes` from each `node[i]` to `to[i]`, one after the other per source in equal trains. (op, its GPU, tile) of each train."""
    trains = int(-(-n_bytes // layer.b.hardware.train_bytes))
    size, entry = int(-(-n_bytes // trains)), np.arange(len(node) * trains)
    node, to = np.repeat(node, trains), np.repeat(to, trains)
    landed = layer.landing(name, to, entry, entry.astype(np.int32), size)
    template = layer.transfer(f"{name}.put", Kind.PUT, "other")
    return layer.puts(template, node, to, landed.row, issuer=layer.issuers(name)[node], bytes=size, key=entry), node, landed.tile
