"""`dysharp serve` as text: the answer, the best layouts, the front, layouts that do not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from dysharp.cli.output import print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.serving import Serving
    from dysharp.serving.search import ServePoint

HEADINGS = ("layout", "EP system", "users", "tokens/s\nper GPU", "tokens/s\nper user", "TPOT\nms", "TTFT\nms", "prompts\n%", "limit")
MOST_BEST, MOST_FRONT, MOST_REJECTED = 3, 16, 6


def print_serving(done: Serving) -> None:
    """The sentences, then the tables."""
    print_lines(list(done.sentences()))
    if done.best:
        click.echo()
        print_table(HEADINGS, _cells(done.best[:MOST_BEST]), left=2, text=("limit",))
        _memory(done.best[0])
        print_lines(["", f"Start it: {done.launch()}"])
    if done.front:
        print_lines(["", "Front: no other point has more tokens per second of a GPU and of a user."])
        print_table(HEADINGS, _cells(done.front[:MOST_FRONT]), left=2, text=("limit",))
    if done.rejected:
        print_lines(["", *(f"{one.layout.name}: {one.reason}" for one in done.rejected[:MOST_REJECTED])])
        if len(done.rejected) > MOST_REJECTED:
            print_lines([f"{len(done.rejected) - MOST_REJECTED} more layouts do not fit; --json has all"])


def _memory(point: ServePoint) -> None:
    memory = point.memory
    print_lines([
        "",
        f"Memory of a GPU: {memory.weights / 1e9:.1f} GB weights, {memory.buffers / 1e9:.1f} GB buffers, {memory.free / 1e9:.1f} GB for KV: "
        f"{memory.requests:,} requests of an attention group.",
    ])  # fmt: skip


def _cells(points: Iterable[ServePoint]) -> list[tuple[str, ...]]:
    from dysharp.serving.answers import limit_of

    rows: list[tuple[str, ...]] = []
    for p in points:
        speed = (f"{p.tokens_per_gpu:,.0f}", f"{p.per_user:.1f}", f"{p.served.tpot / 1e3:.1f}", f"{p.served.ttft / 1e3:,.0f}")
        share = f"{100 * p.served.prompt_share:.0f}"
        rows.append((p.replica.layout.name, p.system or "-", f"{p.load.users:g}", *speed, share, limit_of(p)))
    return rows
