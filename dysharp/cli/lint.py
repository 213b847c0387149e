"""`dysharp routing lint`: what a routing file says about load, repetition and EPLB."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from dysharp.cli.flags import Json, options
from dysharp.show.output import print_json, print_lines

if TYPE_CHECKING:
    from dysharp.workload.lint import Lint


@click.command()
@click.argument("file", metavar="FILE")
@options()
def lint(file: str, gpus: int, layer: int | None, tokens: int | None, counts_of: str, as_json: Json) -> None:
    """Check recorded routing before a run: load, dead experts, repetition, EPLB.

    FILE is a trace (.npz), the name of a packaged trace, or a file of counts (.csv). Each line ends with advice.
    """
    from dysharp.workload.lint import lint as lint_file

    done = lint_file(file, gpus, layer=layer, tokens=tokens, model=counts_of)
    print_json(dataclasses.asdict(done)) if as_json else _print_lint(done)


def _print_lint(done: Lint) -> None:
    """Where a person should look; then per finding what was found, and below it the advice, with `!` where to look."""

    topk = "" if done.topk is None else f", top-{done.topk}"
    layers = "1 layer" if len(done.layers) == 1 else f"{len(done.layers)} layers"
    look = ", ".join(finding.name for finding in done.findings if finding.level == "look")
    lines = [f"{done.source}: {f'look at {look} (marked ! below)' if look else 'nothing to look at'}"]
    lines.append(f"{layers}, {done.n_experts} experts{topk}, checked for {done.n_gpus} GPUs")
    for finding in done.findings:
        lines.append(f"{finding.name}: {finding.text}")
        lines.append(f"  {'!' if finding.level == 'look' else '-'} {finding.advice}")
    print_lines(lines)
