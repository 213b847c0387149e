"""All tables of `dysharp advise`: for a terminal with `--details`, or Markdown for a design review."""

from collections.abc import Iterable, Sequence
from typing import Any

from dysharp.analysis.load import MOST_GPUS, Load
from dysharp.base import Column, Columns, Texts, frozen
from dysharp.planning.advice.advise import PARTS, Advice
from dysharp.planning.advice.prediction import Predicted
from dysharp.runs import cause_names, grouped, resource_words
from dysharp.show.output import console, print_lines, print_table

MOST_PAIRS = 8  # GPUs up to which the table of pairs fits a page


@frozen
class _Block:
    """A titled table with lines below it. The first `left` columns are text."""

    title: str
    heads: Texts
    rows: tuple[Texts, ...]
    lines: Texts = ()
    left: int = 1


def _block(title: str, columns: Columns, rows: Iterable[Any], lines: Iterable[str] = ()) -> _Block:
    return _Block(title, tuple(columns.headings), tuple(columns.cells(rows)), tuple(lines), len(columns.text))


RANKING = Columns(
    "system", "formats", "layer us=time_us:.0f", Column("bar", "90 % within", ".0f", Predicted.bar), "eager us=eager_us:.0f",
    Column("rate", "Mtok/s", ".2f", lambda entry: entry.tokens_per_s / 1e6),
)  # fmt: skip
LOADS = Columns(
    "placement", "rows per GPU max/mean=rows_max_mean:.3f", "received tokens max/mean=received_max_mean:.3f", "GPU pair max/mean=pair_max_mean:.3f",
    "busiest pair=busiest_pair:d", Column("nic_out", "NIC out max/mean", ".3f", lambda load: load.nics_max_mean[0]),
    Column("nic_in", "NIC in max/mean", ".3f", lambda load: load.nics_max_mean[1]),
)  # fmt: skip
CHANGES = Columns(
    "change", "system", "form", "GPUs=gpus:d", "layer us=time_us:.0f", "speed-up=speedup:.2f",
    Column("bar", "90 % within", ".0f", lambda row: "not measured" if row["low_us"] is None else (row["low_us"], row["high_us"])),
)  # fmt: skip
"""Rows: `WhatIf.to_dict`."""


def _blocks_of(done: Advice) -> list[_Block]:
    """All tables of the advice, in reading order."""
    return [_ranking(done), _parts(done), _limits(done), *_loads(done.load), _what_ifs(done)]


def _ranking(done: Advice) -> _Block:
    lines = [
        "layer us: layer time in a CUDA graph; eager us: layer time with the launches of the host, where they are known",
        "90 % within: range from the measured errors of the parts; for a fused kernel, of whole layers",
    ]
    if any(entry.has_eager for entry in done.ranking):
        lines.append(done.host)
    if done.layers is not None:
        e = done.layers
        lines.append(
            f"check: {e['n']} whole eager layers were measured on {e['gpu']}; their predictions have a median error of {e['median']:.3g} %, "
            f"a 90th percentile of {e['p90']:.3g} % and a bias of {e['bias']:+.3g} %"
        )
    if ties := done.ties():
        names = ", ".join(entry.system for entry in ties)
        lines.append(f"ties: the range of {names} overlaps the range of {done.best.system}; the fastest of these systems is not known")
    if done.unjudged:
        lines.append(f"no measured error, so not ranked: {', '.join(entry.system for entry in done.unjudged)}")
    entries = (*done.ranking, *done.unjudged)
    for entry in entries:
        if entry.tried:
            tried = ", ".join(f"{n} SMs {us:.0f} us" for n, us in entry.tried.items())
            lines.append(f"{entry.system}: layer time by SMs of communication kernels: {tried}")
    known = [line.removeprefix("warning: ") for line in done.header]
    lines += [f"warning: {text}" for text in grouped({entry.system: entry.warnings for entry in entries}, known)]
    lines += [f"not run: {name}: {why}" for name, why in done.not_ranked.items()]
    return _block("Ranking", RANKING, entries, lines)


def _parts(done: Advice) -> _Block:
    columns = Columns("system", *(Column(name, PARTS.get(name, name), ".1f") for name in done.best.parts_us()), "layer:.1f")
    entries = (*done.ranking, *done.unjudged)
    rows = [entry.parts_us() | {"system": entry.system, "layer": entry.time_us} for entry in entries]
    fused = [(entry.system, parts) for entry in entries if (parts := entry.one_kernel_us())]
    lines = (
        *(f"{name} is one kernel: {', '.join(f'{part} {us:.1f} us' for part, us in parts.items())}" for name, parts in fused),
        "the parts add up to the layer time; a wait for another GPU counts as the work of that GPU",
        "software: launches, barriers and counts of communication kernels",
        "other kernels: permutation, activation, casts and launches of GEMMs",
    )
    return _block("Critical path, us", columns, rows, lines)


def _limits(done: Advice) -> _Block:
    best = done.best
    causes = cause_names(best.row)
    own = best.row.attribution
    parts = [(causes[name], us) for name, us in own.items() if name not in ("surroundings_us", "sm_us")]
    gemms = min(own["sm_us"], best.row.path_us["gemm1"] + best.row.path_us["gemm2"])
    parts += [("GEMMs on the SMs", gemms), ("copies of communication kernels on the SMs", own["sm_us"] - gemms)]
    parts += [("permutation, activation, casts and starts of kernels", own.get("surroundings_us", 0.0))]
    rows = tuple((name, f"{us:.1f}", f"{100 * us / best.row.time_us:.0f}") for name, us in sorted(parts, key=lambda part: -part[1]) if us >= 0.05)
    terms = ", ".join(f"{name} {us:.1f} us" for name, us in best.row.bound_terms.items())
    bound = f"busiest resource: {resource_words(best.row.bound_resource)}, {best.row.bound_us:.1f} us ({terms})"
    few = () if not best.row.window else (f"these are times of the first {best.row.tokens_per_gpu} tokens of each GPU",)
    return _Block(f"What limits {best.row.system}", ("critical path", "us", "% of layer"), rows, (bound, *few))


def _loads(loads: Sequence[Load]) -> list[_Block]:
    over_domains = loads[0].nics_max_mean is not None
    gpus = len(loads[0].rows)
    notes = [f"{load.placement}: {load.note}" for load in loads if load.note]
    notes.append("a token counts once per destination GPU; a pair is source to destination")
    if over_domains:
        notes.append("NIC: token rows that the NICs of a GPU send or receive, once per remote domain of a token")
    if gpus > MOST_PAIRS:
        notes.append(f"GPU pairs of {gpus} GPUs are not printed (at most {MOST_PAIRS}); --json has them for up to {MOST_GPUS} GPUs")
    columns = LOADS if over_domains else LOADS.without("nic_out", "nic_in")
    return [_block("Load", columns, loads, notes), *(_pairs(load) for load in loads if gpus <= MOST_PAIRS)]


def _pairs(load: Load) -> _Block:
    gpus = range(len(load.rows))
    rows = tuple((f"from GPU {s}", *(str(load.pairs[s, d]) if s != d else f"({load.pairs[s, d]})" for d in gpus)) for s in gpus)
    own = ("expert rows", *(str(rows) for rows in load.rows))
    return _Block(f"Tokens per GPU pair, placement {load.placement}", ("", *(f"to {d}" for d in gpus)), (*rows, own))


def _what_ifs(done: Advice) -> _Block:
    lines = [f"speed-up: layer time of {done.best.row.system} divided by the layer time after the change, at the same tokens per GPU"]
    lines += [f"{entry.change}: {entry.assumes}" for entry in done.what_if]
    real = {entry.change: entry.predicted for entry in done.what_if if entry.predicted.row.form == "real"}
    lines += [f"warning: {text}" for text in grouped({name: entry.warnings for name, entry in real.items()}, done.best.warnings)]
    if any(entry.predicted.row.form == "paper" for entry in done.what_if):
        lines += [
            "paper forms charge no software cost and no SMs to communication: compare them with `software for free`, not with the ranking",
            "`overlap by rows`, `DySHARP switches` and `communication for free` place rows by expert on arrival: no permutation is charged",
        ]
    return _block("What if: one change at a time", CHANGES, (entry.to_dict() for entry in done.what_if), lines)


def print_details(done: Advice) -> None:
    """The whole header and all tables, on stdout."""

    print_lines(["", *done.header])
    for block in _blocks_of(done):
        console().print(f"\n{block.title}", style="bold", markup=False)
        print_table(block.heads, block.rows, left=block.left)
        print_lines(block.lines)


def markdown_of(done: Advice) -> str:
    """All tables as Markdown."""
    parts = ["\n".join(f"- {line}" for line in (*done.answer, *done.header))]
    for block in _blocks_of(done):
        ruler = [":---" if column < block.left else "---:" for column in range(len(block.heads))]
        lines = [" | ".join(cells) for cells in (block.heads, ruler, *block.rows)]
        parts += [f"### {block.title}", "\n".join(f"| {line} |" for line in lines)]
        if block.lines:
            parts.append("\n".join(f"- {line}" for line in block.lines))
    return "\n\n".join(parts)
