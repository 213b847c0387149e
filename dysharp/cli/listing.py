"""`dysharp list`: the rows as plain values, and as text."""

from __future__ import annotations

import dataclasses
from typing import Any

Rows = list[dict[str, Any]]


def listing(what: str) -> Rows:
    """One dict per thing; keys are the columns. Loads no compiled code."""
    rows: Rows = {
        "systems": _systems,
        "models": _models,
        "clusters": _clusters,
        "options": _options,
        "figures": _figures,
        "blocks": _blocks,
        "routings": _routings,
    }[what]()
    return rows


def names(what: str) -> list[str]:
    """Names only, for shell completion."""
    from dysharp.specs import list_clusters, list_models

    if what == "systems":
        return [row["name"] for row in _systems()]
    return list_models() if what == "models" else list_clusters()


def _systems() -> Rows:
    from dysharp.systems import all_systems
    from dysharp.workload import scheme_name

    return [
        {
            "name": s.name,
            "summary": s.summary,
            "traffic": scheme_name(s.traffic),
            "options": [f.name for f in dataclasses.fields(s.options)],
            "paper_form_drops": s.drops,
            "source": s.source,
        }
        for s in all_systems().values()
    ]


def _figures() -> Rows:
    from dysharp.experiments.figure import list_figures, load_figure

    return [{"name": f.name, "title": f.title, "points": len(f.points), "source": f.source} for f in map(load_figure, list_figures())]


def _models() -> Rows:
    from dysharp.specs import list_models, load_model

    return [
        {
            "name": m.name,
            "hidden": m.hidden,
            "expert_hidden": m.expert_hidden,
            "experts": m.n_experts,
            "topk": m.topk,
            "tokens_per_gpu": m.tokens_per_gpu,
            "gemm_dtype": m.gemm_dtype,
            "layers": m.n_layers,
            "routing": m.routing,
            "source": m.source,
        }
        for m in map(load_model, list_models())
    ]


def _clusters() -> Rows:
    from dysharp.measured.trust import no_rows
    from dysharp.specs import list_clusters, load_cluster
    from dysharp.units import ps_to_ns

    return [
        {
            "name": c.name,
            "family": c.family,
            "gpus": c.n_gpus,
            "max_gpus": c.max_gpus or c.n_gpus,
            "link_GBps": c.link_bytes_per_us / 1000,
            "link_latency_ns": ps_to_ns(c.link_latency_ps),
            "sms": c.n_sms,
            "fp8_TFLOPS": c.fp8_flops_per_us / 1e6,
            "hbm_GBps": c.hbm_bytes_per_us / 1000,
            "software_costs": c.software_costs,
            "measured": "-" if c.family == "paper" else "no rows" if no_rows(c) else "yes",
            "source": c.source,
        }
        for c in map(load_cluster, list_clusters())
    ]


def _options() -> Rows:
    """All free choices, and the options of systems without a choice."""
    from dysharp.api.options import option_choices
    from dysharp.specs import list_choices
    from dysharp.systems import all_systems

    users: dict[str, list[str]] = {}
    bare: Rows = []
    for system in all_systems().values():
        defaults = {f.name: f.default for f in dataclasses.fields(system.options)}
        for field, rule in option_choices(system).items():
            option = f"{system.name}.{field}"
            if rule is not None:
                users.setdefault(rule.name, []).append(option)
            else:
                bare.append({"name": option, "value": defaults[field], "set_by": [option]})
    rows = [
        {
            "name": c.name,
            "value": c.value,
            "unit": c.unit,
            "low": c.low,
            "high": c.high,
            "automatic": c.automatic,
            "alternatives": list(c.alternatives),
            "set_by": users.get(c.name, []),
            "source": c.source,
            "reason": c.reason,
        }
        for c in list_choices()
    ]
    empty: dict[str, Any] = {"unit": "", "low": None, "high": None, "automatic": None, "alternatives": [], "source": "", "reason": ""}
    return rows + [{**empty, **row} for row in bare]


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
    "models": ("name", "hidden", "expert_hidden", "experts", "topk", "tokens_per_gpu", "routing"),
    "clusters": ("name", "gpus", "max_gpus", "link_GBps", "link_latency_ns", "sms", "fp8_TFLOPS", "hbm_GBps", "measured"),
    "figures": ("name", "points", "title"),
    "blocks": ("name", "summary"),
}
_HEADINGS = {"link_GBps": "link GB/s", "link_latency_ns": "link latency ns", "fp8_TFLOPS": "FP8 TFLOP/s", "hbm_GBps": "HBM GB/s"}


def print_list(what: str, rows: list[dict[str, Any]]) -> None:
    """The table of one list; options and routing strings one paragraph each."""
    from dysharp.cli.output import console, plain_table

    out = console()
    if what == "options":
        for row in rows:
            out.print(_option_text(row), markup=False)
        return
    if what == "routings":
        for row in rows:
            out.print(f"{row['form']}\n    {row['summary']}\n    source: {row['source']}", markup=False, soft_wrap=True)
        return
    headings = [_HEADINGS.get(key, key.replace("_", " ")) for key in _SHOWN[what]]
    table = plain_table(headings, [[_cell(row[key]) for key in _SHOWN[what]] for row in rows], left=len(headings))
    table.columns[0].no_wrap = True
    out.print(table)


def _option_text(row: dict[str, Any]) -> Any:
    """`name = value unit (range; source)`, and the reason below."""
    from rich.console import Group
    from rich.padding import Padding

    notes = [" | ".join(row["alternatives"]), "" if row["low"] is None else f"{row['low']} to {row['high']}", row["source"]]
    bracket = "; ".join(note for note in notes if note)
    head = f"{row['name']} = {row['value']} {row['unit']}".rstrip() + (f" ({bracket})" if bracket else "")
    setters = f"--set {', '.join(row['set_by'])}" if row["set_by"] else ""
    return Group(head, Padding(Group(*(text for text in (row["reason"], setters) if text)), (0, 0, 0, 4)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, list) else str(value)
