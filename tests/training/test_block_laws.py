"""Laws of closed forms: ranks share the heads evenly, nothing is exchanged alone or launched without a host, memory adds up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from dysharp.api import describe
from dysharp.costs.attention import AttentionCall
from dysharp.costs.machine import Machine, machine_of
from dysharp.model import Layout, layout_of
from dysharp.model.weights import layer_weights
from dysharp.specs import load_cluster, load_whole
from dysharp.training.block import Block
from dysharp.training.memory import RESERVED
from dysharp.training.moe_block import exchange
from dysharp.training.recipe import TrainingRecipe
from dysharp.training.schedules.registry import ScheduleFamily, all_schedules

H100 = load_cluster("hw-dgx-h100")


@dataclass(frozen=True)
class Asked(Machine):
    """A machine that keeps the calls of attention."""

    calls: list[AttentionCall] = field(default_factory=list)

    def attention(self, call: AttentionCall, direction: Literal["forward", "backward"] = "forward") -> float:
        self.calls.append(call)
        return 1.0


@pytest.mark.parametrize("layout", ["tp=1", "tp=8", "cp=4", "tp=2,cp=2"])
@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_ranks_share_the_heads_of_queries_and_of_keys_evenly(name: str, layout: str) -> None:
    """Tensor parallel ranks have parts of the heads, context ranks equal parts of the causal pairs; latent attention expands a key for each head."""
    model, machine, ranks = load_whole(name), Asked(H100), layout_of(layout)
    Block(model, machine, ranks, 4096).pieces(0)
    a, over = model.attention, ranks.tp * ranks.cp
    keys = a.heads if a.mla else a.kv_heads
    assert {(call.heads * over, call.kv_heads * over, call.queries) for call in machine.calls} == {(a.heads, keys, 4096)}
    assert len(machine.calls) == 2


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b"])
def test_without_a_host_no_layer_is_launched(name: str) -> None:
    model = load_whole(name)
    free, slow = (Block(model, Machine(H100), layout_of("ep=1"), 64, TrainingRecipe(dtype="bf16", host=host)) for host in (False, True))
    for number in (0, model.n_layers - 1):
        assert free.launches(number) == (0.0, 0.0)
        assert min(slow.launches(number)) > 0


@pytest.mark.parametrize("dispatcher", ["", "alltoall", "deepep", "hybrid-ep"])
def test_one_gpu_of_a_domain_exchanges_nothing_there(dispatcher: str) -> None:
    training_recipe, layer = TrainingRecipe(dispatcher=dispatcher), load_whole("qwen3-30b").layer  # type: ignore[arg-type]
    assert layer is not None
    for cluster in (H100, load_cluster("paper-dgx-h100")):
        alone, pair = (exchange(machine_of(cluster, "training"), Layout(ep=gpus, dp=gpus), layer, 1024.0, training_recipe) for gpus in (1, 2))
        assert (alone.dispatch, alone.combine) == (0.0, 0.0)
        assert min(pair.dispatch, pair.combine) > 0


def test_a_family_that_says_nothing_has_one_stage_on_each_rank() -> None:
    """Only families that interleave read the user's number of chunks."""
    assert ScheduleFamily("plain", "", "", lambda shape: []).stages(4, 3) == 4
    assert all_schedules()["1f1b"].stages(4, 3) == 4
    assert all_schedules()["interleaved"].stages(4, 3) == 12


@pytest.mark.parametrize(("name", "vectors"), [("llama3-8b", 1), ("gpt3-175b", 2)])
def test_norms_have_a_scale_and_layer_norms_a_bias_too(name: str, vectors: int) -> None:
    """Two norms of a layer, before attention and before the FFN, each with one or two vectors of the hidden size."""
    model = load_whole(name)
    assert sum(w.parameters for w in layer_weights(model, "*-") if w.part == "norms") == 2 * vectors * model.hidden


def test_memory_that_is_reserved_is_what_is_allocated_and_what_is_fixed() -> None:
    """In GiB as printed: the allocator's part and the buffers beside it."""
    found = describe("deepseek-v2-lite", layout="pp=3,ep=8", sequence=1024, dispatcher="deepep", fixed_gib=1.5)
    assert sum(found.fixed_gib.values()) > 1.5
    for rank in found.memory:
        assert rank["reserved"] == pytest.approx(rank["allocated"] * RESERVED + sum(found.fixed_gib.values()))
        assert rank["allocated"] == pytest.approx(sum(rank["gib"].values()))
