"""A merged block with attention and shared experts: tensors of a forward block beside a backward block equal autograd's, bit for bit on integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dysharp.engine.burst.run import run_burst
from dysharp.functional.experts import IntegerExperts
from dysharp.functional.layer import Tensors
from dysharp.functional.machine import Machine
from dysharp.functional.merged import run_merged
from dysharp.functional.numbers import number
from dysharp.functional.rows import Outcome
from dysharp.program import Program
from dysharp.program.verify import verify
from dysharp.training.merged import (
    ATTENTION_B,
    ATTENTION_F,
    MOE_B,
    MOE_F,
    SHARED_B,
    SHARED_F,
    WEIGHTS,
    MergedKernel,
    _merged_block,
    kernels_program,
    label,
)

torch = pytest.importorskip("torch")
Array = NDArray[Any]
GPUS, TOKENS, HIDDEN, MID, N_EXPERTS, TOPK = 4, 5, 64, 32, 8, 2
NAMES = ("q", "k", "v", "o", "up", "down")


class Block:
    """y = h + experts(h) + shared(h), h = x + attention(x), on integers: causal attention without softmax, a shared expert with ReLU."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        shapes = ((HIDDEN, HIDDEN),) * 4 + ((HIDDEN, MID), (MID, HIDDEN))
        self.w = {name: self.rng.integers(-1, 2, shape) * (self.rng.random(shape) < 0.1) for name, shape in zip(NAMES, shapes, strict=True)}
        self.grads: dict[str, Array] = {name: np.zeros(w.shape, np.int64) for name, w in self.w.items()}

    def attention(self, x: Array) -> Array:
        q, k, v = (x @ self.w[name] for name in "qkv")
        return np.tril(q @ k.T) @ v @ self.w["o"]

    def attention_back(self, x: Array, dy: Array, *, weights: bool) -> Array:
        q, k, v = (x @ self.w[name] for name in "qkv")
        s = np.tril(q @ k.T)
        do = dy @ self.w["o"].T
        ds = np.tril(do @ v.T)
        d = {"q": ds @ k, "k": ds.T @ q, "v": s.T @ do}
        if weights:
            self.grads["o"] += (s @ v).T @ dy
            for name in "qkv":
                self.grads[name] += x.T @ d[name]
        return sum((d[name] @ self.w[name].T for name in "qkv"), np.zeros_like(x))

    def shared(self, h: Array) -> Array:
        return np.maximum(h @ self.w["up"], 0) @ self.w["down"]

    def shared_back(self, h: Array, dy: Array) -> Array:
        inner = h @ self.w["up"]
        d = (dy @ self.w["down"].T) * (inner > 0)
        self.grads["down"] += np.maximum(inner, 0).T @ dy
        self.grads["up"] += h.T @ d
        return d @ self.w["up"].T


class Pair:
    """Block A before its forward pass, block B after it."""

    def __init__(self, system: str) -> None:
        n, self.block = number("int32"), Block(7)
        rng = self.block.rng
        self.x = {name: rng.integers(-1, 2, (GPUS * TOKENS, HIDDEN)) for name in ("A", "B", "dy")}
        self.experts, self.machine = IntegerExperts(N_EXPERTS, HIDDEN, MID, 3), Machine(system, gpus=GPUS, path="row")
        self.h = {name: self.by_gpu(lambda x: x + self.block.attention(x), self.x[name]) for name in ("A", "B")}
        self.tensors: dict[str, Tensors] = {}
        for name in ("A", "B"):
            chosen = np.argsort(rng.random((GPUS * TOKENS, N_EXPERTS)), axis=1)[:, :TOPK]
            _, context = self.machine.forward(n.store(self.h[name]), chosen, rng.integers(1, 4, chosen.shape), self.experts)
            self.tensors[name] = self.machine.passes["forward"].tensors
        a, forward = self.tensors["A"], n.store(np.full((GPUS * TOKENS, HIDDEN), 77))  # attention writes what transfers read
        self.given = {MOE_F: Tensors(a.routing, n, self.experts, forward, a.weight)}
        c = context
        self.given[MOE_B] = Tensors(c.routing, n, self.experts, n.store(self.x["dy"]), c.weight, c.saved)
        self.y, self.dx = np.zeros_like(self.h["A"]), np.zeros_like(self.h["B"])
        self.dh = np.zeros_like(self.dx)

    def by_gpu(self, f: Callable[[Array], Array], x: Array) -> Array:
        return np.concatenate([f(one) for one in np.split(x, GPUS)])

    def program(self) -> Program:
        plans = {name: self.machine.plan(t) for name, t in self.given.items()}
        parts = {name: kernels_program([MergedKernel(name, 5.0)], plans[MOE_F]) for name in (ATTENTION_F, SHARED_F, SHARED_B, ATTENTION_B, WEIGHTS)}
        merged = _merged_block(parts | plans)
        verify(merged)
        return merged

    def kernel(self, name: str, gpu: int, of: Callable[[str], Outcome]) -> None:
        mine, block = slice(gpu * TOKENS, (gpu + 1) * TOKENS), self.block
        name = name.partition(".")[2] or name
        if name == ATTENTION_F:
            self.given[MOE_F].tokens[mine] = self.x["A"][mine] + block.attention(self.x["A"][mine])
        elif name == SHARED_F:
            h = self.given[MOE_F].tokens[mine].astype(np.int64)
            self.y[mine] = h + block.shared(h)
        elif name == SHARED_B:
            self.dh[mine] = block.shared_back(self.h["B"][mine], self.x["dy"][mine])
        elif name == ATTENTION_B:
            self.dh[mine] += self.x["dy"][mine] + of(label(MOE_B)).out[mine]
            self.dx[mine] = self.dh[mine] + block.attention_back(self.x["B"][mine], self.dh[mine], weights=False)
        else:
            block.attention_back(self.x["B"][mine], self.dh[mine], weights=True)

    def run(self, program: Program, order: str, **more: Any) -> None:
        tensors = {label(name): self.given.get(name, self.kernel) for name in (*self.given, ATTENTION_F, SHARED_F, SHARED_B, ATTENTION_B, WEIGHTS)}
        self.experts.take_grads()
        found = run_merged(program, tensors, order, **more)
        self.y += found[label(MOE_F)].out


def autograd(pair: Pair) -> tuple[Array, Array, dict[str, Array]]:
    """(y of A, gradient of B's input, gradients of weights), in float64, which is exact here."""
    w = {name: torch.tensor(one, dtype=torch.float64, requires_grad=True) for name, one in pair.block.w.items()}
    w |= {name: torch.tensor(getattr(pair.experts, name), dtype=torch.float64, requires_grad=True) for name in ("w1", "w2")}
    out = {}
    for name in ("A", "B"):
        x = torch.tensor(pair.x[name], dtype=torch.float64, requires_grad=True)
        rows = []
        for one in x.split(TOKENS):
            q, k, v = (one @ w[key] for key in "qkv")
            rows.append(one + torch.tril(q @ k.T) @ v @ w["o"])
        h, t = torch.cat(rows), pair.tensors[name]
        which = torch.tensor(t.routing.expert.astype(np.int64))
        inner = torch.relu(torch.einsum("nd,edh->neh", h, w["w1"])[torch.arange(len(h))[:, None], which])
        gate = torch.tensor(np.asarray(t.weight, np.float64))
        y = h + torch.relu(h @ w["up"]) @ w["down"] + (gate[..., None] * torch.einsum("nkm,nkmd->nkd", inner, w["w2"][which])).sum(1)
        out[name] = (x, y)
    x, y = out["B"]
    y.backward(torch.tensor(pair.x["dy"], dtype=torch.float64))
    return out["A"][1].detach().numpy(), x.grad.numpy(), {name: one.grad.numpy() for name, one in w.items()}


def check(pair: Pair) -> None:
    y, dx, grads = autograd(pair)
    np.testing.assert_array_equal(pair.y, y)
    np.testing.assert_array_equal(pair.dx, dx)
    for name, found in (*pair.block.grads.items(), *pair.experts.take_grads().items()):
        np.testing.assert_array_equal(found, grads[name], name)


@pytest.mark.parametrize(("system", "order"), [*itertools.product(("dysharp", "deepep", "nvls"), ("oldest", "random"))])
def test_a_pair_of_merged_blocks_gives_the_tensors_of_autograd(system: str, order: str) -> None:
    pair = Pair(system)
    pair.run(pair.program(), order)
    check(pair)


def test_the_order_of_the_engine() -> None:
    pair = Pair("dysharp")
    program = pair.program()
    pair.run(program, "trace", trace=run_burst(program)[0])
    check(pair)


def test_a_missing_wait_gives_wrong_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared experts that do not wait for attention, and attention (B) that does not wait for shared experts."""
    monkeypatch.setattr("dysharp.training.merged._waits", lambda *_: [])
    pair = Pair("dysharp")
    pair.run(pair.program(), "random", seed=1)
    with pytest.raises(AssertionError):
        check(pair)
