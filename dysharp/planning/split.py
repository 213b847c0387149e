"""Layers over the chunks of a pipeline: the split whose largest chunk is least, exact by dynamic programming; among these the most even one."""

from functools import lru_cache

import numpy as np

LETTERS = "EtmL"


@lru_cache(maxsize=1 << 14)
def best_split(weights: tuple[float, ...], chunks: int) -> tuple[int, ...]:
    """Ends of `chunks` non-empty runs of `weights` (>= 0): least largest sum; then least sum of squares. Needs as many weights as chunks."""
    n = len(weights)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    run = sums[None, :] - sums[:, None]
    run[np.tril_indices(n + 1)] = np.inf
    least = np.full(n + 1, np.inf)
    least[0] = 0.0
    for _ in range(chunks):
        least = np.min(np.maximum(least[:, None], run), axis=0)
    square = np.where(run <= least[n] * (1 + 1e-12), run * run, np.inf)
    total = np.full(n + 1, np.inf)
    total[0] = 0.0
    came = np.zeros((chunks, n + 1), np.int64)
    for chunk in range(chunks):
        ways = total[:, None] + square
        came[chunk] = np.argmin(ways, axis=0)
        total = np.min(ways, axis=0)
    ends = [n]
    for chunk in range(chunks - 1, 0, -1):
        ends.append(int(came[chunk][ends[-1]]))
    return tuple(reversed(ends))


def stage_text(letters: str, ends: tuple[int, ...]) -> str:
    """The layout string of Megatron: runs of `letters` that end at `ends`, repeats written short."""
    pieces = [_short(letters[first:last]) for first, last in zip((0, *ends[:-1]), ends, strict=True)]
    out, at = [], 0
    while at < len(pieces):
        n = 1
        while at + n < len(pieces) and pieces[at + n] == pieces[at]:
            n += 1
        out.append(f"({pieces[at]}|)*{n}" if n > 1 else f"{pieces[at]}|")
        at += n
    return "".join(out).removesuffix("|")


def _short(piece: str) -> str:
    layers = piece.count("t")
    return piece.replace("t" * layers, f"t*{layers}") if layers > 3 else piece
