"""The what-ifs of `advise`: one change each, to the placement, the rows, the software, the switches, the links or the number of GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dysharp.analysis.load import EPLB
from dysharp.errors import ConfigError
from dysharp.specs import Cluster
from dysharp.systems import System, all_systems, get_system

if TYPE_CHECKING:
    from dysharp.api.advice import Desk, Predicted, WhatIf

FASTER = 2
NO_COST = "the same transfers without launches, barriers, rings and SMs of communication"
Run = Callable[[], "Predicted"]


def what_ifs(desk: Desk, best: Predicted) -> tuple[WhatIf, ...]:
    """Each change alone, against the best of the ranking. A change that cannot be simulated here is left out."""
    from dysharp.api.advice import WhatIf

    found = []
    for change, assumes, run in _changes(desk, best):
        try:
            predicted = run()
        except ConfigError:
            continue
        dropped = get_system(predicted.row.system).drops if predicted.row.form == "paper" else ""
        also = f"; free in its paper form: {dropped}" if dropped else ""
        found.append(WhatIf(change, assumes + also, predicted, best.time_us / predicted.time_us))
    return tuple(found)


def _changes(desk: Desk, best: Predicted) -> list[tuple[str, str, Run]]:
    name, cluster = best.row.system, desk.request.cluster
    options = _given(name, best.row.options)
    found: list[tuple[str, str, Run]] = []
    if not desk.request.placement.startswith(EPLB):
        assumes = "one slot per GPU more, placed with the load of this very batch: the most that replication can bring"
        found.append(("EPLB-style replicas", assumes, lambda: desk.run(name, options, desk.workload(placement=EPLB))))
    if options.get("dispatch") == "rows":
        assumes = "a byte per value and an FP32 scale per 128 on the way out; numerics change"
        found.append(("FP8 rows in Dispatch", assumes, lambda: desk.run(name, options | {"dispatch": "fp8"})))
    for gpus in _sizes(cluster):
        found.append(_other_size(desk, name, options, gpus))
    faster = dataclasses.replace(cluster, name=f"{cluster.name}-links-x{FASTER}", link_bytes_per_us=FASTER * cluster.link_bytes_per_us)
    found.append((f"links x{FASTER}", "same software constants and switches", lambda: desk.run(name, options, desk.workload(faster))))
    found.append(("software for free", NO_COST, lambda: desk.run(name, options | {"form": "paper"})))
    declared = sorted((s.change.rank, s.name, s.change, s) for s in all_systems().values() if s.change is not None)
    return found + [(change.name, change.assumes, partial(desk.run, name, _formats(best, system))) for _, name, change, system in declared]


def _formats(best: Predicted, system: System) -> dict[str, Any]:
    """Options that give `system` the formats of the best, so that a change is held against the best and not against other formats."""
    dispatch = best.row.options.get("dispatch", "rows")
    formats = {"dispatch": dispatch if dispatch in system.row_formats else "rows", "weights": best.row.options.get("weights", "model")}
    known = {f.name for f in dataclasses.fields(system.options)}
    return {option: value for option, value in formats.items() if option in known}


def _other_size(desk: Desk, name: str, options: dict[str, Any], gpus: int) -> tuple[str, str, Run]:
    machine, model = desk.request.cluster.with_gpus(gpus), desk.request.model
    assumes = f"same tokens per GPU, {-(-model.n_experts // gpus)} experts per GPU instead of {-(-model.n_experts // desk.request.cluster.n_gpus)}"
    return f"EP{gpus}", assumes, lambda: desk.run(name, options, desk.workload(machine))


def _sizes(cluster: Cluster) -> list[int]:
    """Half and double the GPUs, as far as the machine has them."""
    n, most = cluster.n_gpus, cluster.max_gpus or cluster.n_gpus
    return [size for size in (n // 2, 2 * n) if 2 <= size <= most]


def _given(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a run as `options_of` takes them: without those at their default, which may lie outside a choice's range (automatic)."""
    defaults = {f.name: f.default for f in dataclasses.fields(get_system(name).options)}
    return {key: value for key, value in options.items() if value != defaults[key] or key in ("n_sm", "dispatch")}
