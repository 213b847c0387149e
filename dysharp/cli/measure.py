"""`dysharp measure`."""

from typing import Annotated

import click

from dysharp.cli.flags import Json, Out, options
from dysharp.cli.progress_bar import bar
from dysharp.show.output import print_answer, print_lines


@click.command()
@options()
def measure(out: Annotated[str, {"type": Out()}], only: list[str] | None, minutes: float | None, models: list[str] | None, as_json: Json) -> None:
    """Measure this machine with PyTorch, as rows that `calibrate` and `validate --data` read.

    Kernels; collectives between the ranks of torchrun; a decoder layer forward and backward; a decode step under a graph. Without a GPU all sizes are
    small: a rehearsal. Needs the extra "torch".
    """
    from dysharp.api import measuring

    with bar("measurements") as update:
        done = measuring.measure(out, only or measuring.PARTS, minutes, models or measuring.MODELS, update)
    if not done:  # of a rank that wrote nothing
        return None
    if as_json:
        return print_answer(done)
    print_lines([f"not measured: {job}: {why}" for job, why in done["refused"].items()])
    more = f"; {done['left']} left: run it again" if done["left"] else ""
    click.echo(f"{'written' if done['rows'] else 'nothing to write'}: {done['path']}, {done['rows']} rows, {done['hardware']}{more}")
