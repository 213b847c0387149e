"""A machine without a machine: a plain loop over experts with the rounding points of docs/design/0004, and tools to compare with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dysharp.functional.torch import ModuleExperts

torch.set_num_threads(1)

Array = NDArray[Any]


class DenseMachine:
    """`MoeMachine` in float32, rounded to the dtype of the hidden states wherever the machine stores a row, and once after the sum."""

    def forward(self, x: Array, expert: Array, weight: Array, experts: ModuleExperts) -> tuple[Array, Any]:
        rows, y = [], np.zeros(x.shape, np.float32)
        for e in range(experts.n_experts):
            token, place = np.nonzero(expert == e)
            h = stored(experts.gemm1(e, x[token].astype(np.float32)), x)
            a = stored(experts.act(e, h), x)
            np.add.at(y, token, stored(weight[token, place, None] * experts.gemm2(e, a), x))
            rows.append((token, place, h, a))
        return y.astype(x.dtype), (x, weight, rows)

    def backward(self, saved: Any, dy: Array, experts: ModuleExperts) -> tuple[Array, Array]:
        x, weight, rows = saved
        dx, dweight = np.zeros(x.shape, np.float32), np.zeros(weight.shape, np.float32)
        for e, (token, place, h, a) in enumerate(rows):
            d, w = dy[token].astype(np.float32), weight[token, place, None]
            g = experts.gemm2_dgrad(e, d)
            dweight[token, place] = experts.gate_grad(e, a, d, g)
            experts.gemm2_wgrad(e, a, w * d)
            dh = stored(experts.act_grad(e, h, stored(w * g, x)), x)
            experts.gemm1_wgrad(e, x[token].astype(np.float32), dh)
            np.add.at(dx, token, stored(experts.gemm1_dgrad(e, dh), x))
        return dx.astype(x.dtype), dweight


def stored(values: Array, like: Array) -> Array:
    """float32 `values` rounded to the dtype of `like`."""
    return values.astype(like.dtype).astype(np.float32)


def output(result: Any) -> torch.Tensor:
    """The hidden states of what a block returns (gpt-oss returns gate weights behind them)."""
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out


def run(block: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output, input gradient and every parameter's gradient, in float32."""
    block.zero_grad()
    x = x.clone().requires_grad_()
    y = output(block(x))
    y.backward(dy)
    out = {"y": y, "x": x.grad} | {n: p.grad for n, p in block.named_parameters()}
    return {n: t.detach().float().clone() for n, t in out.items() if t is not None}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())
