"""Replicas whose weights move in each micro-batch (`Placement.moved`): the plan, weights over links, gradients back to the expert's home.

| step | op |
|---|---|
| the plan, forward: a backward pass has it | DELAY of `balance.plan_us` before Dispatch |
| weights of a replica | PUTs from the expert's home, in the format of the GEMMs; they share links with rows (`balance.prefetch`) |
| the first GEMM of a replica's tile | waits for the weights |
| gradients of a replica, FP32 | PUTs to the home behind the GPU's last weight gradient of replicas |

The bytes are control words: the functional machine takes weights from the expert and sums gradients per expert.
"""

import numpy as np

from dysharp.base.units import us_to_ps
from dysharp.costs.gemm import ACCUMULATOR_BYTES, ELEMENT_BYTES
from dysharp.program import I32, I64, Head, Kind, Tail
from dysharp.specs import Model, choice_int, choice_str
from dysharp.systems.building.batch import Batch, Landing, placed
from dysharp.systems.building.layer import LayerBuilder

GRADIENTS = "gradients"
"""Name of the JOINs between weight gradients and their sum over GPUs. No other op waits for weight gradients (docs/design/0005-backward.md)."""


def n_weights(model: Model) -> int:
    """Weights of one expert."""
    return model.n_matrices * model.hidden * model.expert_hidden


def with_moved_weights(layer: LayerBuilder) -> None:
    """Add what replicas with moved weights cost to a planned pass."""
    p = layer.routing.placement
    if not p.moved:
        return
    per_gpu, held = p.slots_per_gpu // p.parts, p.slot_expert[:: p.parts]
    slots = np.flatnonzero((np.arange(len(held)) % per_gpu >= per_gpu - p.moved) & (held >= 0))
    home, here = (held[slots] // (layer.routing.n_experts // p.n_gpus)).astype(np.int32), (slots // per_gpu).astype(np.int32)
    begin = layer.delay("balance.plan", us_to_ps(choice_int("balance.plan_us"))) if layer.direction == "fwd" else None
    if (when := choice_str("balance.prefetch")) != "hidden":
        width = layer.tiling.weight_bytes or ELEMENT_BYTES[layer.tiling.dtype or layer.model.gemm_dtype]
        landed = _moved(layer, "weights", home, here, n_weights(layer.model) * width, begin)
        tile_of_slot = placed(len(held), slots, landed.tile)
        for gemm, tiles, ops in layer.gemms:
            if gemm.src == layer.arrived and not gemm.of_weights:
                layer.wait_tiles(ops, tile_of_slot[layer.tile_slot[tiles] // p.parts])
        if when == "before":
            fetched = layer.join("weights.here", begin)
            layer.b.edges(Tail.TILE_READY, landed.tile, Head.OP_ISSUE, fetched[here])
            begin = fetched
    for batch in layer.dispatched:
        layer.wait_each(batch.op, None if begin is None else begin[batch.node])
    if layer.direction == "bwd" and layer.compute:
        end = layer.join(GRADIENTS)
        for gemm, tiles, ops in layer.gemms:
            if gemm.of_weights:
                mine = np.isin(layer.tile_slot[tiles] // p.parts, slots)
                layer.wait_each(end[layer.tile_gpu[tiles[mine]]], ops[mine])
        _moved(layer, "weights.gradients", here, home, n_weights(layer.model) * ACCUMULATOR_BYTES, end)


def _moved(layer: LayerBuilder, name: str, node: I32, to: I32, n_bytes: float, after: I32 | None) -> Landing:
    """`n_bytes` from each `node[i]` to `to[i]`, one after the other per source in equal trains, behind the op `after[gpu]`. A tile for each."""
    trains = int(-(-n_bytes // layer.b.hardware.train_bytes))
    size, entry = int(-(-n_bytes // trains)), np.repeat(np.arange(len(node)), trains)
    landed = layer.landing(name, to, entry, entry.astype(np.int32), size)
    issuer, columns = layer.issuers(name), {"bytes": size, "key": entry}
    op = layer.puts(layer.transfer(f"{name}.put", Kind.PUT, "other"), node[entry], to[entry], landed.row, issuer=issuer[node[entry]], **columns)
    layer.wait_first(Batch(op=op, node=node[entry]), after)
    return landed
