"""Results of a figure as its CSV file has them, so that a page keeps figures that a command does not run."""

import csv
from pathlib import Path

from dysharp.errors import ConfigError
from dysharp.figures.figure import Figure
from dysharp.figures.verdict import Result


def results_from(path: Path, figure: Figure) -> list[Result]:
    """The lines of a file that `reports.paper_page.results_csv` wrote. Numbers have three decimals. Raises ConfigError for another file."""
    claims = sorted((c.name for c in figure.checks), key=len, reverse=True)
    with path.open(newline="", encoding="utf-8") as file:
        try:
            return [_result(line, claims) for line in csv.DictReader(file)]
        except (KeyError, ValueError, csv.Error) as error:
            raise ConfigError(f"{path}: found {error!r}, expected a file that `dysharp reproduce --pages` wrote") from None


def _result(line: dict[str, str], claims: list[str]) -> Result:
    paper, ours = (float(line[name]) if line[name] else None for name in ("paper", "ours"))
    words = {name: line[name] for name in ("bound", "verdict", "outcome", "bound_set", "number_seen", "stored", "reason")}
    claim = next((name for name in claims if line["point"].startswith(name)), line["point"])
    return Result(line["point"], line["metric"], paper, ours, claim=claim, **words)
