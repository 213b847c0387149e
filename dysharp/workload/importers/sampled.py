"""Tokens with exactly the recorded counts, for dumps that only count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError
from dysharp.workload.importers.hints import Hints
from dysharp.workload.importers.pieces import Imported
from dysharp.workload.traces import Recording

_ROUNDS_PER_CHOICE = 6  # each choice changes tokens about so often: exp(-6) of them stay where they were dealt
_MAX_TOKENS = 1 << 19
_MAX_COUNT = 10**13  # 2^16 of these still add up within int64
_BYTES_PER_CHOICE = 16  # peak of drawing, per (token, expert)


def check_counts(where: str, count: NDArray[np.integer] | NDArray[np.floating], layers: tuple[int, ...]) -> None:
    """Raises ConfigError naming layer and expert for a count that is negative, no number, or beyond 10^13. `count`: [layers, experts]."""
    with np.errstate(invalid="ignore"):
        wrong = ~((count >= 0) & (count <= _MAX_COUNT))
    if wrong.any():
        row, expert = (int(i) for i in np.argwhere(wrong)[0])
        raise ConfigError(f"{where}: layer {layers[row]}, expert {expert}: found count {count[row, expert]}, expected 0 to {_MAX_COUNT}")


def summed(where: str, count: NDArray[Any]) -> NDArray[Any]:
    """Counts [layers, experts] of [steps, layers, experts], every step checked: a negative one must not hide in a sum."""
    total: NDArray[Any] = np.zeros(count.shape[1:], dtype=np.float64 if count.dtype.kind == "f" else np.int64)
    for step, one in enumerate(count):
        check_counts(f"{where}: step {step}", one, tuple(range(len(one))))
        total = total + one
        check_counts(where, total, tuple(range(len(total))))
    return total


def draw_exact(rng: np.random.Generator, count: NDArray[np.int64], topk: int, n_tokens: int) -> NDArray[np.int32]:
    """[n_tokens, topk] int32 expert ids, distinct within a token, in which expert `e` stands exactly `count[e]` times; -1 fills what is left.

    `count`: [n_experts], none above `n_tokens`, together at most `n_tokens * topk`. Of all such tables one is drawn nearly uniformly: the
    counts are dealt out one expert after the other, then random pairs of tokens exchange experts that the other one lacks.
    """
    order = rng.permutation(count.size)
    dealt = np.full(n_tokens * topk, -1, dtype=np.int32)
    dealt[: count.sum()] = np.repeat(order, count[order])
    # Token t gets every n_tokens-th of the row, so no expert twice: its run is at most n_tokens long.
    expert = np.ascontiguousarray(dealt.reshape(topk, n_tokens).T)
    column = np.arange(n_tokens // 2)
    for _ in range(_ROUNDS_PER_CHOICE * topk if n_tokens > 1 else 0):
        pair = rng.permutation(n_tokens)[: n_tokens // 2 * 2].reshape(2, -1)
        place = rng.integers(0, topk, size=pair.shape)
        mine, yours = expert[pair[0]], expert[pair[1]]
        a, b = mine[column, place[0]], yours[column, place[1]]
        fits = ((yours != a[:, None]) | (a < 0)[:, None]).all(axis=1) & ((mine != b[:, None]) | (b < 0)[:, None]).all(axis=1)
        expert[pair[0][fits], place[0][fits]] = b[fits]
        expert[pair[1][fits], place[1][fits]] = a[fits]
    return np.asarray(expert[rng.permutation(n_tokens)])


def scaled(load: NDArray[np.float64], n_choices: int) -> NDArray[np.int64]:
    """Whole counts that add up to `n_choices`, proportional to `load` by largest remainder (ties to the lower id)."""
    share = load / load.sum() * n_choices
    count = np.floor(share).astype(np.int64)
    rest = n_choices - int(count.sum())
    count[np.argsort(count - share, kind="stable")[:rest]] += 1
    return np.asarray(count)


def imported_counts(
    format_name: str,
    where: str,
    name: str,
    count: NDArray[np.integer] | NDArray[np.floating],
    layers: tuple[int, ...],
    hints: Hints,
    notes: tuple[str, ...] = (),
) -> Imported:
    """A Recording drawn from loads [layers, experts], layer by layer with streams of their own; layers without any load are left out.

    Without `hints.tokens` the loads must be whole and are met exactly, by as many tokens as they stand for; with it they are scaled first.
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
    whole = [_whole(where, count[row], layers[row], topk, hints.tokens) for row in rows]
    n_tokens = [_n_tokens(f"{where}: layer {layers[row]}", load, topk) for row, load in zip(rows, whole, strict=True)]
    n_bytes = len(rows) * max(n_tokens) * topk * _BYTES_PER_CHOICE
    if n_bytes > hints.max_bytes:
        found = f"{where}: drawing {max(n_tokens)} tokens takes {n_bytes} bytes"
        raise ConfigError(f"{found}, expected at most {hints.max_bytes}; --tokens T takes fewer")
    dtype = np.int16 if count.shape[1] <= 1 << 15 else np.int32
    expert: NDArray[np.signedinteger] = np.full((len(rows), max(n_tokens), topk), -1, dtype=dtype)
    for index, (row, load, used) in enumerate(zip(rows, whole, n_tokens, strict=True)):
        rng = np.random.default_rng(np.random.SeedSequence(hints.seed, spawn_key=(layers[row],)))
        expert[index, :used] = draw_exact(rng, load, topk, used)
    exactly = "exactly the recorded counts" if hints.tokens is None else f"the recorded counts scaled to {hints.tokens} tokens"
    origin = f"tokens drawn with {exactly} ({format_name})"
    incomplete = int(np.less(expert, 0).any(axis=2).sum())
    if incomplete:
        notes = (*notes, f"{incomplete} rows with -1, since the counts do not fill every token: a replay leaves them out")
    trace = Recording(name, expert, tuple(layers[row] for row in rows), None, count.shape[1], None, True, origin)
    return Imported(trace, format_name, (origin, *notes))


def _rows_with_load(
    where: str, count: NDArray[np.integer] | NDArray[np.floating], layers: tuple[int, ...], wanted: tuple[int, ...] | None
) -> list[int]:
    loaded = [row for row in range(len(layers)) if count[row].any()]
    for layer in wanted or ():
        if layer not in [layers[row] for row in loaded]:
            raise ConfigError(f"{where}: no counts for layer {layer}, expected some of {', '.join(str(layers[row]) for row in loaded[:40])}")
    if not loaded:
        raise ConfigError(f"{where}: all counts are zero, expected some above")
    return loaded if wanted is None else [layers.index(layer) for layer in dict.fromkeys(wanted)]


def _n_tokens(where: str, load: NDArray[np.int64], topk: int) -> int:
    """As many tokens as the counts of a layer stand for; raises ConfigError when there cannot be such tokens."""
    n_tokens = -(-int(load.sum()) // topk)
    if n_tokens > _MAX_TOKENS:
        raise ConfigError(f"{where}: the counts stand for {n_tokens} tokens, expected at most {_MAX_TOKENS}; --tokens T scales them down")
    if load.max() > n_tokens:
        found = f"{where}, expert {load.argmax()}: found count {load.max()}"
        raise ConfigError(f"{found}, expected at most one for each of {n_tokens} tokens of top-{topk}")
    return n_tokens


def _whole(
    where: str, load: NDArray[np.integer] | NDArray[np.floating], layer: int, topk: int, tokens: int | None
) -> NDArray[np.int64]:
    if tokens is not None:
        return scaled(load.astype(np.float64), tokens * topk)
    if (load != np.floor(load)).any():
        expert = int((load != np.floor(load)).argmax())
        raise ConfigError(f"{where}: layer {layer}, expert {expert}: found {load[expert]}, expected a whole count, or --tokens T to scale loads")
    return np.asarray(load.astype(np.int64))
