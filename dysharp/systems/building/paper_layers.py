"""Whole layers in paper form that several systems share.

A GPU waits for its own rows and GEMMs only; no kernel, barrier or SM costs time.
"""

from dysharp.arrays import I64
from dysharp.program import Discipline, Program
from dysharp.systems.building.between.two_hop import two_hops
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.facts import Moves


def one_copy_per_gpu(layer: LayerBuilder, moves: Moves) -> Program:
    """Dispatch, one GEMM after the other, Combine.

    A token is sent once to each of its GPUs, and each GPU sends one sum back. Over several NVLink domains a token goes once to each
    remote domain, which forwards it (`between.two_hop`).
    """
    if layer.cluster.domains > 1:
        two_hops(layer)
    else:
        layer.dispatch_puts()
        finished = one_after_another(layer)
        layer.wait_first(layer.combine_puts(Discipline.PROGRAM_ORDER), finished)
    return layer.build(moves)


def one_copy_per_expert(layer: LayerBuilder, moves: Moves, there: I64 | None = None, back: I64 | None = None) -> Program:
    """Dispatch, one GEMM after the other, Combine. Every (token, expert) travels as a separate row in both operators.

    `there`, `back`: the useful rows in the order in which Dispatch and Combine send them (default: as in
    `dispatch_rows` and `combine_rows`).
    """
    layer.dispatch_rows(order=there)
    finished = one_after_another(layer)
    layer.wait_first(layer.combine_rows(Discipline.PROGRAM_ORDER, back), finished)
    return layer.build(moves)
