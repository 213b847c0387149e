"""Toy all-gather: every GPU stores its share to every other GPU, and ends when all shares have come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.program import Kind, Program
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.steps import RESULT, VECTOR, Steps
from dysharp.systems.building.layer import STORE
from dysharp.systems.collectives import collective
from dysharp.workload.collective import Collective


@dataclass(frozen=True, slots=True)
class Options:
    """The toy has no options."""


@collective("toy-gather", source="https://github.com/example/toy", options=Options, operations=("all-gather",))
def plan(work: Collective, cluster: Cluster, options: Options) -> Program:
    """Stores from every GPU to every other GPU, all at once."""
    steps = Steps(work, cluster)
    begun = steps.start("launch", steps.costs.kernel_ps)  # [gpus] one op per GPU
    share, chunk = steps.chunks.share, np.arange(len(steps.chunks.size))
    steps.keep(VECTOR, RESULT, chunk, share, begun[share])  # the own share stays
    turns = [(g, (g + turn) % work.gpus) for turn in range(1, work.gpus) for g in range(work.gpus)]  # no two GPUs send to one
    if turns:
        node, to, moved = np.array([(g, to, k) for g, to in turns for k in chunk[share == g]], np.int64).reshape(-1, 3).T
        store = steps.template("store", Kind.PUT, "gather", "copy", STORE, src=VECTOR, dst=RESULT)
        ops = steps.move(store, node.astype(np.int32), moved, steps.issuers("store")[node], to)
        steps.wait(ops, begun[node])
        steps.wait(steps.join("done")[to], ops)  # a GPU is done when all stores to it are
    return steps.build()
