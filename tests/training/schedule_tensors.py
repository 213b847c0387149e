"""A schedule on real tensors, in one process: every rank runs its slots in order on its own copy of its stages, and sends what others need.

The sum of all gradients is then that of plain autograd, bit for bit where sums are exact (integers). Needs the extra `torch`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dysharp.base.errors import EmulationMismatch
from dysharp.training.schedules.cells import BACKWARD, DGRAD, FORWARD, WGRAD, Cell, Schedule

if TYPE_CHECKING:
    import torch

Loss = Callable[["torch.Tensor"], "torch.Tensor"]


class _Rank:
    """A pipeline rank: copies of its stages, activations that wait for their backward passes, gradients that wait for W."""

    def __init__(self, schedule: Schedule, rank: int, modules: Sequence[Any]) -> None:
        held = {(cell.stage, cell.direction) for slot in schedule.slots[rank] for cell in slot}
        self.modules = {stage: copy.deepcopy(modules[stage]) for stage in sorted({stage for stage, _ in held})}
        self.saved: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.owed: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(self, cell: Cell, x: torch.Tensor) -> torch.Tensor:
        """The output of a stage, cut off from this rank's graph."""
        x = x.detach().requires_grad_()
        out = self.modules[cell.stage](x)
        self.saved[cell.stage, cell.microbatch, cell.direction] = (x, out)
        result: torch.Tensor = out.detach()
        return result

    def backward(self, cell: Cell, gradient: torch.Tensor | None, loss: Loss) -> torch.Tensor:
        """The gradient of a stage's input. `gradient`: that of its output (last stage: None). B adds up weight gradients, I leaves them to W."""
        import torch

        key = (cell.stage, cell.microbatch, cell.direction)
        x, out = self.saved.pop(key)
        if gradient is None:
            y = out.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(y), y)
        (of_input,) = torch.autograd.grad(out, x, gradient, retain_graph=True)
        self.owed[key] = (out, gradient)
        if cell.kind == BACKWARD:
            self.weights(cell)
        return of_input

    def weights(self, cell: Cell) -> None:
        """The weight gradients of a backward pass."""
        import torch

        out, gradient = self.owed.pop((cell.stage, cell.microbatch, cell.direction))
        parameters = list(self.modules[cell.stage].parameters())
        for parameter, one in zip(parameters, torch.autograd.grad(out, parameters, gradient), strict=True):
            parameter.grad = one if parameter.grad is None else parameter.grad + one


def train_step(schedule: Schedule, modules: Sequence[Any], inputs: Sequence[Sequence[torch.Tensor]], loss: Loss) -> list[list[torch.Tensor]]:
    """Gradients of the parameters of every stage after one step: summed over micro-batches, directions and copies of a stage.

    `modules[stage]`: a torch module with one tensor in and one out. `inputs[direction][microbatch]`: what stage 0 gets. `loss`: the loss of an
    output of the last stage. The modules stay as they are. Raises EmulationMismatch where ranks wait for each other or leave work undone.
    """
    ranks = [_Rank(schedule, rank, modules) for rank in range(schedule.ranks)]
    sent: dict[Key, torch.Tensor] = {}
    for direction, batches in enumerate(inputs):
        sent.update(((FORWARD, -1, i, direction), x) for i, x in enumerate(batches))
    done = [0] * schedule.ranks
    while any(count < len(slots) for count, slots in zip(done, schedule.slots, strict=True)):
        before = list(done)
        for rank, slots in enumerate(schedule.slots):
            while done[rank] < len(slots) and all(_arrived(_source(cell, schedule), sent) for cell in slots[done[rank]]):
                for cell in slots[done[rank]]:
                    _run(cell, ranks[rank], schedule, sent, loss)
                done[rank] += 1
        if done == before:
            raise EmulationMismatch(f"schedule {schedule.name}: found all ranks waiting after {sum(done)} slots, expected an order that runs")
    undone = sum(len(rank.saved) + len(rank.owed) for rank in ranks)
    if undone:
        raise EmulationMismatch(f"schedule {schedule.name}: found {undone} activations or gradients at the end, expected none")
    return [_summed(stage, ranks) for stage in range(schedule.stages)]


Key = tuple[str, int, int, int]


def _source(cell: Cell, schedule: Schedule) -> Key | None:
    """What a cell gets from another stage; None: nothing."""
    if cell.kind == WGRAD or (cell.kind != FORWARD and cell.stage + 1 == schedule.stages):
        return None
    flow, stage = (FORWARD, cell.stage - 1) if cell.kind == FORWARD else (DGRAD, cell.stage + 1)
    return flow, stage, cell.microbatch, cell.direction


def _arrived(source: Key | None, sent: dict[Key, torch.Tensor]) -> bool:
    return source is None or source in sent


def _run(cell: Cell, rank: _Rank, schedule: Schedule, sent: dict[Key, torch.Tensor], loss: Loss) -> None:
    """Run a cell whose input has arrived."""
    source = _source(cell, schedule)
    if cell.kind == WGRAD:
        rank.weights(cell)
    elif cell.kind == FORWARD and source is not None:
        out = rank.forward(cell, sent.pop(source))
        if cell.stage + 1 < schedule.stages:
            sent[FORWARD, cell.stage, cell.microbatch, cell.direction] = out
    else:
        gradient = rank.backward(cell, sent.pop(source) if source else None, loss)
        if cell.stage:
            sent[DGRAD, cell.stage, cell.microbatch, cell.direction] = gradient


def _summed(stage: int, ranks: Sequence[_Rank]) -> list[torch.Tensor]:
    """Gradients of a stage, summed over the ranks that hold it."""
    copies = [list(rank.modules[stage].parameters()) for rank in ranks if stage in rank.modules]
    return [sum((one.grad for one in same), start=0 * same[0]).detach() for same in zip(*copies, strict=True)]
