"""Memory of every pipeline rank of a candidate: state, activations in flight by the schedule, what a backward pass adds."""

from dataclasses import astuple
from functools import lru_cache

import numpy as np

from dysharp.base import ByName, Texts
from dysharp.model import Chunk, Layout, RankParameters, Recipe, chunks_of, dummy_bytes, rank_parameters, state_bytes
from dysharp.planning.offload import LAYERS, PLAIN, offloaded_bytes
from dysharp.planning.schedules import peaks, ranks_of
from dysharp.planning.space import Task
from dysharp.specs import WholeModel
from dysharp.training.costs import layer_shards
from dysharp.training.memory import BF16, GATHERED, RESERVED, Saving, gradient_bytes, head_bytes, is_dropped, layer_transient, saved_of_layer


def rank_memory(task: Task, values: ByName, layout: Layout, recipe: Recipe) -> tuple[float, ...]:
    """Reserved bytes of every pipeline rank."""
    model, tokens = task.model, layout.tokens(task.sequence)
    saving = Saving(values["recompute"], imbalance=task.hottest(values["ep"]))
    cut = Layout(tp=layout.tp, cp=layout.cp, ep=layout.ep, etp=layout.etp, dp=layout.ep * layout.etp)
    kept, waiting, beside = {}, {}, {}
    for moe in {model.is_moe(0), model.layer is not None}:
        whole, again, transient, late = layer_bytes(model, cut, moe, saving, recipe)
        gone = offloaded_bytes(model, cut, moe, saving, recipe, values["offload"]) if values["offload"] else 0.0
        kept[moe], waiting[moe], beside[moe] = whole - gone, late, again + transient + LAYERS * gone
    chunks, places, out = chunks_of(model, layout), ranks_of(values["schedule"], layout), []
    held, copied = (held_by_rank(model, layout, values["schedule"], linears) for linears in (None, recipe.fp8))
    for rank, (parameters, narrow) in enumerate(zip(held, copied, strict=True)):
        own = [chunks[at] for at in places[rank]]
        kinds = [[model.is_moe(layer) for layer in chunk.layers()] + [model.layer is not None] * chunk.mtp for chunk in own]
        bytes_of = [tokens * sum(by[moe] for moe in some) for by in (kept, waiting) for some in kinds]
        flying = float((peaks(values["schedule"], layout, rank, values["overlap"] == "pair") @ np.asarray(bytes_of)).max())
        heads = [tokens * head_bytes(model, layout, saving) * chunk.head for chunk in own]
        received = [BF16 * model.between / layout.tp * (layout.pp > 1 and not chunk.head) for chunk in own]
        transient = max([0.0, *heads, *(tokens * (beside[moe] + more) for some, more in zip(kinds, received, strict=True) for moe in some)])
        ways = 1 + (values["schedule"] == "dualpipe")
        state = sum(state_bytes(RankParameters(*parameters), RankParameters(*narrow), layout, recipe, ways).values())
        if layout.fsdp > 1:
            largest = max((sum(astuple(layer_shards(model, cut, layer))) for layer in {chunk.first for chunk in own if chunk.n_layers}), default=0.0)
            state += (GATHERED * BF16 + recipe.gradients) * largest
        out.append(RESERVED * (state + flying + transient + _dummy(model, layout, own)))
    return tuple(out)


@lru_cache(maxsize=1 << 12)
def layer_bytes(model: WholeModel, layout: Layout, moe: bool, saving: Saving, recipe: Recipe) -> tuple[float, float, float, float]:
    """Bytes per token of a layer: kept, computed again, beside its backward pass, for delayed weight gradients."""
    kind = PLAIN[moe]
    tensors = saved_of_layer(model, layout, kind, saving, recipe)
    kept = sum(one.bytes for one in tensors if not is_dropped(one, saving))
    late = sum(one.bytes for one in tensors if one.linear) + gradient_bytes(model, layout, kind, saving, recipe)
    return kept, sum(one.bytes for one in tensors) - kept, layer_transient(model, layout, kind, saving), late


def held_by_rank(model: WholeModel, layout: Layout, schedule: str, linears: Texts | None = None) -> tuple[tuple[float, float], ...]:
    """(dense, expert) parameters of every pipeline rank; with `linears`, of matrices of these parts alone."""
    return _held(model, layout.tp, layout.ep * layout.etp, layout.stages, layout.pp, layout.vpp, schedule, linears)


@lru_cache(maxsize=1 << 12)
def _held(
    model: WholeModel, tp: int, experts: int, stages: str, pp: int, vpp: int, schedule: str, linears: Texts | None
) -> tuple[tuple[float, float], ...]:  # fmt: skip
    layout = Layout(tp=tp, ep=experts, dp=experts, pp=pp, vpp=vpp, stages=stages)
    chunks = chunks_of(model, layout)
    ranks = [rank_parameters(model, layout, [chunks[at] for at in own], linears) for own in ranks_of(schedule, layout)]
    return tuple((one.dense, one.experts) for one in ranks)


def _dummy(model: WholeModel, layout: Layout, chunks: list[Chunk]) -> float:
    kinds = tuple(sorted({model.is_moe(n) for chunk in chunks for n in chunk.layers()} | {model.layer is not None for chunk in chunks if chunk.mtp}))
    ends = (any(chunk.embedding for chunk in chunks), any(chunk.mtp for chunk in chunks), any(chunk.head for chunk in chunks))
    return _dummy_of(model, layout.tp, layout.etp, kinds, ends)


@lru_cache(maxsize=1 << 12)
def _dummy_of(model: WholeModel, tp: int, etp: int, kinds: tuple[bool, ...], ends: tuple[bool, bool, bool]) -> float:
    """Dummy gradients depend on kinds of layers, not on their number."""
    layers = [Chunk(model.dense_layers if moe else 0, 1) for moe in kinds]
    last = Chunk(model.n_layers, 0, ends[0], int(ends[1]), ends[2])
    return dummy_bytes(model, Layout(tp=tp, etp=etp, dp=etp), [*layers, last])
