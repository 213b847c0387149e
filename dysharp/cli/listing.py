"""`dysharp list`: the rows as plain values, and as text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dysharp.base import ByName, Rows, Texts, by_key, named
from dysharp.base.text import WIDTH
from dysharp.show.output import console, print_lines, print_table

if TYPE_CHECKING:
    pass

VALUES_WIDTH = 24  # columns of the cell with the values of an option
UNBOUNDED = 1e9  # a limit that only keeps nonsense out


def listing(what: str) -> Rows:
    """One dict per thing; keys are the columns. Loads no compiled code."""
    rows: Rows = {
        "systems": _systems, "collectives": _collectives, "sub-layers": _tensor_parallel, "models": _models, "clusters": _clusters,
        "options": _options, "figures": _figures, "blocks": _blocks, "cluster-keys": _cluster_keys, "routings": _routings,
    }[what]()  # fmt: skip
    return rows


def names(what: str) -> list[str]:
    """Names only, for shell completion: of systems, models or clusters, beginnings of routings, options with "="."""
    from dysharp.specs import list_clusters, list_models
    from dysharp.workload import packaged_traces

    if what == "systems":
        return [row["name"] for row in (*_systems(), *_collectives(), *_tensor_parallel())]
    if what == "settings":
        return [f"{row['name']}=" for row in _options() if row["set_by"]]
    if what == "routings":
        return ["uniform", "normal:", "powerlaw:", "lognormal:", *(f"trace:{name}" for name in packaged_traces())]
    return list_models() if what == "models" else list_clusters()


def _systems() -> Rows:
    from dysharp.systems import all_systems
    from dysharp.workload import scheme_name

    return [
        {
            "name": s.name, "summary": s.summary, "traffic": scheme_name(s.moves.sent),
            "options": [f.name for f in dataclasses.fields(s.options) if f.name not in s.inert],
            "paper_form_drops": s.costs.drops, "source": s.source,
        }
        for s in all_systems().values()
    ]  # fmt: skip


def _tensor_parallel() -> Rows:
    from dysharp.systems.collectives import all_tensor_parallel

    return _of_work(all_tensor_parallel().values())


def _collectives() -> Rows:
    from dysharp.systems.collectives import all_collectives

    return _of_work(all_collectives().values())


def _of_work(systems: Iterable[Any]) -> Rows:
    return [
        {
            "name": s.name, "operations": list(s.operations), "summary": s.summary, "options": [f.name for f in dataclasses.fields(s.options)],
            "several_domains": s.domains, "source": s.source,
        }
        for s in systems
    ]  # fmt: skip


def _figures() -> Rows:
    from dysharp.figures.figure import list_figures, load_figure

    return [{"name": f.name, "title": f.title, "points": len(f.points), "source": f.source} for f in map(load_figure, list_figures())]


def _models() -> Rows:
    from dysharp.specs import list_models, load_model

    return [
        {
            **named(m, "name", "hidden", "expert_hidden"), "experts": m.n_experts, **named(m, "topk", "tokens_per_gpu", "gemm_dtype"),
            "layers": m.n_layers, **named(m, "routing", "source"),
        }
        for m in map(load_model, list_models())
    ]  # fmt: skip


def _measured(why_not: str) -> str:
    """Cell of a real machine: whether measurements of the whole machine were used, of some of its parts, or none. `why_not`: `trust.no_rows`."""
    return ("no rows" if why_not.startswith("no rows:") else "partly") if why_not else "yes"


def _clusters() -> Rows:
    from dysharp.base.units import ps_to_ns
    from dysharp.measured.trust import no_rows
    from dysharp.specs import list_clusters, load_cluster

    return [
        {
            "name": c.name, "family": c.family, "gpus": c.n_gpus, "max_gpus": c.max_gpus or c.n_gpus,
            "link_GBps": c.link_bytes_per_us / 1000, "link_latency_ns": ps_to_ns(c.link_latency_ps), "sms": c.n_sms,
            "fp8_TFLOPS": c.fp8_flops_per_us / 1e6, "hbm_GBps": c.hbm_bytes_per_us / 1000, "software_costs": c.software_costs,
            "measured": "-" if c.family == "paper" else _measured(no_rows(c)), "source": c.source,
        }
        for c in map(load_cluster, list_clusters())
    ]  # fmt: skip


_OPTION = ("name", "of", "value", "values", "meaning", "effect", "set_by")
_RULE: ByName = {"low": None, "high": None, "automatic": None, "unit": "", "alternatives": [], "source": "", "reason": ""}
"""The choice behind a value, its range, source and reason, where there is none."""


def _options() -> Rows:
    """Options of systems, options of the packet level, and the choices that no option sets."""
    from dysharp.runs.options import FABRIC, options_help, range_text
    from dysharp.specs import list_choices
    from dysharp.systems import all_systems

    rows, told = list[tuple[Any, ...]](), set()
    for system in all_systems().values():
        for option in options_help(system):
            told.add(option.choice.name if option.choice else "")
            own = (option.name, system.name, option.value, option.values, option.meaning, option.effect)
            rows.append((*own, f"--set {option.name}=VALUE", option.choice))
    for name, meaning in FABRIC.items():
        rows.append((f"fabric.{name}", "fabric", None, "", meaning, "--fidelity packet", f"--set fabric.{name}=VALUE", None))
    for c in list_choices():
        if c.name not in told:
            rows.append((c.name, "choices", c.value, range_text(c), c.reason, "everywhere", "", c))
    return [dict(zip(_OPTION, row, strict=False)) | (named(row[-1], *_RULE) if row[-1] else _RULE) for row in rows]


def _cluster_keys() -> Rows:
    """One entry per key of a cluster file: `name`, `type`, `range`, `default` (None: required), `meaning`."""
    from pydantic import TypeAdapter

    from dysharp.silicon import DYSHARP_TABLES
    from dysharp.specs.cluster import Cluster, ClusterFile, ScaleOut
    from dysharp.specs.fields import keys_of

    schema = TypeAdapter(ClusterFile).json_schema()
    nested = schema["$defs"]["ScaleOut"]
    tables = {table.cluster_key: table.meaning for table in DYSHARP_TABLES}
    gives = "cluster that gives all keys that the file leaves out"
    base = {"name": "base", "type": "text", "range": "a packaged cluster", "default": "", "meaning": gives}
    own = [_key_entry(key.name, schema, key.name, key.meaning or tables[key.name]) for key in keys_of(Cluster).values()]
    return [base, *own, *(_key_entry(f"scale_out.{name}", nested, name, key.meaning) for name, key in keys_of(ScaleOut).items())]


def _key_entry(name: str, schema: ByName, inside: str, meaning: str) -> ByName:
    types = {"string": "text", "integer": "whole number", "number": "number", "array": "table", "object": "table"}
    key, required = schema["properties"][inside], inside in schema["required"]
    key = {"type": "object"} if "type" not in key else key  # a table that may be left out
    kind = types[key["type"]]
    low, above, high = key.get("minimum"), key.get("exclusiveMinimum"), key.get("maximum")
    span = "paper, hw" if name == "family" else ""
    if high is not None:
        span = f"above {above:g}" if above is not None else f"{low:g} or more" if high >= UNBOUNDED else f"{low:g} to {high}"
    default = None if required else {"array": "", "string": "", "object": ""}.get(key["type"], key.get("default"))
    return {"name": name, "type": kind, "range": span, "default": default, "meaning": meaning}


def _blocks() -> Rows:
    """MoE blocks that `emulate` can build."""
    from dysharp.functional.emulation import BLOCKS, PLAIN_BLOCKS

    return [{"name": name, "summary": text, "extra": "" if name in PLAIN_BLOCKS else "torch"} for name, text in BLOCKS.items()]


def _routings() -> Rows:
    """Every kind of routing string."""
    from dysharp.workload import routing_forms

    return [dataclasses.asdict(form) for form in routing_forms()]


# Columns of the printed tables; --json has all columns.
_SHOWN = {
    "systems": ("name", "summary", "options"),
    "collectives": ("name", "operations", "summary", "options"),
    "sub-layers": ("name", "summary", "options"),
    "models": ("name", "hidden", "expert_hidden", "experts", "topk", "tokens_per_gpu", "routing"),
    "clusters": ("name", "gpus", "max_gpus", "link_GBps", "link_latency_ns", "sms", "fp8_TFLOPS", "hbm_GBps", "measured"),
    "figures": ("name", "points", "title"),
    "blocks": ("name", "summary"),
    "cluster-keys": ("name", "range", "default", "meaning"),
}
_HEADINGS = {"link_GBps": "link GB/s", "link_latency_ns": "link latency ns", "fp8_TFLOPS": "FP8 TFLOP/s", "hbm_GBps": "HBM GB/s"}


def print_list(what: str, rows: Rows) -> None:
    """The table of one list; options in one table per system; routing strings one paragraph each."""
    if what == "options":
        _print_options(rows)
        return
    if what == "routings":
        for row in rows:
            texts = (row["summary"], f"source: {row['source']}")
            told = "\n".join(textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ") for text in texts)
            console().print(f"{row['form']}\n{told}", markup=False, soft_wrap=True)
        return
    headings = [_HEADINGS.get(key, key.replace("_", " ")) for key in _SHOWN[what]]
    print_table(headings, [[_cell(row[key]) for key in _SHOWN[what]] for row in rows], left=len(headings), whole=1)


SOURCES = "paper: a paper states it; derived: follows from a paper; inferred: chosen so that a paper's result comes out; assumed: our judgement"


def _print_options(rows: Rows) -> None:
    by = by_key((row["of"], row) for row in rows)
    fabric, choices = by.pop("fabric"), by.pop("choices")
    print_lines(["Options of systems: --set SYSTEM.OPTION=VALUE", "real form: on hw-* clusters, unless form=paper", ""])
    alike = by_key((tuple(map(_option_cells, own)), system) for system, own in by.items())
    for cells, systems in alike.items():
        print_lines([", ".join(systems)])
        _print_cells(("option", "default", "values", "meaning"), cells or [("no options", "", "", "")])
    print_lines(["blocks of the packet level: --fidelity packet --set fabric.OPTION=VALUE; the cluster gives the defaults"])
    _print_cells(("option", "meaning"), [(row["name"], row["meaning"]) for row in fabric])
    print_lines(["choices of the model that no option sets; `dysharp reproduce --tornado` shows what each of them moves", SOURCES])
    for row in choices:
        head = f"{row['name']} = {row['value']} ({row['values']}; {row['source']})"
        print_lines([head, f"  {row['meaning']}"])


def _option_cells(row: ByName) -> Texts:
    """Name, default, values and meaning of an option as text."""
    value = str(row["value"]).lower() if isinstance(row["value"], bool) else str(row["value"])
    where = "" if row["effect"] == "everywhere" else f" ({row['effect']} only)"
    return row["name"].partition(".")[2], value, row["values"], row["meaning"] + where


def _print_cells(headings: Texts, cells: Iterable[Texts]) -> None:
    from dysharp.base.table import plain_table

    table = plain_table(headings, cells, left=len(headings))
    for column in table.columns[:2]:
        column.no_wrap = len(headings) > 2 or column is table.columns[0]
    if len(headings) == 4:
        table.columns[2].width = VALUES_WIDTH
    console().print(table)
    console().print()


def _cell(value: Any) -> str:
    if value is None:
        return "required"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, list) else str(value)
