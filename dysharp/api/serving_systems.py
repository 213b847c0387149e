"""EP systems at a point of `serve`: a layer of its decode step as a merged Program, simulated, in place of the closed form."""

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

from dysharp.analysis import Row
from dysharp.api.comparison import compare
from dysharp.api.serving_program import MOVED, MergedLayer, merged_layer, tensor_layer
from dysharp.base import ByName, ConfigError, frozen
from dysharp.model import StepBatch, prompt_batch
from dysharp.serving.exchange import exchange
from dysharp.serving.search import ServePoint

MOST_PROMPT_TOKENS = 4096
"""Tokens of a GPU up to which a layer of prompts is simulated."""


@frozen
class SystemPoint:
    """One EP system: us of its MoE layer, simulated and by closed forms; us of the whole layer, as a merged Program and by closed forms; and ms per
    token with the merged Program."""

    system: str
    form: str
    """"paper": without the software that an implementation has."""
    layer: float
    closed: float
    merged: float
    closed_whole: float
    tpot_ms: float


def ep_systems(point: ServePoint, systems: Iterable[str], routing: str | None = None) -> tuple[SystemPoint, ...]:
    """TPOT of a point under EP systems, fastest first. Raises `ConfigError` for a layout without dispatch, and as `compare`.

    Each GPU has the tokens of its part of a decode step. Time of a Row that its Program does not have (what surrounds a layer) is added to the merge.
    Other layers, the head and the part of prompts stay.
    """
    layers = sum(point.replica.model.is_moe(number) for number in range(point.replica.model.n_layers))
    closed = sum(point.step().parts.get(name, 0.0) for name in MOVED) / layers if layers else 0.0
    found = []
    for row, layer in _layers(point, systems, point.stage_batch, routing):
        longer = 1 + layers * (layer.merged - layer.closed) / point.served.decode
        found.append(SystemPoint(row.system, row.form, row.layer_us, closed, layer.merged, layer.closed, point.served.tpot * longer / 1e3))
    return tuple(sorted(found, key=lambda one: one.tpot_ms))


def merged_layers(point: ServePoint, routing: str | None = None) -> dict[str, MergedLayer]:
    """A layer of a decode step of the point, and of a step of prompts that fill every group, as merged Programs. {}: on one GPU, and where groups
    cut experts."""
    replica, layout = point.replica, point.replica.layout
    tokens = min(MOST_PROMPT_TOKENS, float(point.table.engine.step_tokens), point.scenario.isl)
    batches = {"decoding": point.stage_batch, "prompts": prompt_batch(tokens, tokens)}
    if layout.dp == 1:
        return {name: tensor_layer(replica, batch) for name, batch in batches.items()} if layout.tp > 1 else {}
    if layout.ep != layout.stage_gpus:
        return {}
    systems = {name: exchange(replica, batch.tokens / layout.tp).system for name, batch in batches.items()}
    return {name: _layers(point, [systems[name]], batch, routing)[0][1] for name, batch in batches.items()}


def _layers(point: ServePoint, systems: Iterable[str], batch: StepBatch, routing: str | None) -> list[tuple[Row, MergedLayer]]:
    """The Row of the MoE layer and the merged layer of each system."""
    layout, model = point.replica.layout, point.replica.model.layer
    if model is None or layout.dp == 1 or layout.ep != layout.stage_gpus:
        raise ConfigError(f"systems: found {layout.name}, expected a layout whose attention groups share experts, such as dp=8,ep=8")
    tokens = max(1, ceil(batch.tokens / layout.tp))
    work = {"model": replace(model, tokens_per_gpu=tokens), "tokens": tokens, "routing": routing}
    asked: ByName = work | {"cluster": point.replica.machine.cluster.with_gpus(layout.ep), "gpus": layout.ep}
    rows = compare(list(systems), direction="fwd", **asked).rows
    found = [(row, merged_layer(point.replica, batch, row.system, asked)) for row in rows]
    return [(row, replace(layer, merged=layer.merged + row.layer_us - layer.alone)) for row, layer in found]
