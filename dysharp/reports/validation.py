"""The validation page and its correlation plot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from dysharp.api.validation import write_text
from dysharp.errors import ConfigError
from dysharp.measured.validation import Validation
from dysharp.reports.plots import STYLE, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe-Ito and two of Tol's muted colours, one per family in the order of the family map.
FAMILY_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#332288", "#882255")
FORM_KEYS = ("family", "n", "closed_over_program", "p90_apart", "closed_median_ape", "closed_p90_ape")
BEYOND_KEYS = ("family", "by", "system", "hardware", "n", "n_rows", "median_ape", "p90_ape", "bias", "closed_median_ape", "unpredicted")
COMMAND = "dysharp validate --data measured.csv --hold-out shape --hold-out gpu --page docs/validation.md"


def plot_validation(points: Sequence[tuple[str, float, float]], *, ax: Axes | None = None) -> Axes:
    """Predicted against measured time (us), one colour per family; the line is equality, the band 25 % to either side."""
    with matplotlib.rc_context(STYLE):
        if ax is None:
            ax = Figure(figsize=(6.0, 5.4), layout="constrained").subplots()
        for at, family in enumerate(dict.fromkeys(family for family, _, _ in points)):
            mine = [(m, p) for name, m, p in points if name == family]
            colour = FAMILY_COLOURS[at % len(FAMILY_COLOURS)]
            label = f"{family} ({len(mine)})"
            # Thousands of points: as a picture they are smaller.
            ax.plot([m for m, _ in mine], [p for _, p in mine], ".", markersize=3, color=colour, label=label, rasterized=True)
        ends = [min((m for _, m, _ in points), default=1.0), max((m for _, m, _ in points), default=10.0)]
        ax.plot(ends, ends, color="black", linewidth=1)
        ax.fill_between(ends, [0.75 * x for x in ends], [1.25 * x for x in ends], color="black", alpha=0.08, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("measured (us)")
        ax.set_ylabel("predicted (us)")
        ax.legend(frameon=False, markerscale=3)
    return ax


def write_page(done: Validation, path: str | os.PathLike[str]) -> None:
    """The report as Markdown, good and bad groups alike, and its plot as `figures/NAME.svg` beside it."""
    page = Path(path)
    figure = page.parent / "figures" / f"{page.stem}.svg"
    try:
        figure.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{figure.parent}: cannot be written: {error.strerror}") from None
    save_figure(plot_validation(done.points), figure)
    write_text(page, page_of(done, f"figures/{figure.name}"))


def page_of(done: Validation, figure: str = "") -> str:
    """Markdown; the first line says how it is made. `figure`: address of its plot."""
    parts = [
        f"<!-- Generated: {COMMAND} -->",
        "# Predictions against measurements",
        "Predictions with the constants of `dysharp/specs/data/fitted.toml` against public measurements. `by` names what predicts a family: the "
        "Program of the system run on the engine (on up to 512 tokens per GPU, fused layers 8192; longer rows along the line through its two "
        "largest runs) or a rate form of `dysharp.compute`. Errors are in "
        "percent of the measured value: median and 90th percentile of the absolute error; bias is the median of the signed one (positive: "
        "predicted too long, or for a rate too high). Nothing is left out: groups that are bad are printed as they are.",
        "## Families",
        _table(done.families, ("family", "by", "n", "n_rows", "coverage", "median_ape", "p90_ape", "mape", "bias")),
        _sentence(done.overall),
        *([f"![Predicted against measured times of all rows; the band is 25 % to either side]({figure})"] if figure else []),
        "## Bars",
        _table(done.bars, ("name", "value", "bar", "holds")),
    ]
    if done.forms:
        parts += [
            "## Closed forms against Programs",
            "The second, independent way: `closed_over_program` is the median signed difference in percent of the Program's time or rate, "
            "`p90_apart` the 90th percentile of its size; then the errors of the closed form against the measurements.",
            _table(done.forms, FORM_KEYS),
        ]
    if done.beyond:
        parts += [
            "## Beyond the bars",
            "All-reduces through the switch (`multimem`) and between peers, predicted by Programs without a constant of their own "
            "(docs/design/0008): in no mean, coverage, bar, fit or hold-out. `closed_median_ape` is the error of the closed form.",
            _table(done.beyond, BEYOND_KEYS),
        ]
    if done.hold_out:
        parts += [
            "## Held out",
            "Whole shapes or a whole GPU are left out of the fit, and their rows predicted as all others are: Programs are run with the constants of "
            "the rest. `ratio` is the median error then over that of the fit to all rows. The launch time of a host is an input of its machine "
            "and kept.",
            _table(done.hold_out, ("by", "family", "n", "groups", "fit", "held_out", "ratio")),
        ]
    parts += [
        "## Groups",
        _table(done.groups, ("family", "kind", "system", "hardware", "n", "median_ape", "p90_ape", "mape", "bias")),
        "## By size of the measured time",
        _table(done.sizes, ("family", "from_us", "to_us", "n", "median_ape", "p90_ape", "bias")),
        "## Worst rows",
        _table(done.worst, ("id", "family", "hardware", "measured", "predicted", "unit", "error")),
        "## Fitted constants",
        _table(done.fitted_constants, ("name", "value", "unit", "meaning", "fitted_on")),
        "## Rows of these families without a prediction",
        _table([row for row in done.unsupported if row["family"]], ("family", "kind", "system", "hardware", "n", "counts_for_coverage", "reason")),
        _outside(done.unsupported),
    ]
    return "\n\n".join(parts) + "\n"


def _outside(unsupported: Sequence[Mapping[str, Any]]) -> str:
    """The rows of no family, by kind."""
    kinds: dict[str, int] = {}
    for row in unsupported:
        if not row["family"]:
            kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["n"]
    if not kinds:
        return "Every row is of one of these families."
    shown = ", ".join(f"{_cell(kind)} {n}" for kind, n in sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return f"{sum(kinds.values())} more rows are of kinds that no family predicts: {shown}."


def _sentence(overall: Mapping[str, Any]) -> str:
    if not overall["n"]:
        return "No row has a prediction."
    return (
        f"All {overall['n']} rows together: median {overall['median_ape']:.1f} %, 90th percentile {overall['p90_ape']:.1f} %; "
        f"mean over families: {overall['macro_median_ape']:.1f} % and {overall['macro_p90_ape']:.1f} %; "
        f"coverage {overall['coverage']:.1f} % of {overall['n_rows']} rows; {overall['n_constants']} fitted constants."
    )


def _table(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    lines = ["| " + " | ".join(keys) + " |", "|" + "|".join("---" for _ in keys) + "|"]
    lines += ["| " + " | ".join(_cell(row[key]) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("<", "&lt;")
