"""Tokens with exactly the recorded counts, for dumps that contain counts and no tokens."""

import numpy as np
from numpy.typing import NDArray

from dysharp.base.arrays import F64, I32, I64, Array, Reals
from dysharp.base.errors import ConfigError
from dysharp.workload.importers.pieces import Hints, Imported
from dysharp.workload.traces import Recording

_ROUNDS_PER_CHOICE = 6  # exchanges per choice on average: exp(-6) of the choices keep their first token
_MAX_TOKENS = 1 << 19
_MAX_COUNT = 10**13  # the sum of 2^16 such counts fits in int64
_BYTES_PER_CHOICE = 16  # peak memory of the draw, per (token, expert)


def check_counts(where: str, count: Reals, layers: tuple[int, ...]) -> None:
    """Raises ConfigError that names layer and expert for a count that is negative, NaN or above 10^13.

    `count`: [layers, experts]. `layers`: the layer number of every row.
    """
    with np.errstate(invalid="ignore"):
        wrong = ~((count >= 0) & (count <= _MAX_COUNT))
    if wrong.any():
        row, expert = (int(i) for i in np.argwhere(wrong)[0])
        raise ConfigError(f"{where}: layer {layers[row]}, expert {expert}: found count {count[row, expert]}, expected 0 to {_MAX_COUNT}")


def summed(where: str, count: Array) -> Array:
    """The sum [layers, experts] of `count` [steps, layers, experts]. Every step is checked as by `check_counts`."""
    total: Array = np.zeros(count.shape[1:], dtype=np.float64 if count.dtype.kind == "f" else np.int64)
    for step, addend in enumerate(count):
        check_counts(f"{where}: step {step}", addend, tuple(range(len(addend))))
        total = total + addend
        check_counts(where, total, tuple(range(len(total))))
    return total


def draw_exact(rng: np.random.Generator, count: I64, topk: int, n_tokens: int) -> I32:
    """Expert ids [n_tokens, topk] int32, distinct within a token. Expert `e` occurs exactly `count[e]` times.

    `count`: [n_experts]. No count is above `n_tokens`, and their sum is at most `n_tokens * topk`. -1 fills the
    remaining places. The draw is nearly uniform among all such tables: experts are dealt one after the other, then
    random pairs of tokens exchange experts. A token gives an expert only to a token that does not have it.
    """
    order = rng.permutation(count.size)
    dealt = np.full(n_tokens * topk, -1, dtype=np.int32)
    dealt[: count.sum()] = np.repeat(order, count[order])
    # Token t gets every n_tokens-th entry. A run of one expert is at most n_tokens long, so no token gets it twice.
    expert = np.ascontiguousarray(dealt.reshape(topk, n_tokens).T)
    column = np.arange(n_tokens // 2)
    for _ in range(_ROUNDS_PER_CHOICE * topk if n_tokens > 1 else 0):
        pair = rng.permutation(n_tokens)[: n_tokens // 2 * 2].reshape(2, -1)
        place = rng.integers(0, topk, size=pair.shape)
        first, second = expert[pair[0]], expert[pair[1]]
        a, b = first[column, place[0]], second[column, place[1]]
        fits = ((second != a[:, None]) | (a < 0)[:, None]).all(axis=1) & ((first != b[:, None]) | (b < 0)[:, None]).all(axis=1)
        expert[pair[0][fits], place[0][fits]] = b[fits]
        expert[pair[1][fits], place[1][fits]] = a[fits]
    return np.asarray(expert[rng.permutation(n_tokens)])


def scaled(load: F64, n_choices: int) -> I64:
    """Whole counts with sum `n_choices`, proportional to `load`, by largest remainder. The lower id wins a tie."""
    share = load / load.sum() * n_choices
    count = np.floor(share).astype(np.int64)
    rest = n_choices - int(count.sum())
    count[np.argsort(count - share, kind="stable")[:rest]] += 1
    return np.asarray(count)


def imported_counts(
    format_name: str, where: str, name: str, count: Reals, layers: tuple[int, ...], hints: Hints, notes: tuple[str, ...] = ()
) -> Imported:
    """A Recording that is drawn from `count` [layers, experts]. Each layer has its own random stream.

    Layers without any load are left out. Without `hints.tokens` the counts must be whole numbers, and the drawn tokens have exactly these counts.
    With `hints.tokens` the counts are scaled to that number of tokens first. Raises ConfigError.
    """
    topk = hints.need("topk", where, " of counts")
    if count.shape[1] > 1 << 16:
        raise ConfigError(f"{where}: found {count.shape[1]} experts, expected at most {1 << 16}")
    if topk > count.shape[1]:
        raise ConfigError(f"{where}: found top-{topk}, expected at most the {count.shape[1]} experts")
    if hints.experts not in (None, count.shape[1]):
        raise ConfigError(f"{where}: found counts of {count.shape[1]} experts, expected {hints.experts}")
    check_counts(where, count, layers)
    rows = _rows_with_load(where, count, layers, hints.layers)
    if len(rows) < len(layers) and hints.layers is None:
        notes = (*notes, f"{len(layers) - len(rows)} layers without counts: left out")
    loads = [_whole_counts(where, count[row], layers[row], topk, hints.tokens) for row in rows]
    n_tokens = [_n_tokens(f"{where}: layer {layers[row]}", load, topk) for row, load in zip(rows, loads, strict=True)]
    n_bytes = len(rows) * max(n_tokens) * topk * _BYTES_PER_CHOICE
    if n_bytes > hints.max_bytes:
        size = f"{where}: drawing {max(n_tokens)} tokens takes {n_bytes} bytes"
        raise ConfigError(f"{size}, expected at most {hints.max_bytes}; --tokens T takes fewer")
    dtype = np.int16 if count.shape[1] <= 1 << 15 else np.int32
    expert: NDArray[np.signedinteger] = np.full((len(rows), max(n_tokens), topk), -1, dtype=dtype)
    for index, (row, load, used) in enumerate(zip(rows, loads, n_tokens, strict=True)):
        rng = np.random.default_rng(np.random.SeedSequence(hints.seed, spawn_key=(layers[row],)))
        expert[index, :used] = draw_exact(rng, load, topk, used)
    exactly = "exactly the recorded counts" if hints.tokens is None else f"the recorded counts scaled to {hints.tokens} tokens"
    origin = f"tokens drawn with {exactly} ({format_name})"
    incomplete = int(np.less(expert, 0).any(axis=2).sum())
    if incomplete:
        notes = (*notes, f"{incomplete} rows with -1, because the counts do not fill every token: a replay leaves them out")
    trace = Recording(name, expert, tuple(layers[row] for row in rows), None, count.shape[1], None, True, origin)
    return Imported(trace, format_name, (origin, *notes))


def _rows_with_load(where: str, count: Reals, layers: tuple[int, ...], wanted: tuple[int, ...] | None) -> list[int]:
    loaded = [row for row in range(len(layers)) if count[row].any()]
    for layer in wanted or ():
        if layer not in [layers[row] for row in loaded]:
            raise ConfigError(f"{where}: no counts for layer {layer}, expected some of {', '.join(str(layers[row]) for row in loaded[:40])}")
    if not loaded:
        raise ConfigError(f"{where}: all counts are zero, expected some above")
    return loaded if wanted is None else [layers.index(layer) for layer in dict.fromkeys(wanted)]


def _n_tokens(where: str, load: I64, topk: int) -> int:
    """The number of tokens that the counts of a layer stand for. Raises ConfigError if no tokens have these counts."""
    n_tokens = -(-int(load.sum()) // topk)
    if n_tokens > _MAX_TOKENS:
        raise ConfigError(f"{where}: the counts stand for {n_tokens} tokens, expected at most {_MAX_TOKENS}; --tokens T scales them down")
    if load.max() > n_tokens:
        count = f"{where}, expert {load.argmax()}: found count {load.max()}"
        raise ConfigError(f"{count}, expected at most one for each of {n_tokens} tokens of top-{topk}")
    return n_tokens


def _whole_counts(where: str, load: Reals, layer: int, topk: int, tokens: int | None) -> I64:
    if tokens is not None:
        return scaled(load.astype(np.float64), tokens * topk)
    if (load != np.floor(load)).any():
        expert = int((load != np.floor(load)).argmax())
        raise ConfigError(f"{where}: layer {layer}, expert {expert}: found {load[expert]}, expected a whole count, or --tokens T to scale loads")
    return np.asarray(load.astype(np.int64))
