"""`dysharp plan` as text: the answer, the best layouts, where every candidate went, what was not considered."""

import click

from dysharp.api.planning import Answer
from dysharp.cli.output import print_lines, print_table


def print_plan(done: Answer) -> None:
    """The sentence and the tables."""
    print_lines([done.sentence()])
    click.echo()
    print_table(done.HEADINGS, done.cells())
    if len(done.plan.shapes) > 1:
        click.echo()
        print_table(done.SHAPE_HEADINGS, done.shape_cells())
    click.echo()
    print_table(("Candidates", "What became of them"), done.count_cells(), left=0, text=("What became of them",))
    click.echo()
    print_lines(["Not considered: " + "; ".join(done.not_considered) + "."])


def print_check(done: Answer) -> None:
    """The verdict on a layout, and where its time goes beside that of the best."""
    print_lines([done.verdict()])
    click.echo()
    print_table(("Part of the step", "This layout", "The best"), done.check_cells())
