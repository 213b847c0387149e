"""`dysharp model`: parameters and FLOPs of a whole model, and the memory of its training step."""

from typing import Any

import click

from dysharp.api.arguments import DescribeArgs
from dysharp.cli.flags import Json, options
from dysharp.show.output import print_answer, print_header


def complete_whole(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of packaged whole models."""
    from dysharp.specs import list_whole_models

    return [name for name in list_whole_models() if name.startswith(incomplete)]


@click.command()
@click.argument("model", metavar="MODEL|FILE", shell_complete=complete_whole)
@options(DescribeArgs)
def model(model: str, *, as_json: Json, **asked: Any) -> None:
    """Count parameters and FLOPs of a whole model, and the memory of its training step.

    With --layout the memory of every pipeline rank at its peak. A layout that does not fit gets one line that names the constraint.
    """
    from dysharp.api.whole_model import describe
    from dysharp.cli.texts.model_text import print_description, shown_if_refused

    with shown_if_refused():
        done = describe(model, **asked)
    print_answer(done.to_dict()) if as_json else print_description(done)
    print_header(())
