"""`dysharp advise` as text: the same blocks as tables for a terminal or as Markdown for a design review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dysharp.analysis.load import MOST_GPUS, Load
from dysharp.api.advice import Advice
from dysharp.api.prediction import Predicted

MOST_PAIRS = 8  # GPUs up to which the table of pairs fits a page
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Block:
    """A titled table with lines below it. The first `left` columns are text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    left: int = 1


def blocks_of(done: Advice) -> list[Block]:
    """All of the advice, in reading order."""
    return [_ranking(done), _parts(done), _limits(done), *_loads(done.load), _what_ifs(done)]


def _ranking(done: Advice) -> Block:
    heads = ("system", "formats", "layer us", "90 % within", "eager us", "Mtok/s")
    lines = [
        "layer: kernels and what surrounds them on the GPU, as in a CUDA graph; eager: with the launches of the host (above)",
        "error bars: errors of the parts against measurements, added up; of a fused kernel: of whole layers",
    ]
    if done.layers is not None:
        e = done.layers
        lines.append(
            f"check: {e['n']} whole layers measured on {e['gpu']} are predicted (eager) with a median error of {e['median']:.3g} %, "
            f"nine of ten within {e['p90']:.3g} % (bias {e['bias']:+.3g} %)"
        )
    ties, unknown = done.ties(), [entry.row.system for entry in done.ranking if entry.bar() is None]
    if ties:
        lines.append(f"ties: the error bars of {', '.join(ties[1:])} overlap that of {ties[0]}; which is faster is not known")
    if unknown:
        lines.append(f"without an error bar, so the rank is not judged: {', '.join(unknown)}")
    for entry in done.ranking:
        if entry.tried:
            tried = ", ".join(f"{n}: {us:.0f}" for n, us in entry.tried.items())
            lines.append(f"{entry.row.system}: SMs of the communication kernels and layer us: {tried}")
    lines += _warnings({entry.row.system: entry for entry in done.ranking})
    lines += [f"not ranked: {name}: {why}" for name, why in done.not_ranked.items()]
    return Block("Ranking", heads, tuple(_ranked(entry) for entry in done.ranking), tuple(lines), left=2)


def _warnings(of: Mapping[str, Predicted], known: Sequence[str] = ()) -> list[str]:
    """Each warning once, behind the names it holds for; those `known` are left out."""
    names: dict[str, list[str]] = {}
    for name, entry in of.items():
        for text in entry.warnings:
            names.setdefault(text, []).append(name)
    who = {text: "all" if len(mine) == len(of) > 1 else ", ".join(mine) for text, mine in names.items() if text not in known}
    return [f"warning: {text}" if text.startswith((f"{mine}:", f"{mine} ")) else f"warning: {mine}: {text}" for text, mine in who.items()]


def _ranked(entry: Predicted) -> tuple[str, ...]:
    row, bar = entry.row, entry.bar()
    return (
        row.system,
        entry.formats,
        f"{entry.time_us:.0f}",
        f"{bar[0]:.0f} to {bar[1]:.0f}" if bar else UNKNOWN,
        f"{entry.eager_us:.0f}",
        f"{row.gpus * row.tokens_per_gpu / entry.time_us:.2f}",
    )


def _parts(done: Advice) -> Block:
    heads = ("system", *done.best.parts_us(), "layer")
    rows = tuple((entry.row.system, *(f"{us:.1f}" for us in (*entry.parts_us().values(), entry.time_us))) for entry in done.ranking)
    lines = (
        "the sum of its parts is the layer; a wait for another GPU counts as what that GPU did; other: launches, barriers and counts of "
        "communication kernels; around: permutation, activation, casts, launches of GEMMs",
    )
    return Block("Critical path, us", heads, rows, lines)


_CAUSES = {
    "link_up_us": "up links",
    "link_down_us": "down links",
    "sm_us": "SMs: GEMMs, and copies of communication kernels",
    "latency_us": "latencies of hops and memory",
    "window_us": "round trips of full windows",
    "host_us": "launches and barriers of communication kernels",
}


def _limits(done: Advice) -> Block:
    best = done.best
    parts = [(_CAUSES[name], us) for name, us in best.row.attribution.items() if name in _CAUSES]
    parts += [(name, us) for name, us in (
        ("permutation of rows", best.around.permute_us),
        ("activation and casts", best.around.activation_us + best.around.cast_us),
        ("launches of GEMMs", best.around.launch_us),
        ("GEMMs without the SMs of communication kernels", best.around.contention_us),
    )]
    rows = tuple((name, f"{us:.1f}", f"{100 * us / best.time_us:.0f}") for name, us in sorted(parts, key=lambda part: -part[1]) if us >= 0.05)
    terms = ", ".join(f"{name} {us:.1f}" for name, us in best.row.bound_terms.items())
    bound = f"busiest resource: {best.row.bound_resource}, {best.row.bound_us:.1f} us ({terms})"
    return Block(f"What limits {best.row.system}", ("critical path", "us", "% of layer"), rows, (bound, done.sentence))


def _loads(loads: Sequence[Load]) -> list[Block]:
    heads = ("placement", "rows per GPU max/mean", "received tokens max/mean", "GPU pair max/mean", "busiest pair")
    rows = tuple(
        (load.placement, f"{load.rows_max_mean:.3f}", f"{load.received_max_mean:.3f}", f"{load.pair_max_mean:.3f}", _pair(load)) for load in loads
    )
    gpus = len(loads[0].rows)
    notes = [f"{load.placement}: {load.note}" for load in loads if load.note]
    notes.append("tokens count once per destination GPU; pairs are source to destination")
    if gpus > MOST_PAIRS:
        notes.append(f"no table of pairs: {gpus} GPUs, a page holds {MOST_PAIRS}; --json has it up to {MOST_GPUS} GPUs")
    return [Block("Load", heads, rows, tuple(notes)), *(_pairs(load) for load in loads if gpus <= MOST_PAIRS)]


def _pair(load: Load) -> str:
    return f"{load.busiest_pair[0]} to {load.busiest_pair[1]}"


def _pairs(load: Load) -> Block:
    gpus = range(len(load.rows))
    rows = tuple((f"from GPU {s}", *(str(load.pairs[s, d]) if s != d else f"({load.pairs[s, d]})" for d in gpus)) for s in gpus)
    own = ("expert rows", *(str(rows) for rows in load.rows))
    return Block(f"Tokens per GPU pair, placement {load.placement}", ("", *(f"to {d}" for d in gpus)), (*rows, own))


def _what_ifs(done: Advice) -> Block:
    rows, lines = [], []
    for entry in done.what_if:
        p = entry.predicted
        bar = p.bar()
        width = f"{bar[0]:.0f} to {bar[1]:.0f}" if bar else "not measured"
        rows.append((entry.change, p.row.system, p.row.form, str(p.row.gpus), f"{p.time_us:.0f}", f"{entry.speedup:.2f}", width))
        lines.append(f"{entry.change}: {entry.assumes}")
    real = {entry.change: entry.predicted for entry in done.what_if if entry.predicted.row.form == "real"}
    lines += _warnings(real, done.best.warnings)
    if any(entry.predicted.row.form == "paper" for entry in done.what_if):
        lines.append(
            "paper forms charge no software cost and take no SMs for communication: hold them against `software for free`, not against the ranking"
        )
        lines.append("`overlap by rows`, `DySHARP switches` and `communication for free` place rows by expert on arrival: no permutation is charged")
    heads = ("change", "system", "form", "GPUs", "layer us", "speed-up", "90 % within")
    title = f"What if ({done.best.row.system} unless another system is named; speed-up at the same tokens per GPU)"
    return Block(title, heads, tuple(rows), tuple(lines), 3)


def print_advice(done: Advice) -> None:
    """Tables on stdout."""
    from rich.table import Table

    from dysharp.cli.output import console

    out = console()
    for line in done.header:
        out.print(line, markup=False)
    for block in blocks_of(done):
        out.print(f"\n{block.title}", style="bold", markup=False)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for at, head in enumerate(block.heads):
            table.add_column(head, justify="left" if at < block.left else "right", overflow="fold")
        for row in block.rows:
            table.add_row(*row)
        out.print(table)
        for line in block.lines:
            out.print(line, markup=False)


def markdown_of(done: Advice) -> str:
    """The same as Markdown."""
    parts = ["\n".join(f"- {line}" for line in done.header)]
    for block in blocks_of(done):
        ruler = [":---" if at < block.left else "---:" for at in range(len(block.heads))]
        lines = [" | ".join(cells) for cells in (block.heads, ruler, *block.rows)]
        parts += [f"### {block.title}", "\n".join(f"| {line} |" for line in lines)]
        if block.lines:
            parts.append("\n".join(f"- {line}" for line in block.lines))
    return "\n\n".join(parts)
