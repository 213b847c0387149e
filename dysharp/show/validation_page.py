"""The validation page and its correlation plot."""

import functools
import re
from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes

from dysharp.base import AnyMapping, AnyPath, Rows, check_destination, make_folder, one_line, write_text
from dysharp.base.text import cell
from dysharp.measured.intervals import GROUPS, coverage, residuals
from dysharp.measured.validation import Validation
from dysharp.measured.validation_tables import TABLES, Table
from dysharp.show import markdown
from dysharp.show.plots import drawn, save_figure

# Okabe-Ito and two of Tol's muted colours, one per family in the order of the tables.
FAMILY_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#332288", "#882255")
MOST_KINDS = 6


def _long_tables(done: Validation) -> list[tuple[Table, Sequence[AnyMapping]]]:
    """The tables that lie beside the page as CSV, and their rows, without the empty ones."""
    one, between = ([row for row in done.beyond if bool(row["between"]) == several] for several in (False, True))
    cut = {"beyond": one, "between": between, "coverage": _coverage(done), "unsupported": [row for row in done.unsupported if row["family"]]}
    found = [(table, cut[name] if name in cut else getattr(done, name)) for name, table in TABLES.items() if table.file]
    return [(table, rows) for table, rows in found if rows]


@functools.cache
def _packaged_coverage() -> Rows:
    return coverage(residuals(), GROUPS)


def _coverage(done: Validation) -> Rows:
    return _packaged_coverage() if done.out_of_sight else []


def plot_validation(points: Sequence[tuple[str, float, float]], *, ax: Axes | None = None) -> Axes:
    """Predicted against measured time (us), one colour per family. Line: equality. Band: 25 % to either side.

    `points`: (family, measured us, predicted us). Returns the axes.
    """
    with drawn(ax, 6.0, 5.4) as axes:
        for at, family in enumerate(dict.fromkeys(family for family, _, _ in points)):
            mine = [(m, p) for name, m, p in points if name == family]
            colour = FAMILY_COLOURS[at % len(FAMILY_COLOURS)]
            label = f"{family} ({len(mine)})"
            # Thousands of points take less space as a bitmap.
            axes.plot([m for m, _ in mine], [p for _, p in mine], ".", markersize=3, color=colour, label=label, rasterized=True)
        ends = [min((m for _, m, _ in points), default=1.0), max((m for _, m, _ in points), default=10.0)]
        axes.plot(ends, ends, color="black", linewidth=1)
        axes.fill_between(ends, [0.75 * x for x in ends], [1.25 * x for x in ends], color="black", alpha=0.08, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="measured (us)", ylabel="predicted (us)")
        axes.legend(frameon=False, markerscale=3)
    return axes


def write_page(done: Validation, path: AnyPath) -> None:
    """Write the report as Markdown; beside the page its plot as `figures/NAME.svg` and long tables as `NAME-tables/*.csv`.

    Raises ConfigError for a folder that cannot be written to.
    """
    page = check_destination(path)
    figure, folder = page.parent / "figures" / f"{page.stem}.svg", page.parent / f"{page.stem}-tables"
    make_folder(figure.parent, "--page")
    make_folder(folder, "--page")
    save_figure(plot_validation(done.points), figure)
    for table, rows in _long_tables(done):
        write_text(folder / f"{table.file}.csv", table.columns.csv(rows, lambda value: one_line(cell(value))))
    write_text(page, _page_of(done, f"figures/{figure.name}", folder.name))


def _page_of(done: Validation, figure: str = "", folder: str = "validation-tables") -> str:
    """The page as Markdown. Its first line has the command that writes the page.

    `figure`: address of the plot. `folder`: where the CSV files of long tables lie, relative to the page.
    """
    held_out = "".join(f" --hold-out {by}" for by in dict.fromkeys(entry["by"] for entry in done.hold_out))
    every = [row for row in done.beyond if row["system"] == "all"]
    text = markdown.template("validation.md").render(  # `_table` escapes the cells
        command=f"dysharp validate{held_out} --page docs/validation.md",
        done=done, missed=[row for row in done.bars if not row["holds"]], coverage=[row for row in _coverage(done) if row["left_out"] == "gpu"],
        held_out=[row for row in done.hold_out if row["family"] == "macro" or row["by"] == "nodes"], figure=figure, folder=folder,
        tables=_long_tables(done), table=_table, overall=_sentence(done.overall),
        between=[row for row in every if row["between"]], beyond=[row for row in every if not row["between"]], outside=_outside(done.unsupported),
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _outside(unsupported: Sequence[AnyMapping]) -> str:
    """A sentence about the measurements that belong to no family, by kind."""
    kinds = Counter[str]()
    for row in unsupported:
        if not row["family"]:
            kinds[row["kind"]] += row["n"]
    if not kinds:
        return "Every measurement belongs to one of these families."
    order = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{markdown.escaped(kind)} {n}" for kind, n in order[:MOST_KINDS])
    others = f", others {sum(n for _, n in order[MOST_KINDS:])}" if len(order) > MOST_KINDS else ""
    return f"{sum(kinds.values())} more measurements belong to no family: {shown}{others}."


def _sentence(overall: AnyMapping) -> str:
    if not overall["n"]:
        return "No measurement has a prediction."
    means = [f"{overall[key]:.1f} %" for key in ("all_macro_median_ape", "all_macro_p90_ape") if key in overall]
    return (
        f"All {overall['n']} predictions together: median {overall['median_ape']:.1f} %, 90th percentile {overall['p90_ape']:.1f} %; "
        f"means over families: median {overall['macro_median_ape']:.1f} %, 90th percentile {overall['macro_p90_ape']:.1f} %"
        f"{f', with the rows left out of the bars {means[0]} and {means[1]}' if means else ''}; "
        f"coverage {overall['coverage']:.1f} % of {overall['n_rows']} measurements; {overall['n_constants']} fitted constants, "
        f"{overall['n_numbers']} with counted numbers."
    )


def _table(rows: Sequence[AnyMapping], name: str, *without: str) -> str:
    columns = TABLES[name].columns.without(*without)
    return markdown.table(columns.headings, columns.cells(rows))
