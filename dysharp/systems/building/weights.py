"""Weights and gradients of one expert between all GPUs: NCCL's ring for broadcast and reduce, without software costs.

The bytes are control words: the functional machine takes weights from the expert and sums gradients per expert.
"""

import numpy as np

from dysharp.costs.gemm import ACCUMULATOR_BYTES, ELEMENT_BYTES
from dysharp.program import Kind
from dysharp.specs import Model
from dysharp.systems.building.batch import Sends, ids
from dysharp.systems.building.between.two_hop import Landing, landing
from dysharp.systems.building.layer import LayerBuilder

GRADIENTS = "gradients"
"""Name of the JOINs between weight gradients and their sum over GPUs. No other op waits for weight gradients (docs/design/0005-backward.md)."""


def n_weights(model: Model) -> int:
    """Weights of one expert."""
    return model.n_matrices * model.hidden * model.expert_hidden


def broadcast(layer: LayerBuilder, owner: int, number: int) -> Sends:
    """The weights of an expert from GPU `owner` to all others, in the type of the GEMMs. `number`: the number of the broadcast in its Program."""
    return _ring(layer, "weights.broadcast", number, owner, int(np.ceil(n_weights(layer.model) * ELEMENT_BYTES[layer.model.gemm_dtype])))


def reduce(layer: LayerBuilder, owner: int, number: int) -> Sends:
    """The sum of all GPUs' gradients of an expert to GPU `owner`, in FP32: every GPU adds its own gradient and sends the sum on."""
    return _ring(layer, "weights.reduce", number, owner + 1, n_weights(layer.model) * ACCUMULATOR_BYTES)


def _ring(layer: LayerBuilder, name: str, number: int, first: int, n_bytes: int) -> Sends:
    """`n_bytes` from GPU `first` from GPU to GPU until all have had them, in equal trains.

    A train goes on when it has arrived; a GPU sends in order. Each hop has a template and regions of its own name, so that the
    verifier sees that no hop waits for itself.
    """
    n = layer.n_gpus
    if n == 1:
        return Sends(op=ids(0, 0), node=ids(0, 0), to=ids(0, 0))
    trains = -(-n_bytes // layer.b.hardware.train_bytes)
    size = -(-n_bytes // trains)
    template = layer.transfer(name, Kind.PUT, "other")
    issuer, train = layer.issuers(name), np.arange(trains)
    nodes, ops = [], []
    landed: Landing | None = None
    for hop in range(n - 1):
        node, to = (np.full(trains, (first + hop + i) % n, np.int32) for i in (0, 1))
        before, landed = landed, landing(layer, f"{name}.{number}.{hop}", to, train, train.astype(np.int32), size)
        ops.append(layer.put(template, node, to, landed.row, issuer=issuer[node], bytes=size))
        nodes.append((node, to))
        if before is not None:
            layer.wait_tiles(ops[-1], before.tile)
    node, to = (np.concatenate(ends) for ends in zip(*nodes, strict=True))
    return Sends(op=np.concatenate(ops), node=node, to=to)
