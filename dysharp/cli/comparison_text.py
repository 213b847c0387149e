"""A Comparison as text: one line per system, what the columns mean, what limits the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dysharp.advice.tuning import BUDGET
from dysharp.analysis import Row
from dysharp.api import Comparison
from dysharp.cli.output import UNKNOWN, WIDTH, console, print_lines
from dysharp.cli.row_text import bytes_unit, near_sides, percent
from dysharp.program.nets import NET_KINDS, NetKind
from dysharp.table import plain_table

SHORT_NAME = 7  # the table fits WIDTH with wide gaps up to here


def print_comparison(done: Comparison) -> None:
    """One row per system, then the meaning of the columns, then the sentence, then the settings that a search chose."""
    blocks = [same for form in ("real", "paper") if (same := [row for row in done.rows if row.form == form])]
    surrounded = any(row.surroundings_us for row in done.rows)
    for rows in blocks:
        if len(blocks) > 1:
            title = "real forms: with the software costs of the release" if rows[0].form == "real" else "paper forms: no software cost is charged"
            print_lines([title])
        _print_rows(done, rows)
        if len(blocks) > 1:
            print_lines([""])
    legend = [
        *([] if len(blocks) > 1 else [""]),
        *(f"speed-up{_of_form(form, blocks)}: time of {name} divided by the time of the system" for form, name in done.baselines.items()),
        "x own bound: time divided by the time that the busiest resource of this system needs",
        "x lower bound: time divided by the lower bound that holds for every system",
    ]
    if surrounded:
        legend.append("outside kernels: us of permutation, activation, casts and launches on the GPU, part of the layer time")
    legend += [f"{kind.column[0]} %: {kind.column[1]}" for kind in _columns(done.rows)]
    _print_windows(done)
    print_lines([*legend, done.sentence])
    if done.tuned:
        _print_tuned(done)


def _print_windows(done: Comparison) -> None:
    """What the leading tokens say about the whole layer."""
    rows = [row for row in done.rows if row.window]
    if not rows:
        return
    size, tokens = rows[0].window["tokens"], rows[0].window["of_tokens"]
    whole = ", ".join(row.system for row in done.rows if not row.window)
    but = f" ({whole}: of all {tokens})" if whole else ""
    print_lines(["", f"the table is of the first {size} tokens of each GPU{but}; this is the estimate for all {tokens}"])
    cells = [
        (
            row.system,
            f"{row.layer_us:.1f}",
            f"{row.window['us_per_token']:.3f}" if row.window else "simulated",
            f"{row.window['half_window_time_us'] / row.layer_us - 1:+.1%}".replace("%", " %") if row.window else "-",
            f"{done.speedup[row.system]:.2f}",
        )
        for row in done.rows
    ]
    console().print(plain_table(("system", "layer us", "us per token", "from half of them", "speed-up"), cells, left=1))


def _print_tuned(done: Comparison) -> None:
    """What was chosen for each system, how many runs that cost, and what a bad setting would take."""
    tried = f"settings: at most {BUDGET} of each system were tried on the first tokens of each GPU"
    print_lines(["", f"{tried}; the best and the defaults ran with all tokens"])
    cells = []
    for row in done.rows:
        found = done.tuned.get(row.system)
        if found is None:
            cells.append((row.system, "nothing to tune", "0", UNKNOWN, UNKNOWN))
            continue
        times = [us for _, us in found.tried]
        chosen = _setting(found.best) or "the default: " + (f"{_setting(found.overruled)} is slower" if found.overruled else "few tokens do not tell")
        cells.append((row.system, chosen, str(found.runs), str(found.tokens), f"{max(times) / min(times):.2f}" if times else UNKNOWN))
    console().print(plain_table(("system", "chosen", "runs", "tokens", "worst x"), cells, left=2))
    print_lines(["runs: simulations of the search; tokens: per GPU in them; worst: time of the worst setting divided by that of the chosen one"])


def _setting(values: Mapping[str, int]) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in values.items())


def _of_form(form: str, blocks: Sequence[Sequence[Row]]) -> str:
    return f" of {form} forms" if len(blocks) > 1 else ""


def _columns(rows: Sequence[Row]) -> list[NetKind]:
    """The networks of `rows` that have a column."""
    return [kind for kind in NET_KINDS.values() if kind.column[0] and any(kind.sides[0] in row.utilization for row in rows)]


def _print_rows(done: Comparison, rows: Sequence[Row]) -> None:
    """One line per Row."""
    divisor, unit = bytes_unit(rows)
    out = console()
    surrounded = any(row.surroundings_us for row in rows)  # one more column
    nets = _columns(rows)  # and a column each
    narrow = out.width < WIDTH or surrounded or bool(nets)
    gap = 1 if narrow or max(len(row.system) for row in rows) > SHORT_NAME else 2
    headings = (
        "\nsystem",
        "\nform",
        "layer\ntime us",
        *(("outside\nkernels",) if surrounded else ()),
        "exposed\ncomm us",
        f"payload\nup {unit}",
        f"payload\ndown {unit}",
        "link\nup %" if narrow else "link up %\nmean / max",
        "link\ndown %" if narrow else "down %\nmean / max",
        *(f"{kind.column[0]}\n%" for kind in nets),
        "speed-up\nx",
        "x own\nbound",
        "x lower\nbound",
    )

    def cells(row: Row) -> tuple[str, ...]:
        out, into = near_sides(row)
        return (
            row.system,
            row.form,
            f"{row.time_us:.1f}",
            *((f"{row.time_us - row.simulated_us:.1f}",) if surrounded else ()),
            f"{row.exposed_comm_us:.1f}",
            f"{sum(row.traffic_bytes[out].values()) / divisor:.2f}",
            f"{sum(row.traffic_bytes[into].values()) / divisor:.2f}",
            percent(row, out, narrow=narrow),
            percent(row, into, narrow=narrow),
            *(percent(row, max(kind.sides, key=row.utilization.__getitem__), narrow=True) for kind in nets),
            f"{done.speedup[row.system]:.2f}",
            f"{row.time_us / row.bound_us:.2f}" if row.bound_us else UNKNOWN,
            f"{row.time_us / row.workload_bound_us:.2f}" if row.workload_bound_us else UNKNOWN,
        )

    out.print(plain_table(headings, map(cells, rows), left=2, gap=gap, fold=False))
