"""Tensors of small layers for the functional machine, in NumPy alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dysharp.arrays import Array
from dysharp.functional.experts import GatedExperts, IntegerExperts
from dysharp.functional.machine import Machine
from dysharp.functional.numbers import number


@dataclass(frozen=True)
class LayerCase:
    """Inputs of a layer: `x`, `dy` `[tokens, hidden]`, `expert`, `weight` `[tokens, topk]`."""

    x: Array
    dy: Array
    expert: Array
    weight: Array
    experts: Any


def layer_case(
    dtype: str = "int32",
    *,
    gpus: int = 4,
    tokens: int = 10,
    experts: int = 16,
    topk: int = 4,
    hidden: int = 96,
    expert_hidden: int = 16,
    seed: int = 0,
) -> LayerCase:
    """A layer of `tokens` tokens. Token 0 has no expert, and token 3 has one dropped choice."""
    rng = np.random.default_rng(seed)
    n = number(dtype)
    expert = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk]
    expert[0] = -1
    expert[3, 1] = -1
    if n.is_integer:
        x, dy = rng.integers(-3, 4, (2, tokens, hidden))
        return LayerCase(n.store(x), n.store(dy), expert, rng.integers(1, 4, expert.shape), IntegerExperts(experts, hidden, expert_hidden, seed))
    x, dy = rng.standard_normal((2, tokens, hidden))
    weight = rng.random(expert.shape).astype(np.float32)
    return LayerCase(n.store(x), n.store(dy), expert, weight, GatedExperts(experts, hidden, expert_hidden, seed))


def run_case(case: LayerCase, machine: Machine, *, backward: bool = False) -> tuple[Array, ...]:
    """(y,) or (y, dx, gate gradients, weight gradients of both matrices)."""
    y, context = machine.forward(case.x, case.expert, case.weight, case.experts)
    if not backward:
        return (y,)
    dx, gate = machine.backward(context, case.dy, case.experts)
    grads = case.experts.take_grads()
    return y, dx, gate, grads["w1"], grads["w2"]


NAMES = ("y", "dx", "gate gradients", "w1 gradients", "w2 gradients")
"""Names of the results of `run_case`."""
