"""`dysharp serve` as text: the answer, the best layouts, what one can turn, other machines, the front, layouts that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dysharp.cli.output import print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.serving_answer import Serving

MOST_BEST, MOST_FRONT, MOST_REJECTED = 3, 12, 4


def print_serving(done: Serving) -> None:
    """The sentences, then the tables."""
    from dysharp.api.serving_tables import POINT_HEADINGS, SYSTEM_HEADINGS, WHAT_IF_HEADINGS, memory_line, point_cells, system_cells, what_if_cells

    print_lines([*done.sentences(), *done.trust()])
    if done.best:
        click.echo()
        print_table(POINT_HEADINGS, point_cells(done.best[:MOST_BEST]), left=2, text=("limit",))
        print_lines(["", memory_line(done.best[0]), "", f"Start it: {done.launch()}"])
    if advice := done.advice():
        print_lines(["", *advice])
    if done.what_ifs:
        click.echo()
        print_table(WHAT_IF_HEADINGS, what_if_cells(done), left=2)
    if done.systems:
        click.echo()
        print_table(SYSTEM_HEADINGS, system_cells(done), left=2)
    if done.front:
        print_lines(["", "Front: no other point has more tokens per second of a GPU and of a user."])
        print_table(POINT_HEADINGS, point_cells(done.front[:MOST_FRONT]), left=2, text=("limit",))
    if done.rejected:
        print_lines(["", *(f"{one.layout.name}: {one.reason}" for one in done.rejected[:MOST_REJECTED])])
        if len(done.rejected) > MOST_REJECTED:
            print_lines([f"{len(done.rejected) - MOST_REJECTED} more layouts do not fit; --json has all"])
