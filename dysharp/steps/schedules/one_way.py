"""Schedules of one stage per rank with fixed orders: GPipe, 1F1B, ZB-H1, ZB-H2."""

from dysharp.steps.schedules.cells import BACKWARD, DGRAD, FORWARD, WGRAD, Cell, Shape
from dysharp.steps.schedules.registry import schedule

_ZERO_BUBBLE = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241"


@schedule("gpipe", "GPipe, arXiv 1811.06965")
def gpipe(shape: Shape) -> list[list[Cell]]:
    """All forward passes, then all backward passes in reverse order."""
    batches = range(shape.microbatches)
    return [[Cell(FORWARD, r, i) for i in batches] + [Cell(BACKWARD, r, i) for i in reversed(batches)] for r in range(shape.ranks)]


@schedule("1f1b", "PipeDream-Flush, arXiv 2006.09503; Megatron-LM schedules.py")
def one_forward_one_backward(shape: Shape) -> list[list[Cell]]:
    """Warm-up of ranks - rank - 1 forward passes, then forward and backward in turn."""
    rows = []
    for rank in range(shape.ranks):
        warm = min(shape.ranks - rank - 1, shape.microbatches)
        row = [Cell(FORWARD, rank, i) for i in range(warm)]
        for i in range(shape.microbatches):
            if warm + i < shape.microbatches:
                row.append(Cell(FORWARD, rank, warm + i))
            row.append(Cell(BACKWARD, rank, i))
        rows.append(row)
    return rows


@schedule("zb-h1", _ZERO_BUBBLE, splits=True)
def zb_h1(shape: Shape) -> list[list[Cell]]:
    """1F1B with weight gradients that wait: rank r delays r of them, so activations stay as in 1F1B."""
    return [_delayed(shape, rank, warm=shape.ranks - rank, owed=rank) for rank in range(shape.ranks)]


@schedule("zb-h2", _ZERO_BUBBLE, splits=True)
def zb_h2(shape: Shape) -> list[list[Cell]]:
    """Twice the warm-up of ZB-H1: no bubble for equal times, for twice the activations."""
    return [_delayed(shape, rank, warm=2 * (shape.ranks - rank) - 1, owed=2 * rank) for rank in range(shape.ranks)]


def _delayed(shape: Shape, rank: int, warm: int, owed: int) -> list[Cell]:
    """`warm` forward passes before the first backward pass; `owed` weight gradients wait."""
    n = shape.microbatches
    row = [Cell(FORWARD, rank, i) for i in range(min(warm, n))]
    for i in range(n):
        row.append(Cell(DGRAD, rank, i))
        if i >= owed:
            row.append(Cell(WGRAD, rank, i - owed))
        if warm + i < n:
            row.append(Cell(FORWARD, rank, warm + i))
    return row + [Cell(WGRAD, rank, i) for i in range(max(0, n - owed), n)]
