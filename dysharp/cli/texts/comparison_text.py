"""A Comparison as text: one line per system, what the columns mean, what limits the best."""

from collections.abc import Mapping, Sequence
from functools import partial

from dysharp.analysis import Row
from dysharp.api import Comparison
from dysharp.api.comparison import COMPARED, marked, out_of_ranking, stops_of
from dysharp.api.gain_map import GainMap
from dysharp.api.why import Part, Why
from dysharp.base import Column, Columns
from dysharp.cli.texts.row_text import bytes_unit, near_sides, percent
from dysharp.planning.advice.tuning import BUDGET
from dysharp.planning.gain import EVEN, MECHANISMS
from dysharp.program.nets import NET_KINDS, NetKind
from dysharp.runs import KNOB, resource_words, rows_sent
from dysharp.show.output import UNKNOWN, WIDTH, console, print_columns, print_lines, print_table

SHORT_NAME = 7  # the table fits WIDTH with wide gaps up to here


def print_comparison(done: Comparison, commands: Mapping[str, str] | None = None) -> None:
    """The answer, one line per system, what the search chose, where the gain comes from, then the meaning of the columns. `commands`: {system:
    what runs it}."""
    print_lines([done.sentence])
    for form in ("real", "paper"):
        if rows := [row for row in done.rows if row.form == form]:
            costs = "with launches at different times" if form == "paper" and rows[0].workload.startswith("sub-layer") else _COSTS[form]
            print_lines(["", f"{form} forms, {costs}; speed-up over {done.baselines[form]}"])
            _print_rows(done, rows)
    _print_windows(done)
    if done.tuned:
        _print_tuned(done)
    if done.finite:
        print_lines(["", "each takes of the speed-up: " + ", ".join(f"{name} {part:+.3f}" for name, part in done.finite.taken.items())])
    if done.why:
        _print_why(done.why, commands or {})
    if done.gain_map:
        _print_map(done.gain_map)
    print_lines(["", *_legend(done)])


_COSTS = {"real": "with the software costs of the release", "paper": "without software costs"}


def _legend(done: Comparison) -> list[str]:
    """What the columns mean."""
    lines = [
        "own bound: time divided by the time that the busiest resource of this system needs",
        "lower bound: time over the lower bound of all systems that move rows (for `ideal`: over its own)",
    ]
    lines += [f"* {name} {why}: it does less work than the others and is out of the ranking" for name, why in out_of_ranking(done.rows).items()]
    if any(row.surroundings_us for row in done.rows):
        lines.append("outside kernels: us of permutation, activation, casts and launches on the GPU, part of the layer time")
    lines += [f"{kind.column[0]} %: {kind.column[1]}" for kind in _columns(done.rows)]
    more = {name: [part for part in formats.split(", ") if not part.startswith(("Dispatch ", "Combine ")) and not part.endswith(" SMs")]
            for name, formats in done.formats.items()}  # fmt: skip
    return [*lines, *(f"{name}: {', '.join(parts)}" for name, parts in more.items() if parts)]


def _print_why(why: Why, commands: Mapping[str, str]) -> None:
    """Parts of a gain in the first order, what they save in the others, and the two runs of the largest part."""
    print_lines(["", f"from {why.baseline} ({why.baseline_us:.1f} us) to {why.target}: each part is the difference of two runs"])
    others = [Column(f"order{i}", f"order {i}\nus", "+z.1f", partial(_in_order, why, i - 1)) for i in range(2, len(why.orders) + 1)]
    print_columns(Columns(
        "with=part", "=system", "us=us:.1f", Column("saved", "saves\nus", "+z.1f", lambda one: one.saved_us), *others,
        Column("busiest", "busiest resource", of=lambda one: f"{resource_words(one.busiest)} ({one.share:.0%})"),
    ), why.orders[0])  # fmt: skip
    lines = [f"order {i}: " + ", ".join(f"{one.part} ({one.system})" for one in order) for i, order in enumerate(why.orders[1:], 2)]
    most = max(why.orders[0], key=lambda one: one.saved_us)
    print_lines([*lines, *(f"{most.part}, repeated: {commands[name]}" for name in (most.before, most.system) if name in commands)])


def _in_order(why: Why, order: int, one: Part) -> float:
    return why.saved[one.part][order]


def _print_map(found: GainMap) -> None:
    """From how many tokens on each mechanism pays, by the values of each input."""
    print_lines(["", f"tokens per GPU from which on a mechanism gains more than {EVEN:.0%} over the best system without it"])
    lines = [(name, value, gains) for name, panel in found.panels.items() for value, gains in sorted(panel.items())]
    print_table(("input", "value", *MECHANISMS), [
        (name, f"{value:g}", *(str(found.start(gains[one]) or UNKNOWN) for one in MECHANISMS)) for name, value, gains in lines
    ])  # fmt: skip


def _print_windows(done: Comparison) -> None:
    """What the leading tokens say about the whole layer."""
    rows = [row for row in done.rows if row.window]
    if not rows:
        return
    size, tokens = stops_of(rows)
    whole = ", ".join(row.system for row in done.rows if not row.window)
    but = f" ({whole}: of all {tokens})" if whole else ""
    print_lines(["", f"the table is of the first {size} tokens of each GPU{but}; this is the estimate for all {tokens}"])
    print_columns(Columns(
        Column("system", of=marked), "layer us=layer_us:.1f",
        Column("per_token", "us per token", ".3f", lambda row: row.window["us_per_token"] if row.window else "simulated"),
        Column("within", "nine of ten within", of=lambda row: f"{100 * row.window['apart']:.1f} %" if row.window else UNKNOWN, number=True),
        Column("speedup", "speed-up", ".2f", lambda row: done.speedup[row.system]),
    ), done.rows)  # fmt: skip


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
    print_table(("system", "chosen", "runs", "tokens", "worst x"), cells, left=2)
    print_lines(["runs: simulations of the search; tokens: per GPU in the search; worst: time of the worst setting over the time of the chosen one"])


def _setting(values: Mapping[str, int]) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in values.items())


def _columns(rows: Sequence[Row]) -> list[NetKind]:
    """The networks of `rows` that have a column."""
    return [kind for kind in NET_KINDS.values() if kind.column[0] and any(kind.sides[0] in row.utilization for row in rows)]


def _of_net(net: NetKind) -> Column:
    return Column(net.column[0], of=lambda row: percent(row, max(net.sides, key=row.utilization.__getitem__), narrow=True), unit="%", number=True)


def _print_rows(done: Comparison, rows: Sequence[Row]) -> None:
    """One line per Row. On an hw cluster the formats and SMs of each system are columns."""
    divisor, unit = bytes_unit(rows)
    surrounded, nets = any(row.surroundings_us for row in rows), _columns(rows)
    narrow = console().width < WIDTH or surrounded or bool(nets) or bool(done.formats)
    gap = 1 if narrow or max(len(marked(row)) for row in rows) > SHORT_NAME else 2
    links = ("link\nup %", "link\ndown %") if narrow else ("link up %\nmean / max", "down %\nmean / max")
    columns = COMPARED.like(
        Column("system", "\nsystem", of=marked), Column("formats", "rows\nout / back", of=lambda row: rows_sent(done.formats[row.system])),
        Column("sms", "\nSMs", of=lambda row: str(row.options.get(KNOB, UNKNOWN)) if row.form == "real" else UNKNOWN, number=True),
        "\nus=time_us:.1f" if done.rows[0].workload else "layer\nus=time_us:.1f",
        Column("outside", "outside\nkernels", ".1f", lambda row: row.time_us - row.simulated_us), "exposed\ncomm us=exposed_comm_us:.1f",
        Column("up", f"payload\nup {unit}", ".2f", lambda row: sum(row.traffic_bytes[near_sides(row)[0]].values()) / divisor),
        Column("down", f"payload\ndown {unit}", ".2f", lambda row: sum(row.traffic_bytes[near_sides(row)[1]].values()) / divisor),
        Column(links[0], of=lambda row: percent(row, near_sides(row)[0], narrow=narrow), number=True),
        Column(links[1], of=lambda row: percent(row, near_sides(row)[1], narrow=narrow), number=True), *map(_of_net, nets),
        Column("speedup", "speed\nup x", ".2f", lambda row: done.speedup[row.system]),
        Column("own", "own\nbound", ".2f", lambda row: row.time_us / row.bound_us if row.bound_us else None),
        Column("lower", "lower\nbound", ".2f", lambda row: row.time_us / row.workload_bound_us if row.workload_bound_us else None),
    )  # fmt: skip
    absent = (*(() if done.formats else ("formats", "sms")), *(() if surrounded else ("outside",)))
    print_columns(columns.without(*absent), rows, gap=gap, fold=False)
