"""Mediation: what software does around Dispatch and Combine because a store needs an address before it leaves.

The option `mediation` of a system adds it to a paper form. Costs are the choices `mediation.*`; they are the costs of no particular GPU. Real forms
have the measured steps of their software instead.
"""

from collections.abc import Sequence

import numpy as np

from dysharp.arrays import I32, I64
from dysharp.program import Tail
from dysharp.specs import choice_int
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.units import PS_PER_US, ns_to_ps

COUNT_BYTES = 4  # rows of an expert


def mediate(layer: LayerBuilder, *, counts: bool, permutes: bool, first: Sequence[Batch] = (), rows: bool = True) -> None:
    """Let Dispatch of `layer` wait for mediation, and end the pass with the permutation of the results.

    `counts`: the GPUs exchange rows per expert, and the host waits for these counts (a backward pass knows the counts).
    `permutes`: a kernel sorts the rows by expert before Dispatch, and another one puts the results back after Combine.
    `first`: ops that wait besides the transfers of rows. `rows` False: the transfers do not depend on the routing and do not wait.
    """
    steps = SoftwareSteps(layer)
    counted = layer.exchange(COUNT_BYTES * layer.model.n_experts, name="counts") if counts and layer.direction == "fwd" else None
    waits = ns_to_ps(choice_int("mediation.host_sync_ns") + choice_int("mediation.launch_ns")) if counted is not None else 0
    sent = np.bincount(layer.p.row_source, minlength=layer.n_gpus)
    begin = steps.delay("mediation", waits + (_permute_ps(sent * layer.sent_bytes) if permutes else np.zeros(layer.n_gpus, np.int64)))
    if counted is not None:
        layer.wait_tiles(begin, counted)
    for batch in (*(layer.dispatched if rows else ()), *first):
        layer.wait_each(batch.op, begin[batch.node])
    if permutes:
        end = steps.delay("unpermute", _permute_ps(sent * layer.back_bytes))
        for back in layer.returned:
            layer.wait_tiles(end, back.tile)


def sorted_at_receiver(layer: LayerBuilder) -> I32:
    """`[gpus]` DELAYs after which received rows are sorted by expert: one permutation behind the last row."""
    received = np.bincount(layer.p.row_gpu, minlength=layer.n_gpus)
    several = layer.routing.placement.slots_per_gpu > 1
    sort = SoftwareSteps(layer).delay("sort", _permute_ps(received * layer.sent_bytes) if several else 0)
    layer.wait_each(sort, layer.join_tiles(layer.tiles, Tail.TILE_READY))
    return sort


def _permute_ps(n_bytes: I64) -> I64:
    """Picoseconds of a kernel that reads `n_bytes` and writes as many, with its launch."""
    rate = 1000 * choice_int("mediation.permute_gbps")  # bytes per microsecond
    moved: I64 = -(-2 * n_bytes.astype(np.int64) * PS_PER_US // rate)
    return ns_to_ps(choice_int("mediation.launch_ns")) + moved
