"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table

from dysharp.analysis import Row
from dysharp.api import Comparison
from dysharp.workload import GpuRow, LayerRow

WIDTH = 100
UNKNOWN = "-"


def console() -> Console:
    """stdout: the terminal's width, 100 columns into a file; colour only on a terminal and without NO_COLOR (rich reads it)."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """One JSON document; text of any script as it is, numbers always finite."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_header(lines: Iterable[str]) -> None:
    """What the numbers rest on, to stderr."""
    for line in lines:
        click.echo(line, err=True)


def _table(*, show_header: bool = True, padding: tuple[int, int, int, int] = (0, 2, 0, 0)) -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", show_header=show_header, padding=padding)


def _bytes_unit(rows: Sequence[Row]) -> tuple[float, str]:
    """One unit for a whole column: GB from one on, else MB (decimal)."""
    largest = max((sum(row.traffic_bytes[side].values()) for row in rows for side in ("up", "down")), default=0)
    return (1e9, "GB") if largest >= 1e9 else (1e6, "MB")


def _percent(row: Row, side: str, *, narrow: bool = False) -> str:
    mean = f"{100 * row.utilization[side]:.0f}"
    return mean if narrow else f"{mean} / {100 * row.utilization[f'{side}_max']:.0f}"


def print_comparison(done: Comparison) -> None:
    """One row per system, then the sentence."""
    divisor, unit = _bytes_unit(done.rows)
    out = console()
    around = any(row.surroundings_us for row in done.rows)  # a column more
    narrow = out.width < WIDTH or around
    table = _table(padding=(0, 1 if narrow else 2, 0, 0))
    table.add_column("\nsystem", no_wrap=True)
    table.add_column("\nform", no_wrap=around)
    for heading in (
        "layer\ntime us",
        *(("of it\naround",) if around else ()),
        "exposed\ncomm us",
        f"bytes\nup {unit}",
        f"bytes\ndown {unit}",
        "link\nup %" if narrow else "link up %\nmean / max",
        "link\ndown %" if narrow else "down %\nmean / max",
        "speed-up\nx",
        "x own\nbound",
        "x least\nof any",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in done.rows:
        table.add_row(
            row.system,
            row.form,
            f"{row.time_us:.1f}",
            *((f"{row.time_us - row.simulated_us:.1f}",) if around else ()),
            f"{row.exposed_comm_us:.1f}",
            f"{sum(row.traffic_bytes['up'].values()) / divisor:.2f}",
            f"{sum(row.traffic_bytes['down'].values()) / divisor:.2f}",
            _percent(row, "up", narrow=narrow),
            _percent(row, "down", narrow=narrow),
            f"{done.speedup[row.system]:.2f}",
            f"{row.time_us / row.bound_us:.2f}" if row.bound_us else UNKNOWN,
            f"{row.time_us / row.workload_bound_us:.2f}" if row.workload_bound_us else UNKNOWN,
        )
    out.print(table)
    out.print(
        f"\nspeed-up over {done.baseline}; x own bound: time over the busiest resource of this system's program; "
        "x least of any: over the least that any system needs (ideal: its GEMMs)"
    )
    if around:
        out.print("of it around: permutation, activation, casts and launches on the GPU; eager layers also wait for the host (--json: eager_us)")
    out.print(done.sentence, markup=False)


def fact_table(lines: Iterable[tuple[str, str]]) -> Table:
    """Name and value, one pair a line."""
    table = _table(show_header=False)
    for name, text in lines:
        table.add_row(name, text)
    return table


def print_row(row: Row) -> None:
    """One point as name, value, unit."""
    console().print(fact_table(_lines_of(row)))


def _lines_of(row: Row) -> list[tuple[str, str]]:
    divisor, unit = _bytes_unit([row])

    def sizes(side: str) -> str:
        return ", ".join(f"{name} {value / divisor:.3f} {unit}" for name, value in row.traffic_bytes[side].items())

    def times(parts: dict[str, float]) -> str:
        return ", ".join(f"{name.removesuffix('_us')} {value:.1f} us" for name, value in parts.items())

    phases = [
        (f"  {name}", f"{p['start']:.1f} to {p['end']:.1f} us, busy {p['busy']:.1f} us")
        for name, p in row.phases_us.items()
        if p["end"] > 0
    ]
    return [
        ("system", f"{row.system} ({row.form} form)"),
        *_window_lines(row),
        ("layer time", f"{row.time_us:.2f} us"),
        *_surrounding_lines(row),
        ("exposed communication", f"{row.exposed_comm_us:.2f} us"),
        ("bound of this system", f"{row.bound_us:.2f} us by {row.bound_resource}: {times(row.bound_terms)}"),
        ("bound of any system", f"{row.workload_bound_us:.2f} us"),
        ("critical path", times(row.attribution)),
        ("phases (last GPU)", ""),
        *phases,
        ("bytes up", sizes("up")),
        ("bytes down", sizes("down")),
        ("on the wire", f"{row.wire_flits['up']} flits up, {row.wire_flits['down']} flits down"),
        ("link up, mean / max", f"{_percent(row, 'up')} %"),
        ("link down, mean / max", f"{_percent(row, 'down')} %"),
        ("SMs, mean / max", f"{_percent(row, 'sm')} %"),
        ("waits (last GPU)", times(row.stalls)),
        *_block_lines(row.blocks),
        ("simulated", f"{row.n_ops} ops, {row.n_events} events in {row.wall_s['total']:.2f} s, digest {row.digest}"),
    ]


def _block_lines(blocks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the blocks of the fabric did, at packet level; those that had nothing to do are left out."""
    if not blocks:
        return []
    al, red, queue = blocks["al_tlb"], blocks["reduction"], blocks["multimemq"]
    lines = [("blocks of the fabric", f"{blocks['packets']['cut']} packets, input buffers up to {blocks['input_buffer']['max_flits']} flits a port")]
    if al["lookups"]:
        under_way = al["misses_under_way"]
        lines += [
            ("  AL TLB", f"{al['lookups']} lookups, {al['hit_rate']:.1%} hits, {al['misses']} reads of memory, {al['evictions']} evictions"),
            ("    misses under way", f"mean {under_way['mean']:.0f}, at most {under_way['max']}, all hubs; {al['full_retries']} found no register"),
            ("    banks", f"{al['bank_waits']} lookups met a busy bank, {al['bank_wait_ns_mean']:.1f} ns a lookup (not charged)"),
        ]
    if red["sessions"]:
        live = red["occupancy"]
        left = f"{red['evictions']} evictions, {red['timeouts']} timeouts, {red['bypasses']} bypasses"
        lines += [
            ("  reduction tables", f"{red['sessions']} sessions, {left}"),
            ("    live", f"mean {live['mean']:.0f}, at most {live['max']}, all ports"),
        ]
    if queue["fetches"]:
        lines += [("  MultimemQ", f"{queue['fetches']} target lists, {queue['lists_under_way_mean']:.1f} under way per GPU")]
    stalls = ", ".join(
        f"{cause.replace('_', ' ')} {n}" + (f" ({blocks['stalls_us'][cause]:.0f} us)" if cause in blocks["stalls_us"] else "")
        for cause, n in blocks["stalls"].items()
        if n
    )
    return [*lines, ("  stalls by cause", stalls or "none")]


def _surrounding_lines(row: Row) -> list[tuple[str, str]]:
    """What of the layer's time is not of the Program; the lines behind them are about the Program alone."""
    if not row.surroundings_us:
        return []
    parts = ", ".join(f"{name.removesuffix('_us')} {us:.1f} us" for name, us in row.surroundings_us.items() if name != "host_us")
    return [
        ("  simulated", f"{row.simulated_us:.2f} us"),
        ("  around it", parts),
        ("with the host (eager)", f"{row.eager_us:.2f} us"),
    ]


def _window_lines(row: Row) -> list[tuple[str, str]]:
    """What a window says about the whole layer; the lines behind it are about the window alone."""
    if not row.window:
        return []
    w = row.window
    return [
        (
            "whole layer, estimated",
            f"{w['time_us']:.2f} us for {w['of_tokens']} tokens per GPU, at {w['us_per_token']:.4f} us a token; "
            f"half the window gives {w['half_window_time_us']:.2f} us",
        ),
        ("window", f"the first {w['tokens']} tokens of each GPU; all below is about them"),
    ]


# Columns of a list that people read; everything is in --json.
_SHOWN = {
    "systems": ("name", "summary", "options"),
    "models": ("name", "hidden", "expert_hidden", "experts", "topk", "tokens_per_gpu", "routing"),
    "clusters": ("name", "gpus", "max_gpus", "link_GBps", "link_latency_ns", "sms", "fp8_TFLOPS", "hbm_GBps"),
    "figures": ("name", "points", "title"),
    "blocks": ("name", "summary"),
}
_HEADINGS = {"link_GBps": "link GB/s", "link_latency_ns": "hop ns", "fp8_TFLOPS": "FP8 TFLOP/s", "hbm_GBps": "HBM GB/s"}


def print_list(what: str, rows: list[dict[str, Any]]) -> None:
    """The columns of a list that matter to people."""
    out = console()
    if what == "options":
        for row in rows:
            out.print(_option_text(row), markup=False)
        return
    table = _table()
    for key in _SHOWN[what]:
        table.add_column(_HEADINGS.get(key, key.replace("_", " ")), overflow="fold", no_wrap=key == "name")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in _SHOWN[what]))
    out.print(table if rows else f"no {what} yet")


def _option_text(row: dict[str, Any]) -> Group:
    """`name = value unit (range; source)`, and the reason below."""
    notes = [" | ".join(row["alternatives"]), "" if row["low"] is None else f"{row['low']} to {row['high']}", row["source"]]
    bracket = "; ".join(note for note in notes if note)
    head = f"{row['name']} = {row['value']} {row['unit']}".rstrip() + (f" ({bracket})" if bracket else "")
    setters = f"--set {', '.join(row['set_by'])}" if row["set_by"] else ""
    return Group(head, Padding(Group(*(text for text in (row["reason"], setters) if text)), (0, 0, 0, 4)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def print_layers(rows: Sequence[LayerRow]) -> None:
    """One line per layer; per GPU count: largest over mean copies per GPU, and mean distinct GPUs per token. Last, what uniform routing shows."""
    table = _table(padding=(0, 1, 0, 0))
    for heading in ("\nlayer", "experts\nmax/mean", "\nspread"):
        table.add_column(heading, justify="right", no_wrap=True)
    counts = list(dict.fromkeys(gpu.n_gpus for row in rows for gpu in row.gpus))
    for n in counts:
        table.add_column(f"{n} GPUs\nmax/mean", justify="right", no_wrap=True)
        table.add_column("distinct\nGPUs", justify="right", no_wrap=True)
    for row in rows:
        by_count = {gpu.n_gpus: gpu for gpu in row.gpus}
        cells = [cell for n in counts for cell in _gpu_cells(by_count.get(n))]
        table.add_row(UNKNOWN if row.layer is None else str(row.layer), f"{row.max_mean:.2f}", f"{row.cv:.3f}", *cells)
    closed = {gpu.n_gpus: gpu.distinct_gpus_uniform for row in rows for gpu in row.gpus}
    noise = {row.cv_noise for row in rows}
    expected = [cell for n in counts for cell in ("", _number(closed[n], 2))]
    table.add_row("uniform", "", _number(noise.pop() if len(noise) == 1 else None, 3), *expected)
    out = console()
    for source in dict.fromkeys(_source_line(row) for row in rows):
        out.print(source, markup=False)
    out.print(table)
    out.print("max/mean: (token, expert) copies of the busiest GPU over the mean; distinct GPUs of a token, its own included")
    for note in dict.fromkeys(gpu.note for row in rows for gpu in row.gpus if gpu.note):
        out.print(f"placement: {note}", markup=False)


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _source_line(row: LayerRow) -> str:
    topk = "" if row.topk is None else f", top-{row.topk}"
    tokens = "" if row.n_tokens is None else f", {row.n_tokens} tokens"
    return f"{row.source}: {row.n_experts} experts{topk}{tokens}"


def _gpu_cells(gpu: GpuRow | None) -> tuple[str, str]:
    if gpu is None:
        return UNKNOWN, UNKNOWN
    return f"{gpu.copies_max_mean:.2f}", _number(gpu.distinct_gpus, 2)
