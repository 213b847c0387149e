"""`--quick`, and the answer of closed forms that stands on a terminal until the simulated one replaces it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from dysharp.base import AnyMapping, ConfigError
from dysharp.runs.arguments import Argument
from dysharp.show.output import print_answer, print_columns, print_header, print_lines

if TYPE_CHECKING:
    from dysharp.api.quick import QuickAnswer
    from dysharp.api.training import Steps
    from dysharp.base import Columns

_QUICK = "stop at the first answer: closed forms with error bars, or bounds, and no simulation. A terminal shows it first without --quick, too."
Quick = Annotated[bool, Argument(False, _QUICK)]
MARK = "First answer, by closed forms and bounds; the simulated one replaces it."


def refuse_simulated(layer: AnyMapping | None = None, /, **given: str | bool | None) -> None:
    """Raises ConfigError for a file or a flag that shows a simulation, or says how to simulate the `layer` or what to compare its time with."""
    how = {"fidelity": layer["fidelity"] == "packet", "exact": layer.get("exact")} if layer else {}
    if given := {name: value for name, value in (given | how).items() if value}:
        raise ConfigError(f"--quick: found --{next(iter(given))}, expected none (it shows a simulation)")


def _first_lines(answer: str, columns: Columns, rows: Iterable[Any]) -> list[str]:
    """A first answer for a terminal."""
    from dysharp.base.text import table

    return [MARK, answer, *table([one.replace("\n", " ") for one in columns.headings], columns.cells(rows), left=1).split("\n"), ""]


def lines_of(done: QuickAnswer) -> list[str]:
    """Layers as a first answer."""
    from dysharp.planning.quick import LAYERS

    return _first_lines(done.sentence(), LAYERS, done.by_time)


def lines_of_steps(done: Steps) -> list[str]:
    """Steps as a first answer."""
    return _first_lines(done.sentence(), done.columns, done.rows())


def print_quick(done: QuickAnswer, as_json: bool, *, advice: bool = False, one: bool = False) -> None:
    """A quick answer as the last one. `advice`, `one`: JSON has the fields of `advise`, of the single Row of `run`."""
    from dysharp.api.quick import STANDS_ON
    from dysharp.planning.quick import LAYERS

    if as_json:
        print_answer(done.to_advice() if advice else {"quick": True} | done.rows[0] if one else done.to_dict())
    else:
        print_lines([done.sentence(), ""])
        print_columns(LAYERS, done.by_time)
        print_lines(["", *STANDS_ON])
    print_header(done.header)
