"""References: the recorded sums on independently moved data (bit for bit), and a dense layer in plain order."""

from collections.abc import Callable

import numpy as np

from dysharp.base import Array, EmulationMismatch, Texts, frozen
from dysharp.functional.layer import Buffers, RecordedTile, RunRecord, Tensors, run_tile
from dysharp.functional.sums import evaluate, slots_of
from dysharp.program.tables import ALL_COLUMNS, ColumnRange


@frozen
class _Reference:
    """`out`: `[tokens, hidden]`. `gate_grad`: `[tokens, topk]`, backward pass only."""

    out: Array
    gate_grad: Array | None


class _Rows(Buffers):
    """The memory of the reference: rows of all (token, expert slot) choices, in the order of the routing."""

    def __init__(self, t: Tensors) -> None:
        token, column = np.nonzero(t.routing.slot >= 0)
        super().__init__(t, len(token))
        self.token, self.column, self.slot = token, column, t.routing.slot[token, column]
        self.index = {(int(a), int(s)): i for i, (a, s) in enumerate(zip(token, self.slot, strict=True))}
        self.weight = t.weight[token, column]


class _Gathered:
    """Memory for `run_tile`: the rows of a tile, gathered from `_Rows` and scattered back after the computation."""

    def __init__(self, rows: _Rows, index: Array, given: dict[str, Array]) -> None:
        self._from, self._index = rows, index
        self._cache = dict(given)
        self.weight = rows.weight[index]
        self.gate_grad = np.zeros(len(index), rows.gate_grad.dtype)

    def rows(self, name: str) -> Array:
        if name not in self._cache:
            self._cache[name] = self._from.rows(name)[self._index]
        return self._cache[name]

    def scatter(self, names: Texts) -> None:
        for name in names:
            self._from.rows(name)[self._index] = self._cache[name]


WRITES = {"gemm1": ("h", "a"), "gemm2": ("y",), "gemm2_dgrad": ("dh",), "gemm1_dgrad": ("dx",), "gemm2_wgrad": (), "gemm1_wgrad": ()}
FORWARD, BACKWARD = ("gemm1", "gemm2"), ("gemm2_dgrad", "gemm1_dgrad", "gemm2_wgrad", "gemm1_wgrad")


def recorded_reference(t: Tensors, record: RunRecord, *, forward: RunRecord | None = None) -> _Reference:
    """The expected results: the recorded tiles and sums, on rows taken from the inputs.

    `forward`: record of the forward pass, for a backward pass. `t.tokens` is then dy, and activations are computed again from the inputs in
    `t.saved`. Raises EmulationMismatch for a (token, expert) choice that was not computed and added exactly once.
    """
    rows = _Rows(t)
    backward = t.saved is not None
    if t.saved is not None and forward is not None:
        # The forward inputs by (token, slot). All rows of a token are equal.
        by_token = np.zeros((t.routing.n_tokens, t.experts.hidden), t.number.stored)
        by_token[t.saved.key] = t.saved.x
        rows.rows("x")[:] = by_token[rows.token]
        _run(t, rows, [tile for tile in forward.tiles if tile[0] == "gemm1"])
    if backward:
        rows.rows("dy")[:] = t.tokens[rows.token]
    _run(t, rows, record.tiles)
    _check_once(rows, record, BACKWARD if backward else FORWARD)
    out = _add_up(t, rows, record, rows.rows("dx" if backward else "y"))
    if not backward:
        return _Reference(out, None)
    gate = np.zeros(t.weight.shape, t.number.work)
    gate[rows.token, rows.column] = rows.gate_grad
    return _Reference(out, gate)


def _run(t: Tensors, rows: _Rows, tiles: list[RecordedTile]) -> None:
    slot_expert = t.routing.placement.slot_expert.tolist()
    for fn, slot, tokens, columns in tiles:
        missing = [token for token in tokens if (token, slot) not in rows.index]
        if missing:
            raise EmulationMismatch(f"{fn} in expert slot {slot}: found token {missing[0]} in a tile, expected tokens that chose it")
        index = np.array([rows.index[token, slot] for token in tokens], np.int64)
        # A forward pass reads inputs from the tokens and keeps no activations, which halves the memory.
        forward = t.saved is None
        tile = _Gathered(rows, index, {"x": t.tokens[rows.token[index]]} if forward and fn == "gemm1" else {})
        run_tile(fn, slot_expert[slot], slice(0, len(index)), tile, t, columns)
        tile.scatter(("a",) if forward and fn == "gemm1" else WRITES[fn])
        if fn == "gemm2_dgrad":
            rows.gate_grad[index] = tile.gate_grad


def _check_once(rows: _Rows, record: RunRecord, functions: Texts) -> None:
    for fn in functions:
        ranges = _ranges(fn, record) or [ALL_COLUMNS]
        count = np.zeros((len(rows.token), len(ranges)), np.int64)
        for name, slot, tokens, columns in record.tiles:
            if name == fn:
                np.add.at(count[:, ranges.index(columns)], [rows.index[token, slot] for token in tokens], 1)
        if (count != 1).any():
            i, k = (int(x) for x in np.argwhere(count != 1)[0])
            where = "" if ranges[k] == ALL_COLUMNS else f" in columns {ranges[k]}"
            found = f"found token {rows.token[i]} computed {count[i, k]} times in expert slot {rows.slot[i]}"
            raise EmulationMismatch(f"{fn}: {found}{where}, expected once")


def _ranges(fn: str, record: RunRecord) -> list[ColumnRange]:
    """The ranges of columns in which `fn` was computed, rising. Raises EmulationMismatch for ranges that do not cover a row."""
    ranges = sorted({columns for name, _, _, columns in record.tiles if name == fn})
    if ranges and [0, *(end for _, end, _ in ranges)] != [*(first for first, _, _ in ranges), ranges[0][2]]:
        raise EmulationMismatch(f"{fn}: found the columns {ranges}, expected ranges that follow each other from 0 to {ranges[0][2]}")
    return ranges


def _add_up(t: Tensors, rows: _Rows, record: RunRecord, values: Array) -> Array:
    """`[tokens, hidden]` sums, computed by the recorded expressions, chunk by chunk."""
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
    return lambda slot: values[rows.index[token, slot], part]


def dense_forward(t: Tensors) -> Array:
    """`[tokens, hidden]` in the work dtype: the dense layer without rounding.

    Each expert computes all its tokens at once. Sums are in float64, of integers exact.
    """
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
    """(`[tokens, hidden]` dx, `[tokens, topk]` gate gradients) of the dense layer without rounding.

    `x`: forward inputs. The experts add up their weight gradients.
    """
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
