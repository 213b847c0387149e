"""A report of runs: one HTML file without scripts that loads nothing. Built from plain Rows (`Row.to_dict`), so any stored run can be shown.

Fields of stored Rows are checked against `Row` before a page is made of them. `_LoadView`: the load of a workload as the report draws it: tokens per
pair of GPUs, rows per expert, rows per GPU.
"""

import dataclasses
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from dysharp.analysis import Row
from dysharp.analysis.load import Load, load_of
from dysharp.analysis.row import DIRECTIONS, asked_of
from dysharp.api import Advice, Comparison
from dysharp.api.comparison import COMPARED, left_out_lines, limits_sentence, place_of_fastest
from dysharp.base import AnyMapping, Array, ByName, Cells, ConfigError, Numbers, Texts, by_key, frozen, one_line, show
from dysharp.runs import resource_words, routing_line
from dysharp.runs.causes import Cause, causes
from dysharp.show.markdown import page
from dysharp.show.plots import colour_of, operator_colours
from dysharp.specs import list_clusters, list_models, load_cluster, load_model
from dysharp.systems import all_systems
from dysharp.workload import Routing, make_routing

LEVELS = 8
"""Colours of a heat map."""
MOST_GPUS = 128


@frozen
class _LoadView:
    """Drawings of a load.

    pairs        for each colour, the SVG path of the pairs of GPUs that have it; the diagonal is left out
    bounds       (lowest, highest) tokens of each colour
    gpus         number of GPUs
    busiest      (source, destination, tokens) of the busiest pair; None on one GPU
    experts      SVG path of the bars of experts, 1000 wide and 100 high
    most_expert  (expert, rows) of the busiest expert
    rows         useful rows of each GPU
    spread       busiest over mean: rows of experts, rows of GPUs, tokens of pairs
    nics         busiest over mean of the NICs' rows: (out, in); None in one NVLink domain
    """

    pairs: Texts
    bounds: tuple[tuple[int, int], ...]
    gpus: int
    busiest: tuple[int, int, int] | None
    experts: str
    most_expert: tuple[int, int]
    rows: Numbers
    spread: tuple[float, float, float]
    nics: tuple[float, float] | None = None


@lru_cache(maxsize=32)
def _load_view(model: str, gpus: int, tokens: int, routing: str, seed: int, layer: int | None, domain_gpus: int = 0) -> _LoadView:
    """The load of a workload by the names in its Row. Raises ConfigError where it cannot be drawn again."""
    known = load_model(_packaged(model, list_models()))
    for source in dict.fromkeys((known.routing, routing.removesuffix(" (synthetic)"))):
        with suppress(ConfigError):
            found = make_routing(source, known, gpus, tokens, seed=seed, layer=layer)
            if found.description == routing:
                return load_view_of(found, domain_gpus)
    raise ConfigError(f"report: found routing {routing[:60]!r}, expected one that can be drawn again")


def load_view_of(routing: Routing, domain_gpus: int = 0) -> _LoadView:
    """The drawings of a Routing. `domain_gpus`: GPUs of an NVLink domain; 0 = all."""
    load = load_of(routing, domain_gpus)
    chosen = routing.expert[routing.expert >= 0]
    per_expert = np.bincount(chosen, minlength=routing.n_experts)
    pairs, bounds = _heat(load)
    busiest = None
    if len(load.rows) > 1:
        source, destination = load.busiest_pair
        busiest = (source, destination, int(load.pairs[source, destination]))
    mean = float(per_expert.mean())
    return _LoadView(
        pairs, bounds, len(load.rows), busiest, _bars(per_expert), (int(per_expert.argmax()), int(per_expert.max())), tuple(load.rows.tolist()),
        (float(per_expert.max() / mean) if mean else 1.0, load.rows_max_mean, load.pair_max_mean), load.nics_max_mean,
    )  # fmt: skip


def _heat(load: Load) -> tuple[Texts, tuple[tuple[int, int], ...]]:
    """A path of unit squares for each colour, and the tokens that the colour stands for. Row: source; column: destination."""
    n = len(load.rows)
    if n > MOST_GPUS or n < 2:
        return (), ()
    off = ~np.eye(n, dtype=bool)
    low, high = int(load.pairs[off].min()), int(load.pairs[off].max())
    step = max(1, -(-(high - low + 1) // LEVELS))
    level = np.where(off, (load.pairs - low) // step, -1)
    paths, bounds = [], []
    for k in range(LEVELS):
        if low + k * step > high:
            break
        paths.append("".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(level == k).tolist()))
        bounds.append((low + k * step, min(high, low + (k + 1) * step - 1)))
    return tuple(paths), tuple(bounds)


def _bars(values: Array) -> str:
    """A path of bars, 1000 wide and 100 high together."""
    n, most = len(values), max(1, int(values.max(initial=0)))
    width = 1000 / n
    return "".join(f"M{i * width:.1f} 100v-{100 * value / most:.1f}h{width * 0.85:.1f}V100z" for i, value in enumerate(values.tolist()) if value)


NEEDED = (
    "system", "model", "cluster", "gpus", "tokens_per_gpu", "routing", "direction", "fidelity", "seed", "options", "time_us", "attribution",
    "phases_us",
)  # fmt: skip
"""Fields that a report cannot do without. An older Row may lack others."""
_Us = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Phase(BaseModel):
    start: _Us
    end: _Us
    busy: _Us


class _Window(BaseModel):
    model_config = ConfigDict(extra="allow")
    time_us: _Us


_Count = Annotated[int, Field(ge=0)]
_NARROWER: ByName = {
    "time_us": Annotated[float, Field(gt=0, allow_inf_nan=False)], "bound_us": _Us, "workload_bound_us": _Us, "exposed_comm_us": _Us,
    "phases_us": dict[str, _Phase], "window": _Window | Annotated[ByName, Field(max_length=0)], "gpus": Annotated[int, Field(ge=1, le=1 << 16)],
    "tokens_per_gpu": Annotated[int, Field(ge=0, le=1 << 40)], "seed": _Count, "layer": _Count | None,
    "dropped_rows": _Count, "direction": typing.Literal[tuple(DIRECTIONS)], "topk": _Count,
}  # fmt: skip
"""Fields that a page computes with, narrower than in `Row`."""


def check_row(row: AnyMapping, where: str = "report") -> None:
    """Raise ConfigError for a Row without a field of `NEEDED`, and for the first field of a wrong type or out of range."""
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise ConfigError(f"{where}: found a row without {', '.join(missing)}, expected rows of dysharp run --json")
    if not row["attribution"]:
        raise ConfigError(f"{where}: attribution: found {show(row['attribution'])}, expected a cause and its time, as in rows of dysharp run --json")
    try:
        _schema().model_validate(dict(row))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        expected = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"{where}: {place}: found {show(first['input'])}, expected {expected}, as in rows of dysharp run --json") from None


@cache
def _schema() -> type[BaseModel]:
    hints = typing.get_type_hints(Row) | _NARROWER
    fields: ByName = {f.name: (hints[f.name], None) for f in dataclasses.fields(Row)}
    return pydantic.create_model("StoredRow", __config__=ConfigDict(allow_inf_nan=False), **fields)


PlainRow = AnyMapping
Workload = tuple[Any, ...]
LeftOut = tuple[PlainRow, Mapping[str, str]]
"""A Row of a comparison, and the systems that the comparison left out, each with the reason."""
MOST_LOAD = 1 << 20
"""Tokens of a workload whose routing is drawn again for a page."""
WORKLOAD = ("model", "cluster", "gpus", "tokens_per_gpu", "routing", "direction", "fidelity", "seed")
"""Fields of a Row that say what was simulated. Rows that agree in them stand in one table."""


@frozen
class _Entry:
    """One run in a table. Times in us. `low`, `high`: error bar, None = not known. `label`: the system, and what tells it apart."""

    label: str
    row: PlainRow
    time_us: float
    low: float | None = None
    high: float | None = None
    speedup: float | None = None


@frozen
class _Panel:
    """Runs on one workload. `notes`: what the numbers rest on. `warnings`: the warnings about all runs. `best`: place of the entry that the
    sentence or the answer names."""

    heading: str
    entries: tuple[_Entry, ...]
    sentence: str = ""
    notes: Texts = ()
    warnings: Texts = ()
    load: _LoadView | None = None
    best: int = 0
    sources: tuple[tuple[str, str], ...] = ()


@frozen
class Report:
    """What a page says. `command`: the command that repeats it. `answer`: lines on top."""

    title: str
    command: str
    panels: tuple[_Panel, ...]
    answer: Texts = ()


def report_of_comparison(done: Comparison, command: str) -> Report:
    """A report of `compare`."""
    rows = zip(done.rows, done.to_dict()["rows"], strict=True)
    entries = tuple(_Entry(row.system, plain, row.layer_us, speedup=done.speedup[row.system]) for row, plain in rows)
    panel = _panel(entries, done.header, done.sentence)
    return Report(f"{len(entries)} systems on {panel.heading}", command, (panel,), (done.sentence,))


def report_of_advice(done: Advice, command: str) -> Report:
    """A report of `advise`, with the error bars of its predictions."""
    found = []
    for entry in (*done.ranking, *done.unjudged):
        bar = entry.bar() or (None, None)
        row = entry.row.to_dict() | {"warnings": tuple(text.removeprefix(f"{entry.system}: ") for text in entry.warnings)}  # the page names it
        found.append(_Entry(entry.system, row, entry.time_us, *bar))
    header = (*done.header, *(f"not ranked: {name}: {why}" for name, why in done.not_ranked.items()))
    panel = replace(_panel(tuple(found), header, ""), best=0)  # the first is `done.best`
    return Report(f"Systems for {panel.heading}", command, (panel,), tuple(done.answer))


def report_of_rows(rows: Sequence[PlainRow], command: str, title: str = "", left_out: Iterable[LeftOut] = ()) -> Report:
    """A report of stored Rows: one table for each workload, with the systems that its comparisons left out."""
    if not rows:
        raise ConfigError("report: found no rows, expected at least one")
    groups = by_key((_workload(row), row) for row in rows)
    absent: dict[Workload, Cells] = {}
    for row, why in left_out:
        absent.setdefault(_workload(row), {}).update(why)
    panels = tuple(_panel(_entries(same), left_out_lines(absent.get(workload, {})), _sentence(same)) for workload, same in groups.items())
    words = f"{len(rows)} run{'s' * (len(rows) > 1)} of "
    words += f"{len(panels)} workloads" if len(panels) > 1 else panels[0].heading
    return Report(title or words, command, panels)


def _workload(row: PlainRow) -> Workload:
    """What a stored Row was simulated on. Raises ConfigError as `check_row`."""
    check_row(row)
    return (*(row[name] for name in WORKLOAD), row.get("workload", ""))


def _entries(rows: Sequence[PlainRow]) -> tuple[_Entry, ...]:
    """Runs of one workload. A label names the options in which runs of a system differ."""
    base = next((row for row in rows if row["system"] == "deepep"), rows[0])
    out = []
    for row in rows:
        same = [other["options"] for other in rows if other["system"] == row["system"]]
        apart = [name for name in row["options"] if len({str(options.get(name)) for options in same}) > 1]
        label = ", ".join([row["system"], *(f"{name} {row['options'][name]}" for name in apart)])
        speedup = _time(base) / _time(row) if base.get("form") == row.get("form") and _time(row) else None
        out.append(_Entry(label, row, _time(row), speedup=speedup))
    return tuple(out)


def _time(row: PlainRow) -> float:
    window = row.get("window")
    return float(window["time_us"] if window else row["time_us"])


def _sentence(rows: Sequence[PlainRow]) -> str:
    """What limits the fastest; "" where the Rows are not complete, or of a system that is not installed."""
    if any(row["system"] not in all_systems() for row in rows):
        return ""
    try:
        full = tuple(Row.from_dict(row) for row in rows)
    except TypeError:
        return ""
    forms = {row.form for row in full}
    return limits_sentence(full, {form: next((r for r in full if r.form == form and r.system == "deepep"), full[0]).system for form in forms})


def _panel(entries: tuple[_Entry, ...], header: Sequence[str], sentence: str) -> _Panel:
    row = entries[0].row
    warnings = tuple(line.removeprefix("warning: ") for line in header if line.startswith("warning: "))
    of_entries = {text for entry in entries for text in entry.row.get("warnings", ())}
    ranked = [(str(e.row["system"]), str(e.row.get("form", "")), int(e.row.get("dropped_rows", 0)), e.time_us) for e in entries]
    return _Panel(
        heading=asked_of(row), entries=entries, sentence=sentence,
        notes=tuple(line for line in header if not line.startswith("warning: ")) or _asked(row),
        warnings=tuple(text for text in warnings if not any(text.endswith(known) for known in of_entries)),
        load=None if row.get("workload") else _load(row), best=place_of_fastest(ranked), sources=_sources(str(row["model"]), str(row["cluster"])),
    )  # fmt: skip


def _asked(row: PlainRow) -> Texts:
    """The notes of a Row that came without a header."""
    routing = () if row.get("workload") else (routing_line(str(row["routing"])),)
    return (*routing, f"cluster: {row['cluster']}")


def _load(row: PlainRow) -> _LoadView | None:
    """The load of the workload, drawn again; None where its model or cluster is not packaged, and where it has more than `MOST_LOAD` rows."""
    if int(row["gpus"]) * int(row["tokens_per_gpu"]) > MOST_LOAD:
        return None
    try:
        workload = str(row["model"]), int(row["gpus"]), int(row["tokens_per_gpu"]), str(row["routing"]), int(row["seed"]), row.get("layer")
        return _load_view(*workload, _domain_gpus(str(row["cluster"]), int(row["gpus"])))
    except ConfigError:
        return None


def _domain_gpus(cluster: str, gpus: int) -> int:
    """GPUs of an NVLink domain of a packaged cluster with `gpus` GPUs; 0 where the cluster is not known here."""
    try:
        return load_cluster(_packaged(cluster, list_clusters())).with_gpus(gpus).domain_gpus
    except ConfigError:
        return 0


def _packaged(name: str, names: Collection[str]) -> str:
    """`name`, if it is packaged. Raises ConfigError for others: a Row of somebody else names no file that is opened here."""
    if name not in names:
        raise ConfigError(f"report: found {name[:60]!r}, expected a packaged name")
    return name


@cache
def _sources(model: str, cluster: str) -> tuple[tuple[str, str], ...]:
    """(what, where its numbers come from)."""
    out = []
    readers: Any = ((model, load_model, list_models()), (cluster, load_cluster, list_clusters()))
    for name, read, names in readers if model else readers[1:]:
        try:
            source = read(_packaged(name, names)).source
        except ConfigError:
            source = "a file that is not packaged"
        if source:
            out.append((name, str(source)))
    return tuple(out)


def with_load(report: Report, load: _LoadView | None) -> Report:
    """The report of one workload with a load that the caller has."""
    return replace(report, panels=tuple(replace(panel, load=load) for panel in report.panels))


def render(report: Report) -> str:
    """The page. Text of files and options is escaped."""
    views = [_view(i, panel) for i, panel in enumerate(report.panels)]
    return page(
        "report.html", {"us": _us}, more=[one.heading or one.name for one in COMPARED.added], title=report.title, command=one_line(report.command),
        answer=report.answer, panels=views, overview=_overview(report.panels),
    )  # fmt: skip


def _us(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", "\u202f")


def _view(number: int, panel: _Panel) -> ByName:
    """Numbers and places of one panel, as its part of the template prints them."""
    most = max(max(e.time_us, e.high or 0.0) for e in panel.entries) or 1.0
    least = max(float(e.row.get("workload_bound_us") or 0.0) for e in panel.entries)
    most = max(most, least) * 1.02
    shown = {key: cause for key, cause in causes().items() if any(e.row["attribution"].get(key, 0.0) >= 0.05 for e in panel.entries)}
    colours = operator_colours(dict.fromkeys(name for e in panel.entries for name in e.row["phases_us"]))
    rows = [_entry_view(e, most, least, shown, colours) for e in panel.entries]
    return {
        "id": f"workload-{number + 1}", "heading": panel.heading, "sentence": panel.sentence, "notes": panel.notes,
        "warnings": panel.warnings, "rows": rows, "fastest": panel.best, "least": least, "least_x": 1000 * least / most,
        "causes": [(key, cause.short, cause.colour) for key, cause in shown.items()], "phases": list(colours.items()), "load": panel.load,
        "sources": panel.sources, "has_speedup": any(e.speedup is not None for e in panel.entries),
        "has_bars": any(e.low is not None for e in panel.entries),
    }  # fmt: skip


def _entry_view(e: _Entry, most: float, least: float, shown: Mapping[str, Cause], colours: Mapping[str, str]) -> ByName:
    row, parts, x = e.row, [], 0.0
    for key, cause in shown.items():
        us = max(0.0, float(row["attribution"].get(key, 0.0)))
        parts.append({"x": 1000 * x / most, "w": 1000 * us / most, "us": us, "cause": key, "words": cause.short, "colour": cause.colour})
        x += us
    phases = [
        {
            "name": name, "x": 1000 * phase["start"] / most, "w": max(1.0, 1000 * (phase["end"] - phase["start"]) / most),
            "dense": max(0.25, phase["busy"] / max(1e-9, phase["end"] - phase["start"])), "start": phase["start"], "end": phase["end"],
            "busy": phase["busy"], "colour": colours[name],
        }
        for name, phase in row["phases_us"].items()
        if phase["busy"]
    ]  # fmt: skip
    bound = float(row.get("bound_us") or 0.0)
    return {
        "label": e.label, "form": row.get("form", ""), "time": e.time_us, "w": 1000 * e.time_us / most, "bound": bound,
        "bound_x": 1000 * bound / most, "bound_words": resource_words(str(row["bound_resource"])) if row.get("bound_resource") else "",
        "over_least": e.time_us / least if least else None, "low": e.low, "high": e.high, "low_x": 1000 * (e.low or 0.0) / most,
        "high_x": 1000 * (e.high or 0.0) / most, "speedup": e.speedup, "colour": colour_of(str(row["system"])),
        "warnings": tuple(row.get("warnings", ())), "parts": parts, "phases": phases,
        "options": [(name, str(value).lower() if isinstance(value, bool) else value) for name, value in row.get("options", {}).items()],
        "use": row.get("utilization", {}), "exposed": row.get("exposed_comm_us"),
        "more": [one._replace(of=None).cell(row) if one.name in row else "–" for one in COMPARED.added],
    }  # fmt: skip


def _overview(panels: Sequence[_Panel]) -> ByName | None:
    """Times of all runs by workload; None for a single workload."""
    if len(panels) < 2:
        return None
    labels = list(dict.fromkeys(e.label for panel in panels for e in panel.entries))
    lines = []
    for number, panel in enumerate(panels):
        times = {e.label: e.time_us for e in panel.entries}
        cells = [(times.get(label), label == panel.entries[panel.best].label) for label in labels]
        lines.append({"id": f"workload-{number + 1}", "heading": panel.heading, "note": panel.notes[0], "cells": cells})
    return {"labels": labels, "lines": lines}
