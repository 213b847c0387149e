"""EP systems at a point of `serve`: a layer of its decode step as a merged Program, simulated, in place of the closed form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from dysharp.api.comparison import compare
from dysharp.api.serving_program import MOVED, merged_layer
from dysharp.errors import ConfigError
from dysharp.serving.search import ServePoint

if TYPE_CHECKING:
    from dysharp.runs.progress import Progress


@dataclass(frozen=True, slots=True)
class SystemPoint:
    """One EP system: microseconds of its simulated MoE layer, of that by closed forms, of the whole layer as a merged Program and by closed forms,
    and milliseconds per token with the merged Program."""

    system: str
    form: str
    """"paper": without the software that an implementation has."""
    layer: float
    closed: float
    merged: float
    closed_whole: float
    tpot_ms: float


def ep_systems(
    point: ServePoint, systems: Iterable[str], routing: str | None = None, seed: int = 0, progress: Progress | None = None
) -> tuple[SystemPoint, ...]:
    """TPOT of a point under EP systems, fastest first. Raises `ConfigError` for a layout without dispatch, and as `compare`.

    Each GPU has the tokens of its part of a decode step. Time of a Row that its Program does not have (what surrounds a layer) is added to the merge.
    Other layers, the head and the part of prompts stay.
    """
    replica, layout = point.replica, point.replica.layout
    model = replica.model.layer
    if model is None or layout.dp == 1 or layout.ep != layout.stage_gpus:
        raise ConfigError(f"systems: found {layout.name}, expected a layout whose attention groups share experts, such as dp=8,ep=8")
    step = point.step()
    layers = sum(replica.model.is_moe(number) for number in range(replica.model.n_layers))
    closed = sum(step.parts[name] for name in MOVED) / layers
    tokens = max(1, ceil(point.served.batch * (1 + point.load.drafts) / layout.tp))
    cluster = replica.rates.cluster.with_gpus(layout.ep)
    work = {"model": replace(model, tokens_per_gpu=tokens), "tokens": tokens, "routing": routing, "seed": seed}
    asked: dict[str, Any] = work | {"cluster": cluster, "gpus": layout.ep}
    found = []
    for row in compare(list(systems), direction="fwd", progress=progress, **asked).rows:
        layer = merged_layer(point, row.system, asked)
        merged = layer.merged + row.layer_us - layer.alone
        longer = 1 + layers * (merged - layer.closed) / point.served.decode
        found.append(SystemPoint(row.system, row.form, row.layer_us, closed, merged, layer.closed, point.served.tpot * longer / 1e3))
    return tuple(sorted(found, key=lambda one: one.tpot_ms))
