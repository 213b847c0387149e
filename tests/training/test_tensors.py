"""Every schedule gives the gradients of plain autograd, bit for bit on integers."""

from __future__ import annotations

from typing import Any

import pytest

from dysharp.base.errors import EmulationMismatch
from dysharp.training.schedules import Cell, Schedule, all_schedules, make_schedule
from tests.training import schedule_tensors

torch = pytest.importorskip("torch")
tensors: Any = schedule_tensors

WIDTH = 4


def model(stages: int) -> list[object]:
    """Stages of integers in float64: sums and products up to 2^53 are exact, in any order."""
    generator = torch.Generator().manual_seed(stages)
    modules = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)).double() for _ in range(stages)]
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=generator).double()
    return modules


def loss(y: object) -> object:
    return (y * y).sum()  # type: ignore[operator]


@pytest.mark.parametrize("name", sorted(all_schedules()))
def test_gradients_equal_plain_autograd(name: str) -> None:
    torch.set_num_threads(1)
    ranks = 4
    schedule = make_schedule(name, ranks, 2 * ranks + (0 if name in ("interleaved", "interleaved-zb") else 2))
    modules = model(schedule.stages)
    generator = torch.Generator().manual_seed(7)
    shape = (schedule.directions, schedule.microbatches, 3, WIDTH)
    inputs = torch.randint(-1, 2, shape, generator=generator).double()
    found = tensors.train_step(schedule, modules, inputs, loss)
    total = loss(torch.nn.Sequential(*modules)(inputs.reshape(-1, WIDTH)))
    assert total < 2**53
    parameters = [parameter for module in modules for parameter in module.parameters()]
    expected = torch.autograd.grad(total, parameters)
    assert any(one.abs().sum() for one in expected)
    assert max(one.abs().max() for one in expected) < 2**53
    assert all(torch.equal(a, b) for a, b in zip((one for stage in found for one in stage), expected, strict=True))
    assert all(parameter.grad is None for parameter in parameters)


def test_an_order_that_waits_or_leaves_work_is_told() -> None:
    f, b, i = (Cell(kind, 0, 0) for kind in "FBI")
    x = torch.ones(1, 1, 3, WIDTH).double()
    with pytest.raises(EmulationMismatch, match="schedule own: found 1 activations or gradients at the end, expected none"):
        tensors.train_step(Schedule("own", 1, 1, 1, (((f,), (i,)),)), model(1), x, loss)
    far = tuple(((cell._replace(stage=1 - rank),),) for rank, cell in enumerate((f, b)))
    with pytest.raises(EmulationMismatch, match="schedule own: found all ranks waiting after 0 slots"):
        tensors.train_step(Schedule("own", 2, 1, 1, far), model(2), x, loss)
