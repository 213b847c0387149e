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
        return self._product(0, e, x)

    def act(self, e: int, h: Array) -> Array:
        """`[n, inner]` to `[n, mid]`."""

    def gemm2(self, e: int, a: Array) -> Array:
        """`[n, mid]` to `[n, hidden]`, bias included, without the gate weight."""
        return self._product(1, e, a)

    def gemm2_dgrad(self, e: int, dy: Array) -> Array:
        """`dy W2^T`: `[n, hidden]` to `[n, mid]`."""
        return self._back(1, e, dy)

    def gate_grad(self, e: int, a: Array, dy: Array, g: Array) -> Array:
        """`[n]` gradient of each row's gate weight: `<g, a>` with `g = dy W2^T`, plus `<dy, b2>`."""
        out: Array = (g * a).sum(axis=1)
        return out

    def act_grad(self, e: int, h: Array, da: Array) -> Array:
        """`[n, mid]` to `[n, inner]`: `da` through the activation at `h`."""

    def gemm1_dgrad(self, e: int, dh: Array) -> Array:
        """`dh W1^T`: `[n, inner]` to `[n, hidden]`."""
        return self._back(0, e, dh)

    def gemm2_wgrad(self, e: int, a: Array, wdy: Array) -> None:
        """Add `a^T wdy`, `wdy` being the output gradient times the gate weight, to the gradient of W2, and the rows of `wdy` to that of b2."""
        self._learn(1, e, a, wdy)

    def gemm1_wgrad(self, e: int, x: Array, dh: Array) -> None:
        """Add `x^T dh` to the gradient of W1, and the rows of `dh` to that of b1."""
        self._learn(0, e, x, dh)

    def take_grads(self) -> dict[str, Array]:
        """The weight gradients by name, summed since the last call. The sums then restart from zero."""

    def _product(self, which: int, e: int, rows: Array) -> Array:
        """`rows` times matrix `which` of an expert, bias included."""

    def _back(self, which: int, e: int, rows: Array) -> Array:
        """`rows` times the matrix transposed."""

    def _learn(self, which: int, e: int, rows: Array, out_grad: Array) -> None:
        """Add to the gradient of the matrix and of its bias."""


def _matmul(a: Array, b: Array) -> Array:
    """`a @ b`. Integers go through float64, which is exact because all sums stay far below 2^53."""
    if a.dtype.kind != "i":
        return a @ b
    bound = float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0)) * a.shape[1]
    if bound >= EXACT:
        return a @ b
    return np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


class _TwoMatrices(Experts):
    """Experts with two weight matrices and their gradients. Subclasses add the activation."""

    def __init__(self, w1: Array, w2: Array) -> None:
        self.matrices = self.w1, self.w2 = w1, w2
        self._grads = np.zeros_like(w1), np.zeros_like(w2)
        self.n_experts, self.hidden, self.inner = w1.shape
        self.mid = w2.shape[1]

    def _product(self, which: int, e: int, rows: Array) -> Array:
        return _matmul(rows, self.matrices[which][e])

    def _back(self, which: int, e: int, rows: Array) -> Array:
        return _matmul(rows, self.matrices[which][e].T)

    def _learn(self, which: int, e: int, rows: Array, out_grad: Array) -> None:
        self._grads[which][e] += _matmul(rows.T, out_grad)

    def take_grads(self) -> dict[str, Array]:
        (w1, w2), self._grads = self._grads, (np.zeros_like(self.matrices[0]), np.zeros_like(self.matrices[1]))
        return {"w1": w1, "w2": w2}


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
