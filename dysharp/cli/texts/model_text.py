"""A whole model as text: the answer, parts, conventions, and the memory of every pipeline rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dysharp.base import ByName, Texts
from dysharp.show.output import print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.whole_model import Description

GIGA = 1e9
MOST_OPS = 12
OWN = ("weights", "gradients", "optimizer", "activations")
"""Lines with a column of their own."""
COLUMNS = (*OWN, "backward\npass")
OF_RANKS = "GiB of every pipeline rank at its peak"


@contextmanager
def shown_if_refused() -> Iterator[None]:
    """The memory of every rank on stderr, above the error of a layout that does not fit."""
    from dysharp.base.text import table
    from dysharp.base.units import GiB
    from dysharp.training.memory import DoesNotFit

    try:
        yield
    except DoesNotFit as error:
        rows = []
        for one in error.memory.ranks:
            sizes = (*_in_columns(one.lines), one.allocated, error.memory.reserved(one))
            rows.append((str(one.rank), str(sum(one.held.values())), *(f"{n / GiB:.1f}" for n in sizes)))
        headings = ("rank", "chunks\nin flight", *COLUMNS, "allocated", "reserved")
        click.echo(f"{OF_RANKS}\n{table(headings, rows)}\n", err=True)
        raise


def print_description(done: Description) -> None:
    """The answer in one line, then tables."""
    from dysharp.model.flops import CONVENTIONS

    p = done.parameters
    size = f"{done.model}: {p['total'] / GIGA:.3f} B parameters, of which a token uses {p['active'] / GIGA:.2f} B (head counted, embedding not)."
    work = f"A token of a {done.sequence}-token sequence takes {done.model_gflop_per_token['megatron']:.2f} model GFLOP forward and backward."
    print_lines([size, work])
    if done.memory:
        _print_answer_of_layout(done)
        _print_memory(done)
        return
    _print_parts(done)
    print_lines(["", "model GFLOP per token by who counts"])
    cells = [(name, f"{value:.2f}", CONVENTIONS[name].counts) for name, value in done.model_gflop_per_token.items()]
    print_table(("convention", "GFLOP", "counts"), cells, text=("counts",))


def _print_answer_of_layout(done: Description) -> None:
    fullest, gpus = max(done.memory, key=lambda row: row["allocated"]), done.layout["gpus"]
    where = f"On {gpus} GPU{'s' * (gpus > 1)} ({done.layout['schedule']}, {done.layout['precision']}) pipeline rank {fullest['rank']} is the fullest"
    held = f"{fullest['allocated']:.1f} GiB allocated, {fullest['reserved']:.1f} GiB with the allocator's gaps and buffers"
    print_lines([f"{where}: {held}."])


def _print_parts(done: Description) -> None:
    p, forward = done.parameters, done.gflop_per_token["forward"]
    cells = [
        (
            row["part"], _billions(row["parameters"]), _share(row["parameters"], p["total"] if row["part"] != "MTP" else 0),
            _billions(row["active"]), f"{row['gflop']:.2f}" if row["gflop"] else "", _share(row["gflop"], forward),
        )
        for row in done.parts
    ]  # fmt: skip
    print_lines([""])
    print_table(("part", "parameters, B", "%", "used by a token, B", "GFLOP forward", "%"), cells)
    work = done.gflop_per_token
    lines = [
        "",
        f"forward {forward:.2f}, gradients of data {work['data_gradients']:.2f}, of weights {work['weight_gradients']:.2f} GFLOP per token; "
        f"{work['executed']:.2f} with what a flash kernel recomputes",
    ]
    lines += ["MTP: not in the total; its share of GFLOP counts its head, and its attention is in core attention"] if p["mtp"] else []
    print_lines([*lines, f"source: {done.source}"])


def _billions(n: int) -> str:
    return f"{n / GIGA:.3f}" if n else ""


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if part and whole else ""


def _print_memory(done: Description) -> None:
    cells = [_cells(row) for row in done.memory]
    print_lines(["", OF_RANKS])
    headings = ("rank", "holds", "chunks\nin flight", *COLUMNS, "allocated")
    print_table(headings, cells, left=2)
    print_lines(["", "holds: E embedding, t layer, m MTP layer, L head and loss, as in Megatron's layout strings"])
    fullest = max(done.memory, key=lambda row: row["allocated"])
    print_lines(["backward pass: dummy weight gradients, gradients of activations or the head, and one recomputed layer"])
    ops = sorted(fullest["activations_gib"].items(), key=lambda item: -item[1])[:MOST_OPS]
    print_lines(["", f"largest activations of rank {fullest['rank']}"])
    print_table(("tensor", "GiB"), [(op, f"{n:.2f}") for op, n in ops])
    fixed = ", ".join(f"{name} {n:.2f} GiB" for name, n in done.fixed_gib.items()) or "none given (--dispatcher, --fixed-gib)"
    print_lines(["", f"outside the allocator: {fixed}"])


def _cells(row: ByName) -> Texts:
    sizes = (*_in_columns(row["gib"]), row["allocated"])
    return (str(row["rank"]), _holds(row), str(row["in_flight"]), *(f"{n:.2f}" for n in sizes))


def _in_columns(lines: Mapping[str, float]) -> tuple[float, ...]:
    """Sizes in `COLUMNS`: the last one has all lines without a column of their own."""
    return (*(lines.get(name, 0.0) for name in OWN), sum(n for name, n in lines.items() if name not in OWN))


def _holds(row: ByName) -> str:
    layers = f"t*{row['layers']}" if row["layers"] else ""
    return " ".join(filter(None, ("E" * row["embedding"], layers, "m" * row["mtp"], "L" * row["head"])))
