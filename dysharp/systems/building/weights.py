"""Weights and gradients of one expert between all GPUs: NCCL's ring for broadcast and reduce, without software costs.

The bytes are control words: the functional machine takes weights from the expert and sums gradients per expert.
"""

from __future__ import annotations

import numpy as np

from dysharp.compute.gemm import ACCUMULATOR_BYTES, ELEMENT_BYTES
from dysharp.program import Discipline, Kind, Template, To
from dysharp.program.constants import REQUESTS
from dysharp.specs import Model
from dysharp.systems.building.batch import Sends, ids
from dysharp.systems.building.landing import landing
from dysharp.systems.building.layer import STORE, LayerBuilder


def n_weights(model: Model) -> int:
    """Weights of one expert."""
    return model.n_matrices * model.hidden * model.expert_hidden


def broadcast(layer: LayerBuilder, owner: int) -> Sends:
    """The weights of an expert from GPU `owner` to all others, in the type of the GEMMs."""
    return _ring(layer, "weights.broadcast", owner, int(np.ceil(n_weights(layer.model) * ELEMENT_BYTES[layer.model.gemm_dtype])))


def reduce(layer: LayerBuilder, owner: int) -> Sends:
    """The sum of all GPUs' gradients of an expert to GPU `owner`, in FP32: every GPU adds its own and sends the sum on."""
    return _ring(layer, "weights.reduce", owner + 1, n_weights(layer.model) * ACCUMULATOR_BYTES)


def _ring(layer: LayerBuilder, name: str, first: int, n_bytes: int) -> Sends:
    """`n_bytes` from GPU `first` from GPU to GPU until all have had them. A train goes on when it has arrived; a GPU sends in order."""
    n, size = layer.n_gpus, layer.b.hardware.train_bytes
    if n == 1:
        return Sends(op=ids(0, 0), node=ids(0, 0), to=ids(0, 0))
    trains = -(-n_bytes // size)
    hop, train = (axis.ravel() for axis in np.meshgrid(np.arange(n - 1), np.arange(trains), indexing="ij"))
    node, to = (((first + hop + i) % n).astype(np.int32) for i in (0, 1))
    landed = landing(layer, name, to, np.arange(len(hop)), train.astype(np.int32), size)
    template = Template(name, Kind.PUT, "other", "control", REQUESTS, framing=layer.b.framing(STORE))
    one = np.ones(len(hop), np.int32)
    op = layer.b.ops(
        layer.b.template(template),
        node,
        issuer=layer.per_gpu(Discipline.PROGRAM_ORDER, name)[node],
        bytes=np.minimum(size, n_bytes - train * size),
        to=To(one, to, one, landed.row),
        targets=1,
    )
    ops = ids(op, len(hop))
    layer.wait_tiles(ops[trains:], landed.tile[:-trains])
    return Sends(op=ops, node=node, to=to)
