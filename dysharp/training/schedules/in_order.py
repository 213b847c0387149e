"""Schedules with fixed orders: one stage per rank (GPipe, 1F1B, ZB-H1, ZB-H2), and several chunks of a rank in loops (interleaved 1F1B, the same with
split weight gradients, and breadth first)."""

from dysharp.base import ConfigError
from dysharp.training.schedules.cells import BACKWARD, DGRAD, FORWARD, WGRAD, Cell, ScheduleShape, Slot
from dysharp.training.schedules.registry import schedule

_ZERO_BUBBLE = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241"


@schedule("gpipe", "GPipe, arXiv 1811.06965")
def _gpipe(shape: ScheduleShape) -> list[list[Cell]]:
    """All forward passes, then all backward passes in reverse order."""
    batches = range(shape.microbatches)
    return [[Cell(FORWARD, r, i) for i in batches] + [Cell(BACKWARD, r, i) for i in reversed(batches)] for r in range(shape.ranks)]


@schedule("1f1b", "PipeDream-Flush, arXiv 2006.09503; Megatron-LM schedules.py")
def _one_forward_one_backward(shape: ScheduleShape) -> list[list[Cell]]:
    """Warm-up of ranks - rank - 1 forward passes, then forward and backward in turn."""
    return [_in_turn(_all(shape, rank, FORWARD), _all(shape, rank, BACKWARD), warm=shape.ranks - rank - 1) for rank in range(shape.ranks)]


@schedule("zb-h1", _ZERO_BUBBLE, splits=True)
def _zb_h1(shape: ScheduleShape) -> list[list[Cell]]:
    """1F1B with weight gradients that wait: rank r delays r of them, so activations stay as in 1F1B."""
    return [_delayed(shape, rank, warm=shape.ranks - rank - 1, owed=rank) for rank in range(shape.ranks)]


@schedule("zb-h2", _ZERO_BUBBLE, splits=True)
def _zb_h2(shape: ScheduleShape) -> list[list[Cell]]:
    """Twice the warm-up of ZB-H1: no bubble for equal times, for twice the activations."""
    return [_delayed(shape, rank, warm=2 * (shape.ranks - rank - 1), owed=2 * rank) for rank in range(shape.ranks)]


def _delayed(shape: ScheduleShape, rank: int, warm: int, owed: int) -> list[Cell]:
    return _in_turn(_all(shape, rank, FORWARD), _all(shape, rank, DGRAD), warm, _all(shape, rank, WGRAD), owed)


def _all(shape: ScheduleShape, rank: int, kind: str) -> list[Cell]:
    return [Cell(kind, rank, i) for i in range(shape.microbatches)]


def _in_turn(ahead: list[Cell], behind: list[Cell], warm: int, weights: list[Cell] | None = None, owed: int = 0) -> list[Cell]:
    """`warm` cells of `ahead`, then one of `ahead` and one of `behind` in turn; `owed` of the `weights` wait."""
    row, weights = ahead[:warm], weights or []
    for i, cell in enumerate(behind):
        row += [*ahead[warm + i : warm + i + 1], cell]
        if i >= owed:
            row += weights[i - owed : i - owed + 1]
    return row + weights[max(0, len(weights) - owed) :]


@schedule("interleaved", "Megatron-LM, arXiv 2104.04473", chunks=0)
def _interleaved(shape: ScheduleShape) -> list[list[Cell]]:
    """1F1B over several chunks of a rank, micro-batches in groups."""
    return [_in_turn(_orders(shape, r, FORWARD), _orders(shape, r, BACKWARD), _warm_up(shape, r, hops=2)) for r in range(shape.ranks)]


@schedule("interleaved-overlap", "Megatron-LM, combined_1f1b.py", chunks=0)
def _interleaved_overlap(shape: ScheduleShape) -> list[list[Slot | Cell]]:
    """Interleaved with one more forward pass ahead: each further one runs beside a backward pass of another micro-batch."""
    rows: list[list[Slot | Cell]] = []
    for rank in range(shape.ranks):
        ahead, behind = _orders(shape, rank, FORWARD), _orders(shape, rank, BACKWARD)
        warm = min(len(ahead), _warm_up(shape, rank, hops=2) + 1)
        pairs: list[Slot | Cell] = [*zip(ahead[warm:], behind, strict=False)]
        rows.append([*ahead[:warm], *pairs, *behind[len(pairs) :]])
    return rows


@schedule("interleaved-zb", "PyTorch ScheduleInterleavedZeroBubble, after arXiv 2401.10241", chunks=0, splits=True)
def _interleaved_zero_bubble(shape: ScheduleShape) -> list[list[Cell]]:
    """Interleaved with split weight gradients: rank r delays r of them."""
    rows = []
    for rank in range(shape.ranks):
        ahead, behind = _orders(shape, rank, FORWARD), _orders(shape, rank, DGRAD)
        rows.append(_in_turn(ahead, behind, _warm_up(shape, rank, hops=1), [cell._replace(kind=WGRAD) for cell in behind], rank))
    return rows


@schedule("loop-bfs", "Breadth-First Pipeline Parallelism, arXiv 2211.05953", chunks=0)
def _loop_bfs(shape: ScheduleShape) -> list[list[Cell]]:
    """All forward passes of a chunk before the next chunk; backward in reverse."""
    rows = []
    for rank in range(shape.ranks):
        ahead = [Cell(FORWARD, c * shape.ranks + rank, i, c) for c in range(shape.chunks) for i in range(shape.microbatches)]
        rows.append(ahead + [cell._replace(kind=BACKWARD) for cell in reversed(ahead)])
    return rows


def _group(shape: ScheduleShape) -> int:
    """Micro-batches of a group: the given number, or as near to the number of ranks as equal groups allow."""
    least = min(shape.ranks, shape.microbatches)
    group = shape.group or next(n for n in range(least, shape.microbatches + 1) if shape.microbatches % n == 0)
    if group < least:
        raise ConfigError(f"interleaved schedule: found groups of {group} micro-batches, expected {shape.ranks} or more (ranks of the pipeline)")
    return group


def _warm_up(shape: ScheduleShape, rank: int, hops: int) -> int:
    """Forward passes before the first pair: all chunks but one of a group, and `hops` more for every rank behind."""
    ahead = (shape.chunks - 1) * _group(shape) + hops * (shape.ranks - 1 - rank)
    return min(ahead, shape.microbatches * shape.chunks)


def _orders(shape: ScheduleShape, rank: int, kind: str) -> list[Cell]:
    """The cells of a rank group by group, chunk by chunk (backward: last chunk first)."""
    chunks = range(shape.chunks) if kind == FORWARD else range(shape.chunks - 1, -1, -1)
    group, n = _group(shape), shape.microbatches
    return [Cell(kind, c * shape.ranks + rank, i, c) for first in range(0, n, group) for c in chunks for i in range(first, min(first + group, n))]
