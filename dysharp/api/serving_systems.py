"""EP systems at a point of `serve`: the MoE layer of its decode step as Programs, simulated, in place of the closed form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from dysharp.api.comparison import compare
from dysharp.errors import ConfigError
from dysharp.serving.search import ServePoint

if TYPE_CHECKING:
    from dysharp.runs.progress import Progress

MOVED = ("dispatch", "experts", "combine")


@dataclass(frozen=True, slots=True)
class SystemPoint:
    """One EP system: microseconds of its simulated layer, of a layer by closed forms, and milliseconds per token with the former."""

    system: str
    form: str
    """"paper": without the software that an implementation has."""
    layer: float
    closed: float
    tpot_ms: float


def ep_systems(
    point: ServePoint, systems: Iterable[str], routing: str | None = None, seed: int = 0, progress: Progress | None = None
) -> tuple[SystemPoint, ...]:
    """TPOT of a point under EP systems, fastest first. Raises `ConfigError` for a layout without dispatch, and as `compare`.

    Each GPU has the tokens of its part of a decode step. The time of all else, and the part of prompts, stay.
    """
    replica, layout = point.replica, point.replica.layout
    model = replica.model.layer
    if model is None or layout.dp == 1 or layout.ep != layout.gpus:
        raise ConfigError(f"systems: found {layout.name}, expected a layout whose attention groups share experts, such as dp=8,ep=8")
    step = point.step()
    layers = sum(replica.model.is_moe(number) for number in range(replica.model.n_layers))
    closed = sum(step.parts[name] for name in MOVED) / layers
    tokens = max(1, ceil(point.served.batch * (1 + point.load.drafts) / layout.tp))
    cluster = replica.rates.cluster.with_gpus(layout.ep)
    done = compare(
        list(systems), model=replace(model, tokens_per_gpu=tokens), cluster=cluster, gpus=layout.ep, tokens=tokens, direction="fwd",
        routing=routing, seed=seed, progress=progress,
    )  # fmt: skip
    whole = point.served.decode
    found = [
        SystemPoint(row.system, row.form, row.layer_us, closed, point.served.tpot * (1 + layers * (row.layer_us - closed) / whole) / 1e3)
        for row in done.rows
    ]
    return tuple(sorted(found, key=lambda one: one.tpot_ms))
