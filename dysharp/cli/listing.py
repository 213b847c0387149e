"""What `dysharp list` prints, as plain values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dysharp.systems import System

Rows = list[dict[str, Any]]


def listing(what: str) -> Rows:
    """One dict per thing; keys are the columns. Loads no compiled code."""
    found: Rows = {
        "systems": _systems,
        "models": _models,
        "clusters": _clusters,
        "options": _options,
        "figures": _figures,
        "blocks": _blocks,
    }[what]()
    return found


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
            "summary": _summary(s),
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


def _summary(system: System) -> str:
    """The module's first line, or the plan's own where a module holds several systems."""
    is_main = system.plan.__module__.rpartition(".")[2].replace("_", "-") == system.name
    own = (system.plan.__doc__ or "").strip().splitlines()
    return own[0] if own and not is_main else system.summary


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
            "source": c.source,
        }
        for c in map(load_cluster, list_clusters())
    ]


def _options() -> Rows:
    """All free choices, and the options of systems that have no choice behind them."""
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
