"""NVLS: Dispatch as multimem AllGather, Combine as multimem ReduceScatter, operators one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Discipline, Program, Tail
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.layer import STORE, Layer
from dysharp.systems.machine import windows
from dysharp.systems.registry import system
from dysharp.workload import Routing


@dataclass(frozen=True, slots=True)
class Options:
    """Tokens in flight per source GPU, 0 = automatic (systems/machine.py)."""

    dispatch_window: int = choice_int("nvls.dispatch_window")
    combine_window: int = choice_int("nvls.combine_window")


@system(
    "nvls",
    source="NVLS collectives (multimem.st, multimem.ld_reduce); spec/baselines.md section 4, spec/dysharp.md section 10.3",
    options=Options,
    traffic="allgather",
    drops="NCCL channels and their SMs, the permutation of gathered rows",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """AllGather of all tokens, grouped GEMMs on the rows a GPU needs, a barrier of all GPUs, ReduceScatter of partial sums."""
    layer = Layer(model, cluster, routing, direction)
    dispatch, combine = windows(model, cluster, options.dispatch_window, options.combine_window)
    layer.dispatch_allgather(dispatch)
    gemm1, gemm2 = layer.experts()
    pulls = layer.combine_pulls(Discipline.PROGRAM_ORDER, combine, STORE, every_gpu=True)
    layer.gpu_barrier(Tail.TILE_READY, 0, gemm1)
    layer.gpu_barrier(Tail.OP_DONE, gemm1, gemm2)
    finished = layer.gpu_barrier(Tail.OP_DONE, gemm2)
    all_finished = layer.exchange(16, name="barrier", after=finished)
    layer.all_of_gpu_wait(Tail.TILE_READY, all_finished, pulls, layer.every_source)
    return layer.build("allgather")
