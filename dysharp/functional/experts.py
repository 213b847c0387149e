"""The contract `Experts`, and two kinds of experts in NumPy: integers and gated floats."""

from typing import Protocol

import numpy as np

from dysharp.base import Array

EXACT = 1 << 53  # integers below this limit are exact in float64, and float64 GEMMs are fast


class Experts(Protocol):
    """The experts of one layer. Arrays: `[n, columns]` rows of one expert, in the work dtype (float32 or int64).

    `hidden`: columns of a token row. `inner`: columns of GEMM-1's result (gate and up together). `mid`: columns of the
    activation. The object adds up weight gradients.
    """

    n_experts: int
    hidden: int
    inner: int
    mid: int

    def gemm1(self, e: int, x: Array) -> Array:
        """`[n, hidden]` to `[n, inner]`, bias included."""

    def act(self, e: int, h: Array) -> Array:
        """`[n, inner]` to `[n, mid]`."""

    def gemm2(self, e: int, a: Array) -> Array:
        """`[n, mid]` to `[n, hidden]`, bias included, without the gate weight."""

    def gemm2_dgrad(self, e: int, dy: Array) -> Array:
        """`dy W2^T`: `[n, hidden]` to `[n, mid]`."""

    def gate_grad(self, e: int, a: Array, dy: Array, g: Array) -> Array:
        """`[n]` gradient of each row's gate weight: `<g, a>` with `g = dy W2^T`, plus `<dy, b2>`."""

    def act_grad(self, e: int, h: Array, da: Array) -> Array:
        """`[n, mid]` to `[n, inner]`."""

    def gemm1_dgrad(self, e: int, dh: Array) -> Array:
        """`dh W1^T`: `[n, inner]` to `[n, hidden]`."""

    def gemm2_wgrad(self, e: int, a: Array, wdy: Array) -> None:
        """Add `a^T wdy`, `wdy` being the output gradient times the gate weight."""

    def gemm1_wgrad(self, e: int, x: Array, dh: Array) -> None:
        """Add `x^T dh`."""

    def take_grads(self) -> dict[str, Array]:
        """The weight gradients by name, summed since the last call. The sums then restart from zero."""


def _matmul(a: Array, b: Array) -> Array:
    """`a @ b`. Integers go through float64, which is exact because all sums stay far below 2^53."""
    if a.dtype.kind != "i":
        return a @ b
    bound = float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0)) * a.shape[1]
    if bound >= EXACT:
        return a @ b
    product: Array = np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return product


class _TwoMatrices:
    """Experts with two weight matrices and their gradients. Subclasses add the activation."""

    def __init__(self, w1: Array, w2: Array) -> None:
        self.w1, self.w2 = w1, w2
        self.n_experts, self.hidden, self.inner = w1.shape
        self.mid = w2.shape[1]
        self._grads: dict[str, Array] = {}

    def gemm1(self, e: int, x: Array) -> Array:
        return _matmul(x, self.w1[e])

    def gemm2(self, e: int, a: Array) -> Array:
        return _matmul(a, self.w2[e])

    def gemm2_dgrad(self, e: int, dy: Array) -> Array:
        return _matmul(dy, self.w2[e].T)

    def gate_grad(self, e: int, a: Array, dy: Array, g: Array) -> Array:
        out: Array = (g * a).sum(axis=1)
        return out

    def gemm1_dgrad(self, e: int, dh: Array) -> Array:
        return _matmul(dh, self.w1[e].T)

    def gemm2_wgrad(self, e: int, a: Array, wdy: Array) -> None:
        self._grad("w2")[e] += _matmul(a.T, wdy)

    def gemm1_wgrad(self, e: int, x: Array, dh: Array) -> None:
        self._grad("w1")[e] += _matmul(x.T, dh)

    def _grad(self, name: str) -> Array:
        if name not in self._grads:
            self._grads[name] = np.zeros_like(getattr(self, name))
        return self._grads[name]

    def take_grads(self) -> dict[str, Array]:
        taken = {name: self._grad(name) for name in ("w1", "w2")}
        self._grads = {}
        return taken


class IntegerExperts(_TwoMatrices):
    """Two-matrix experts on integers with ReLU. Every sum is exact in any order. Weights are -1, 0 or 1."""

    def __init__(self, n_experts: int, hidden: int, expert_hidden: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(rng.integers(-1, 2, (n_experts, hidden, expert_hidden)), rng.integers(-1, 2, (n_experts, expert_hidden, hidden)))

    def act(self, e: int, h: Array) -> Array:
        return np.maximum(h, 0)

    def act_grad(self, e: int, h: Array, da: Array) -> Array:
        return da * (h > 0)


class GatedExperts(_TwoMatrices):
    """Gated experts on floats, `silu(gate) * up`. GEMM-1 has the columns gate, then up. Outputs are of order 1."""

    def __init__(self, n_experts: int, hidden: int, expert_hidden: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        w1 = rng.standard_normal((n_experts, hidden, 2 * expert_hidden), np.float32) / np.float32(np.sqrt(hidden))
        w2 = rng.standard_normal((n_experts, expert_hidden, hidden), np.float32) / np.float32(np.sqrt(expert_hidden))
        super().__init__(w1, w2)

    def act(self, e: int, h: Array) -> Array:
        gate, up = np.split(h, 2, axis=1)
        out: Array = gate * _sigmoid(gate) * up
        return out

    def act_grad(self, e: int, h: Array, da: Array) -> Array:
        gate, up = np.split(h, 2, axis=1)
        s = _sigmoid(gate)
        return np.concatenate((da * up * s * (1 + gate * (1 - s)), da * gate * s), axis=1)


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    out: Array = one / (one + np.exp(-np.clip(x, -80, 80)))
    return out
