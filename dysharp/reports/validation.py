"""The validation page and its correlation plot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from dysharp.errors import ConfigError
from dysharp.files import check_destination, write_text
from dysharp.measured.validation import Validation
from dysharp.reports import markdown
from dysharp.reports.plots import STYLE, save_figure
from dysharp.text import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe-Ito and two of Tol's muted colours, one per family in the order of the tables.
FAMILY_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#332288", "#882255")
FORM_KEYS = ("family", "n", "closed_over_program", "p90_apart", "closed_median_ape", "closed_p90_ape")
BEYOND_KEYS = ("family", "by", "system", "hardware", "n", "n_rows", "median_ape", "p90_ape", "bias", "closed_median_ape", "unpredicted")
BETWEEN_KEYS = ("family", "between", *BEYOND_KEYS[1:])
SOURCE_KEYS = ("family", "source", "other", "n", "least", "median", "most")
LEGEND = (
    {"column": "`by`", "meaning": "what predicts the family: Programs on the engine, or a rate form of `dysharp.compute`"},
    {"column": "`n`, `n_rows`", "meaning": "number of predictions, number of measurements"},
    {"column": "`coverage`", "meaning": "`n` in percent of `n_rows`"},
    {"column": "`median_ape`, `p90_ape`, `mape`", "meaning": "median, 90th percentile, mean of the absolute error, in percent of the measured value"},
    {"column": "`bias`", "meaning": "median of the signed error in percent; positive: the predicted time or rate is too large"},
)
REGIMES = (
    "A regime says how the measured program ran (`dysharp/measured/regime.py`). `predicted_as` is the regime that the predictions describe. "
    "Two regimes in one family share its constants."
)
APART = (
    "These measurements are predicted, but they are in no mean, bar, fit or hold-out. Launch-bound: an eager call that takes less than 1.2 times "
    "the host time of its launches; the host's time of a launch is read from these measurements. Weak: the collector marks the measurement as weak."
)
PARTS = (
    "Eager layers whose launches take more than half of the measured time judge the host. The others judge the device. "
    "Both count in the family `layer`."
)
BORROWED = (
    "A fold cannot fix every constant. A constant that fewer than three of its measurements see takes the value of the other architecture. "
    "Without such a value it stays neutral. This table lists these constants."
)
BETWEEN = (
    "Nodes of eight GPUs with a NIC each. These families are in no number above; those with `between` = bars have bars of their own. "
    "`unpredicted` says which measurements are left out, and why. A printed rate counts the copy of the own node, which crosses no NIC; "
    "so do our rates. Low-latency kernels with 288 experts run with the next number of experts that all GPUs share evenly. "
    "docs/design/0012-several-domains.md says which measurements fixed the constants `internode.*`."
)


def plot_validation(points: Sequence[tuple[str, float, float]], *, ax: Axes | None = None) -> Axes:
    """Predicted against measured time (us), one colour per family. Line: equality. Band: 25 % to either side.

    `points`: (family, measured us, predicted us). Returns the axes.
    """
    with matplotlib.rc_context(STYLE):
        if ax is None:
            ax = Figure(figsize=(6.0, 5.4), layout="constrained").subplots()
        for at, family in enumerate(dict.fromkeys(family for family, _, _ in points)):
            mine = [(m, p) for name, m, p in points if name == family]
            colour = FAMILY_COLOURS[at % len(FAMILY_COLOURS)]
            label = f"{family} ({len(mine)})"
            # Thousands of points take less space as a bitmap.
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
    """Write the report as Markdown, and its plot as `figures/NAME.svg` beside the page.

    Raises ConfigError for a folder that cannot be written to.
    """
    page = check_destination(path)
    figure = page.parent / "figures" / f"{page.stem}.svg"
    try:
        figure.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{figure.parent}: cannot be written: {error.strerror}") from None
    save_figure(plot_validation(done.points), figure)
    write_text(page, page_of(done, f"figures/{figure.name}"))


def page_of(done: Validation, figure: str = "") -> str:
    """The page as Markdown. Its first line has the command that writes the page. `figure`: address of the plot."""
    held_out = "".join(f" --hold-out {by}" for by in dict.fromkeys(entry["by"] for entry in done.hold_out))
    parts = [
        f"<!-- Generated: dysharp validate{held_out} --page docs/validation.md -->",
        "# Predictions against measurements",
        "This page compares predictions with public measurements. The predictions use the constants of `dysharp/specs/data/fitted.toml`. "
        "All groups of measurements are printed, also groups with large errors.",
        _table(LEGEND, ("column", "meaning")),
        "A Program runs with up to 512 tokens per GPU (fused layers: 8192). The time of more tokens lies on the line through the two largest runs.",
        "## Families",
        _table(done.families, ("family", "by", "n", "n_rows", "coverage", "median_ape", "p90_ape", "mape", "bias")),
        _sentence(done.overall),
        *([f"![Predicted against measured times of all measurements. The band is 25 % to either side]({figure})"] if figure else []),
        "## Bars",
        _table(done.bars, ("name", "value", "bar", "holds")),
    ]
    parts += ["## Regimes", REGIMES, _table(done.regimes, ("family", "regime", "predicted_as", "n", "median_ape", "p90_ape", "bias"))]
    if done.parts:
        parts += ["## Whole layers by part", PARTS, _table(done.parts, ("family", "part", "n", "median_ape", "p90_ape", "bias"))]
    if done.apart:
        parts += ["## Judged apart", APART, _table(done.apart, ("family", "group", "n", "median_ape", "p90_ape", "bias"))]
    if done.forms:
        parts += [
            "## Closed forms against Programs",
            "Closed forms predict the same families without a Program. `closed_over_program` is the median of the signed difference between "
            "closed form and Program, in percent of the Program's time or rate. `p90_apart` is the 90th percentile of the absolute difference. "
            "`closed_median_ape` and `closed_p90_ape` are the errors of the closed form against the measurements.",
            _table(done.forms, FORM_KEYS),
        ]
    one, between = ([row for row in done.beyond if bool(row["between"]) == several] for several in (False, True))
    if between:
        parts += ["## Between NVLink domains", BETWEEN, _table(between, BETWEEN_KEYS)]
    if one:
        parts += [
            "## Beyond the bars",
            "These families count in no mean, coverage, bar, fit or hold-out. Programs predict them with constants that were fitted to other "
            "families; Hybrid-EP has one of its own, `hybrid.rank_us`, and MoRI four (docs/design/0017-fabrics-without-a-switch.md). "
            "The page docs/design/0008 describes all-reduces through the switch "
            "(`multimem`) and between peers. The hop of NVLink 5 was read off in-switch measurements of GB200, so they are not held out. "
            "`closed_median_ape` is the median error of the closed form.",
            _table(one, BEYOND_KEYS),
        ]
    if done.sources:
        parts += [
            "## One kernel, two sources",
            "No prediction can be nearer to two sources than they are to each other. This table has every case that two sources measured. "
            "`least`, `median` and `most` say by how much the times of `other` are longer, in percent.",
            _table(done.sources, SOURCE_KEYS),
        ]
    if done.hold_out:
        parts += [
            "## Held out",
            "The constants are fitted without whole shapes, or without a whole GPU. The measurements that were left out are then predicted "
            "with these constants. Each of these fits starts from neutral values: the geometric mean of a constant's limits. "
            "`fit` is the median error with the fit to all measurements, `held_out` the median error with the "
            "measurement left out of the fit, `ratio` the second divided by the first. The launch time of a host keeps its value in all fits, "
            "because it is an input that describes the host; it is read from measurements that are judged apart.",
            _table(done.hold_out, ("by", "family", "n", "groups", "fit", "held_out", "ratio")),
            BORROWED,
            _table(done.borrowed, ("by", "held_out", "constant", "from")),
        ]
    parts += [
        "## Groups",
        _table(done.groups, ("family", "kind", "system", "hardware", "regime", "n", "median_ape", "p90_ape", "mape", "bias")),
        "## By size of the measured time",
        _table(done.sizes, ("family", "from_us", "to_us", "n", "median_ape", "p90_ape", "bias")),
        "## Largest errors",
        _table(done.worst, ("id", "family", "hardware", "measured", "predicted", "unit", "error")),
        "## Fitted constants",
        "`seen_by` is the number of judged measurements whose prediction moves by at least 2 % of the constant's own change.",
        _table(done.fitted_constants, ("name", "value", "unit", "seen_by", "meaning", "fitted_on")),
        "## Counted numbers",
        "These numbers stand in the code, and no datasheet, definition or named source states them. They count beside the fitted constants. "
        "`dysharp/specs/data/numbers.toml` says of every other number where it comes from.",
        _table(done.counted_numbers, ("module", "name", "count", "text")),
        "## Measurements of these families without a prediction",
        _table([row for row in done.unsupported if row["family"]], ("family", "kind", "system", "hardware", "n", "counts_for_coverage", "reason")),
        _outside(done.unsupported),
    ]
    return "\n\n".join(parts) + "\n"


def _outside(unsupported: Sequence[Mapping[str, Any]]) -> str:
    """A sentence about the measurements that belong to no family, by kind."""
    kinds: dict[str, int] = {}
    for row in unsupported:
        if not row["family"]:
            kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["n"]
    if not kinds:
        return "Every measurement belongs to one of these families."
    shown = ", ".join(f"{markdown.escaped(kind)} {n}" for kind, n in sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return f"{sum(kinds.values())} more measurements belong to no family: {shown}."


def _sentence(overall: Mapping[str, Any]) -> str:
    if not overall["n"]:
        return "No measurement has a prediction."
    return (
        f"All {overall['n']} predictions together: median {overall['median_ape']:.1f} %, 90th percentile {overall['p90_ape']:.1f} %; "
        f"means over families: median {overall['macro_median_ape']:.1f} %, 90th percentile {overall['macro_p90_ape']:.1f} %; "
        f"coverage {overall['coverage']:.1f} % of {overall['n_rows']} measurements; {overall['n_constants']} fitted constants, "
        f"{overall['n_numbers']} with counted numbers."
    )


def _table(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    return markdown.table(keys, ([cell(row[key]) for key in keys] for row in rows))
