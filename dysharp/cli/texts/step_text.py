"""`dysharp step` as text: the answer, then a table by system."""

import click

from dysharp.api.training import Steps
from dysharp.cli.output import print_lines, print_table


def print_steps(done: Steps) -> None:
    """The sentence, the table, the memory of the fullest rank."""
    print_lines([done.sentence()])
    click.echo()
    print_table(done.HEADINGS, done.cells())
    click.echo()
    print_lines([done.memory_line()])
