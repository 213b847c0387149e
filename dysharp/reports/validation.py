"""The validation page and its correlation plot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from dysharp.errors import one_line
from dysharp.files import check_destination, make_folder, write_text
from dysharp.measured.validation import Validation
from dysharp.reports import markdown
from dysharp.reports.plots import STYLE, save_figure
from dysharp.text import cell, csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe-Ito and two of Tol's muted colours, one per family in the order of the tables.
FAMILY_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#332288", "#882255")
FORM_KEYS = ("family", "n", "closed_over_program", "p90_apart", "closed_median_ape", "closed_p90_ape")
BEYOND_KEYS = ("family", "by", "system", "hardware", "n", "n_rows", "median_ape", "p90_ape", "bias", "closed_median_ape", "unpredicted")
BETWEEN_KEYS = ("family", "between", *BEYOND_KEYS[1:])
ALL_KEYS = ("family", "by", "n", "n_rows", "median_ape", "p90_ape", "bias", "closed_median_ape", "unpredicted")
ALL_BETWEEN_KEYS = ("family", "between", *ALL_KEYS[1:])
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
    "The regimes of a family share its constants."
)
APART = (
    "These measurements are predicted, but they are in no mean, bar, fit or hold-out. Launch-bound: an eager call that takes less than 1.2 times "
    "the host time of its launches. The host's time of a launch is read from these measurements. Weak: the collector marks the measurement as weak."
)
PARTS = (
    "Eager layers whose launches take more than half of the measured time judge the host. The others judge the device. "
    "Both count in the family `layer`."
)
FORMS = (
    "Closed forms predict the same families without a Program. `closed_over_program` is the median of the signed difference between "
    "closed form and Program, in percent of the Program's time or rate. `p90_apart` is the 90th percentile of the absolute difference. "
    "`closed_median_ape` and `closed_p90_ape` are the errors of the closed form against the measurements."
)
BETWEEN = (
    "Nodes of eight GPUs with a NIC each. These families are in no number above. Families with `between` = bars have bars of their own. "
    "`unpredicted` says which measurements are left out, and why. A printed rate counts the copy of the own node, which crosses no NIC; "
    "our rates count it, too. Low-latency kernels with 288 experts run with the next number of experts that all GPUs share evenly. "
    "docs/design/0012-several-domains.md says which measurements fixed the constants `internode.*`."
)
BEYOND = (
    "These families count in no mean, coverage, bar, fit or hold-out. Programs predict them with constants that were fitted to other "
    "families. Two families have constants of their own: Hybrid-EP has `hybrid.rank_us`, MoRI has four "
    "(docs/design/0017-fabrics-without-a-switch.md). "
    "docs/design/0008-in-switch-collectives.md describes all-reduces through the switch (`multimem`) and between peers. "
    "The hop of NVLink 5 was read off in-switch measurements of GB200, so these measurements are not held out. "
    "`closed_median_ape` is the median error of the closed form."
)
SOURCES = (
    "No prediction can be nearer to two sources than the sources are to each other. This table has every case that two sources measured. "
    "`least`, `median` and `most` say by how much the times of `other` are longer, in percent."
)
HOLD_OUT = (
    "The constants are fitted without whole shapes, or without a whole GPU. These constants then predict the measurements that were left out. "
    "Each of these fits starts from neutral values: the geometric mean of a constant's limits. "
    "`fit` is the median error with the fit to all measurements, `held_out` the median error with the "
    "measurement left out of the fit, `ratio` the second divided by the first. The launch time of a host keeps its value in all fits: "
    "it is an input that describes the host, and it is read from measurements that are judged apart."
)
BORROWED = (
    "A fold cannot fix every constant. A constant that fewer than three measurements of the fold see takes the value of the other architecture. "
    "A constant without such a value stays neutral. This table lists the constants of both kinds."
)
COUNTED = (
    "`counted.csv` has numbers that stand in the code, and that no datasheet, definition or named source states. They count beside the fitted "
    "constants. `dysharp/specs/data/numbers.toml` says of every other number where it comes from."
)


@dataclass(frozen=True, slots=True)
class _Long:
    """A long table: its file beside the page, what it holds, its columns and its rows."""

    name: str
    meaning: str
    keys: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


def _long_tables(done: Validation) -> list[_Long]:
    """The tables that lie beside the page as CSV, without the empty ones."""
    one, between = ([row for row in done.beyond if bool(row["between"]) == several] for several in (False, True))
    reasons = [row for row in done.unsupported if row["family"]]
    worst = ("id", "family", "hardware", "measured", "predicted", "unit", "error")
    group = ("family", "kind", "system", "hardware", "regime", "n", "median_ape", "p90_ape", "mape", "bias")
    tables = (
        _Long("groups", "families of the bars by system, hardware and regime", group, done.groups),
        _Long("regimes", "families by regime (see below)", ("family", "regime", "predicted_as", "n", "median_ape", "p90_ape", "bias"), done.regimes),
        _Long("sizes", "families by size of the measured time", ("family", "from_us", "to_us", "n", "median_ape", "p90_ape", "bias"), done.sizes),
        _Long("worst", "the largest errors", worst, done.worst),
        _Long("between", "families between NVLink domains, by system and hardware", BETWEEN_KEYS, between),
        _Long("beyond", "families beyond the bars, by system and hardware", BEYOND_KEYS, one),
        _Long(
            "constants", "fitted constants; `seen_by`: judged measurements whose prediction moves by at least 2 % of the constant's own change",
            ("name", "value", "unit", "seen_by", "meaning", "fitted_on"), done.fitted_constants,
        ),
        _Long("counted", "counted numbers (see below)", ("module", "name", "count", "text"), done.counted_numbers),
        _Long(
            "unpredicted", "measurements of the families of the bars without a prediction, and why",
            ("family", "kind", "system", "hardware", "n", "counts_for_coverage", "reason"), reasons,
        ),
    )  # fmt: skip
    return [table for table in tables if table.rows]


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
    """Write the report as Markdown; beside the page its plot as `figures/NAME.svg` and long tables as `NAME-tables/*.csv`.

    Raises ConfigError for a folder that cannot be written to.
    """
    page = check_destination(path)
    figure, tables = page.parent / "figures" / f"{page.stem}.svg", page.parent / f"{page.stem}-tables"
    for folder in (figure.parent, tables):
        make_folder(folder, "--page")
    save_figure(plot_validation(done.points), figure)
    for table in _long_tables(done):
        write_text(tables / f"{table.name}.csv", csv_text(table.keys, [list(map(one_line, line)) for line in _cells(table.rows, table.keys)]))
    write_text(page, page_of(done, f"figures/{figure.name}", tables.name))


def page_of(done: Validation, figure: str = "", folder: str = "validation-tables") -> str:
    """The page as Markdown. Its first line has the command that writes the page.

    `figure`: address of the plot. `folder`: where the CSV files of long tables lie, relative to the page.
    """
    held_out = "".join(f" --hold-out {by}" for by in dict.fromkeys(entry["by"] for entry in done.hold_out))
    one, between = ([row for row in done.beyond if bool(row["between"]) == several and row["system"] == "all"] for several in (False, True))
    parts = [
        f"<!-- Generated: dysharp validate{held_out} --page docs/validation.md -->",
        "# Predictions against measurements",
        "This page compares predictions with public measurements. The predictions use the constants of `dysharp/specs/data/fitted.toml`. "
        "All groups of measurements are printed, also groups with large errors: [the long tables](#long-tables) are CSV files.",
        _table(LEGEND, ("column", "meaning")),
        "A Program runs with up to 512 tokens per GPU (fused layers: 8192). The time of more tokens lies on the line through the two largest runs.",
        "## Families",
        _table(done.families, ("family", "by", "n", "n_rows", "coverage", "median_ape", "p90_ape", "mape", "bias")),
        _sentence(done.overall),
        *([f"![Predicted against measured times of all measurements. The band is 25 % to either side]({figure})"] if figure else []),
        "## Bars",
        _table(done.bars, ("name", "value", "bar", "holds")),
    ]
    for title, text, rows, keys in (
        ("Whole layers by part", PARTS, done.parts, ("part", "n", "median_ape", "p90_ape", "bias")),
        ("Judged apart", APART, done.apart, ("family", "group", "n", "median_ape", "p90_ape", "bias")),
        ("Closed forms against Programs", FORMS, done.forms, FORM_KEYS),
        ("Between NVLink domains", BETWEEN, between, ALL_BETWEEN_KEYS),
        ("Beyond the bars", BEYOND, one, ALL_KEYS),
        ("One kernel, two sources", SOURCES, done.sources, SOURCE_KEYS),
        ("Held out", HOLD_OUT, done.hold_out, ("by", "family", "n", "groups", "fit", "held_out", "ratio")),
    ):
        parts += [f"## {title}", text, _table(rows, keys)] if rows else []
    parts += [BORROWED, _table(done.borrowed, ("by", "held_out", "constant", "from"))] if done.borrowed else []
    files = ((f"[{t.name}.csv]({folder}/{t.name}.csv)", str(len(t.rows)), t.meaning) for t in _long_tables(done))
    lines = "\n".join(f"| {' | '.join(line)} |" for line in files)
    parts += ["## Long tables", f"| file | rows | holds |\n|---|---|---|\n{lines}", REGIMES, COUNTED, _outside(done.unsupported)]
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


def _cells(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[list[str]]:
    return [[cell(row[key]) for key in keys] for row in rows]


def _table(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    return markdown.table(keys, _cells(rows, keys))
