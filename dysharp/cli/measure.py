"""`dysharp measure`."""

from typing import Annotated

import click

from dysharp.cli.flags import Json, Out, options
from dysharp.cli.progress_bar import bar
from dysharp.runs.arguments import Argument
from dysharp.show.output import print_answer, print_lines

_OUT = Argument("measured.csv", "CSV of rows to write or to go on with: rows of this machine are not measured again.", "OUT.csv", None, "-o --out")
_ONLY = "what to measure, of kernels, collectives (under torchrun), block, decode. None: all."
_MODELS = "models whose layers block and decode run. None: llama3-8b,qwen3-30b."


@click.command()
@options()
def measure(
    out: Annotated[str, _OUT, {"type": Out()}], only: Annotated[list[str] | None, Argument(None, _ONLY, "PART,...")],
    minutes: Annotated[float | None, Argument(None, "begin no measurement after so many minutes. None: no limit.", "MINUTES", (0, 1e4))],
    models: Annotated[list[str] | None, Argument(None, _MODELS, "MODEL,...")], as_json: Json,
) -> None:  # fmt: skip
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
    click.echo(f"written: {done['path']}, {done['rows']} rows, {done['hardware']}{more}")
