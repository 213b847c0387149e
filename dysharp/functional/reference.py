"""References: the same sums again on independently moved data (bit for bit), and a dense computation in plain order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import EmulationMismatch
from dysharp.functional.layer import Record, Tensors, run_tile
from dysharp.functional.sums import evaluate, slots_of

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """`out` `[tokens, hidden]`; `gate_grad` `[tokens, topk]` of a backward pass."""

    out: Array
    gate_grad: Array | None


class _Rows:
    """Rows of all (token, expert slot) choices, in the order of the routing: the reference's own memory."""

    def __init__(self, t: Tensors) -> None:
        r, e, n = t.routing, t.experts, t.number
        token, column = np.nonzero(r.slot >= 0)
        self.token, self.column, self.slot = token, column, r.slot[token, column]
        self.index = {(int(a), int(s)): i for i, (a, s) in enumerate(zip(token, self.slot, strict=True))}
        self._columns = {"x": e.hidden, "h": e.inner, "a": e.mid, "y": e.hidden, "dy": e.hidden, "dh": e.inner, "dx": e.hidden}
        self._rows: dict[str, Array] = {}
        self._number = n
        self.weight = t.weight[token, column]
        self.gate_grad = np.zeros(len(token), n.work)

    def rows(self, name: str) -> Array:
        if name not in self._rows:
            self._rows[name] = self._number.poison((len(self.token), self._columns[name]))
        return self._rows[name]


class _Gathered:
    """A tile's rows gathered out of `_Rows`, computed on, and scattered back: what `run_tile` sees as memory."""

    def __init__(self, rows: _Rows, index: Array, given: dict[str, Array]) -> None:
        self._from, self._index = rows, index
        self._cache = dict(given)
        self.weight = rows.weight[index]
        self.gate_grad = np.zeros(len(index), rows.gate_grad.dtype)

    def rows(self, name: str) -> Array:
        if name not in self._cache:
            self._cache[name] = self._from.rows(name)[self._index]
        return self._cache[name]

    def scatter(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._from.rows(name)[self._index] = self._cache[name]


WRITES = {"gemm1": ("h", "a"), "gemm2": ("y",), "gemm2_dgrad": ("dh",), "gemm1_dgrad": ("dx",), "gemm2_wgrad": (), "gemm1_wgrad": ()}
FORWARD, BACKWARD = ("gemm1", "gemm2"), ("gemm2_dgrad", "gemm1_dgrad", "gemm2_wgrad", "gemm1_wgrad")


def recorded_reference(t: Tensors, record: Record, *, forward: Record | None = None) -> Reference:
    """What the machine should have produced: the recorded tiles and sums, on rows taken straight from the inputs.

    `forward`: the record of the forward pass, for a backward one (`t.tokens` is then dy; activations are computed again from `t.saved`'s
    inputs). Raises EmulationMismatch when a (token, expert) choice of the routing was computed or added not exactly once.
    """
    rows = _Rows(t)
    backward = t.saved is not None
    if t.saved is not None and forward is not None:
        rows.rows("x")[:] = _saved_inputs(t, rows)
        _run(t, rows, [tile for tile in forward.tiles if tile[0] == "gemm1"])
    if backward:
        rows.rows("dy")[:] = t.tokens[rows.token]
    _run(t, rows, record.tiles)
    _check_once(rows, record, BACKWARD if backward else FORWARD)
    out = _add_up(t, rows, record, rows.rows("dx" if backward else "y"))
    if not backward:
        return Reference(out, None)
    gate = np.zeros(t.weight.shape, t.number.work)
    gate[rows.token, rows.column] = rows.gate_grad
    return Reference(out, gate)


def _saved_inputs(t: Tensors, rows: _Rows) -> Array:
    """The forward inputs by (token, slot): all rows of a token hold the same vector."""
    assert t.saved is not None
    by_token = np.zeros((t.routing.n_tokens, t.experts.hidden), t.number.stored)
    by_token[t.saved.key] = t.saved.x
    taken: Array = by_token[rows.token]
    return taken


def _run(t: Tensors, rows: _Rows, tiles: list[tuple[str, int, tuple[int, ...]]]) -> None:
    slot_expert = t.routing.placement.slot_expert.tolist()
    for fn, slot, tokens in tiles:
        missing = [token for token in tokens if (token, slot) not in rows.index]
        if missing:
            raise EmulationMismatch(f"{fn} in expert slot {slot}: found token {missing[0]} in a tile, expected tokens that chose it")
        index = np.array([rows.index[token, slot] for token in tokens], np.int64)
        # Forward, inputs come straight from the tokens and activations are not kept: half the memory.
        forward = t.saved is None
        tile = _Gathered(rows, index, {"x": t.tokens[rows.token[index]]} if forward and fn == "gemm1" else {})
        run_tile(fn, slot_expert[slot], slice(0, len(index)), tile, t)
        tile.scatter(("a",) if forward and fn == "gemm1" else WRITES[fn])
        if fn == "gemm2_dgrad":
            rows.gate_grad[index] = tile.gate_grad


def _check_once(rows: _Rows, record: Record, functions: tuple[str, ...]) -> None:
    for fn in functions:
        count = np.zeros(len(rows.token), np.int64)
        for name, slot, tokens in record.tiles:
            if name == fn:
                np.add.at(count, [rows.index[token, slot] for token in tokens], 1)
        if len(count) and (count != 1).any():
            i = int((count != 1).argmax())
            raise EmulationMismatch(f"{fn}: found token {rows.token[i]} computed {count[i]} times in expert slot {rows.slot[i]}, expected once")


def _add_up(t: Tensors, rows: _Rows, record: Record, values: Array) -> Array:
    """`[tokens, hidden]` sums by the recorded expressions, chunk by chunk."""
    hidden, n = t.experts.hidden, t.number
    out = np.zeros((t.routing.n_tokens, hidden), n.stored)
    for token in range(t.routing.n_tokens):
        chosen = sorted(int(s) for s in t.routing.slot[token] if s >= 0)
        expressions = record.sums.get(token)
        if expressions is None:
            if chosen:
                raise EmulationMismatch(f"token {token}: found no sum, expected one over expert slots {chosen}")
            continue
        width = record.chunk or hidden
        if len(expressions) != -(-hidden // width):
            raise EmulationMismatch(f"token {token}: found sums of {len(expressions)} chunks, expected {-(-hidden // width)}")
        for c, expression in enumerate(expressions):
            added = sorted(slots_of(expression))
            if added != chosen:
                raise EmulationMismatch(f"token {token}: found a sum over expert slots {added}, expected {chosen}")
            part = slice(c * width, min((c + 1) * width, hidden))
            out[token, part] = evaluate(expression, _reader(rows, values, token, part), part.stop - part.start, n)
    return out


def _reader(rows: _Rows, values: Array, token: int, part: slice) -> Callable[[int], Array]:
    def read(slot: int) -> Array:
        row: Array = values[rows.index[token, slot], part]
        return row

    return read


def dense_forward(t: Tensors) -> Array:
    """`[tokens, hidden]` work dtype: every expert on all its tokens at once, nothing rounded, sums in float64 (integers exactly)."""
    r, e, n = t.routing, t.experts, t.number
    wide = np.dtype(np.int64 if n.is_integer else np.float64)
    out = np.zeros((r.n_tokens, e.hidden), wide)
    for expert in range(r.n_experts):
        token, column = np.nonzero((r.expert == expert) & (r.slot >= 0))
        if len(token):
            x = n.load(t.tokens[token])
            y = e.gemm2(expert, e.act(expert, e.gemm1(expert, x)))
            out[token] = out[token] + t.weight[token, column, None].astype(wide) * y.astype(wide)
    return out


def dense_backward(t: Tensors, x: Array) -> tuple[Array, Array]:
    """(`[tokens, hidden]` dx, `[tokens, topk]` gate gradients), nothing rounded; weight gradients add up in the experts. `x`: forward inputs."""
    r, e, n = t.routing, t.experts, t.number
    wide = np.dtype(np.int64 if n.is_integer else np.float64)
    dx, gate = np.zeros((r.n_tokens, e.hidden), wide), np.zeros((r.n_tokens, r.topk), wide)
    for expert in range(r.n_experts):
        token, column = np.nonzero((r.expert == expert) & (r.slot >= 0))
        if not len(token):
            continue
        rows, dy, w = n.load(x[token]), n.load(t.tokens[token]), t.weight[token, column, None]
        h = e.gemm1(expert, rows)
        a = e.act(expert, h)
        g = e.gemm2_dgrad(expert, dy)
        gate[token, column] = e.gate_grad(expert, a, dy, g)
        dh = e.act_grad(expert, h, w * g)
        dx[token] = dx[token] + e.gemm1_dgrad(expert, dh)
        e.gemm2_wgrad(expert, a, w * dy)
        e.gemm1_wgrad(expert, rows, dh)
    return dx, gate
