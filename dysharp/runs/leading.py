"""The leading tokens of a layer stand for all of its tokens: how many tokens run, and how long all tokens take."""

from __future__ import annotations

from collections.abc import Callable

from dysharp.analysis import Row
from dysharp.runs.request import Request
from dysharp.systems import System

WHOLE_ROWS = 300_000
"""(token, expert) rows up to which all tokens of a layer are simulated. `LEADING_ROWS`: rows of the leading tokens of a larger layer."""
LEADING_ROWS = 75_000
EVERYWHERE = ("allgather", "ring")
"""Traffic of systems that send every token to every GPU."""
STEP_SHARE, GROWTH = 0.1, 1.1
"""An operator with more than this share of the layer must take this many times as long when the leading tokens double."""
SEARCH_ROWS = 20_000
"""Rows of the leading tokens with which numbers of SMs are compared."""


def extended(before: Row, row: Row, tokens: int, value: Callable[[Row], float]) -> float:
    """`value` of a layer with `tokens` tokens per GPU, by the line through two Rows with fewer tokens."""
    per_token = (value(row) - value(before)) / (row.tokens_per_gpu - before.tokens_per_gpu)
    return value(row) + (tokens - row.tokens_per_gpu) * per_token


def leading_sizes(system: System, request: Request, most_rows: int, whole_rows: int) -> tuple[int, ...]:
    """Numbers of leading tokens per GPU that stand for a layer: a quarter, half and all of them.

    The largest number has at most `most_rows` rows, but at least 32 tokens. (): the layer has at most `whole_rows` rows.
    A system that sends every token to every GPU has a row for each GPU.
    """
    copies = request.cluster.n_gpus if system.moves.sent in EVERYWHERE else request.model.topk
    each = request.cluster.n_gpus * copies
    if request.tokens * each <= whole_rows or system.moves.sent == "none":
        return ()
    n = 32
    while 2 * n * each <= most_rows:
        n *= 2
    return (n // 4, n // 2, n) if n < request.tokens else ()


def does_not_grow(before: Row, row: Row) -> str:
    """The operator whose time does not grow from `before` to `row`, which has more tokens; "" = none.

    Such an operator works in steps, for example a wave of chunks. Few tokens then say nothing about many.
    """
    for name in ("dispatch", "combine"):
        if row.path_us[name] > STEP_SHARE * row.time_us and row.path_us[name] < GROWTH * before.path_us[name]:
            return name.capitalize()
    return ""
