"""Costs of a step: every FLOP of the model once, bytes of groups in closed form, what limits merged pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from dysharp.errors import ConfigError
from dysharp.specs import load_cluster, load_whole
from dysharp.steps import layout_of
from dysharp.steps.accounting.flops import flops_of
from dysharp.steps.block import Cost, EpTimes
from dysharp.steps.costs import step_costs
from dysharp.steps.machine import Machine

PAPER = "paper-gh200-nvl32"


@dataclass(frozen=True, slots=True)
class Counting(Machine):
    """A machine of one FLOP per microsecond, with free memory and links: times are FLOPs."""

    def gemm(self, m: float, n: float, k: float, dtype: str) -> float:
        return 2 * m * n * k

    def flops(self, count: float, dtype: str) -> float:
        return count

    def memory(self, n_bytes: float) -> float:
        return 0.0

    def attention(self, forward_flops: float, direction: Literal["forward", "backward"]) -> float:
        return forward_flops * (2 if direction == "backward" else 1)

    def group(self, n_bytes: float, size: int, stride: int) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("deepseek-v3", "pp=4,ep=64,stages=Et*15|(t*15|)*2t*16mL"), ("qwen3-235b", "ep=8,tp=4,dp=2"), ("gpt-oss-120b", "pp=2,ep=8"),
        ("llama3-70b", "tp=8,pp=2,vpp=2"),
    ],
)  # fmt: skip
def test_stages_compute_every_flop_of_the_model(name: str, layout: str) -> None:
    """Routed experts are Rows, here of no time: their FLOPs are left out."""
    model, plan = load_whole(name), layout_of(layout)
    sequence = 4096
    costs = step_costs(model, Counting(load_cluster(PAPER)), plan, sequence, EpTimes(0, 0) if model.layer else None)
    flops = flops_of(model, sequence)
    experts = flops.forward.get("routed experts", 0.0)
    if model.mtp and model.layer:
        layer = model.layer
        experts += model.mtp * 2 * layer.topk * layer.hidden * layer.expert_hidden * layer.n_matrices
    per_token = plan.tp / sequence
    assert sum(one.forward for one in costs.stages) * per_token == pytest.approx(flops.forward_total - experts)
    assert sum(one.backward for one in costs.stages) * per_token == pytest.approx(flops.data_gradients - experts)
    assert sum(one.weights for one in costs.stages) * per_token == pytest.approx(flops.weight_gradients - experts)


def test_groups_take_the_bytes_of_a_ring() -> None:
    machine = Machine(load_cluster(PAPER))  # 450 GB/s of links, an assumed 50 GB/s between domains of 32
    assert machine.group(450e6, 32, 1) == pytest.approx(1000 * 31 / 32)
    assert machine.group(450e6, 64, 1) == pytest.approx(1000 * 63 / 64)  # 32 members bring 32 cards: links are slower
    assert machine.group(50e6, 16, 32) == pytest.approx(1000 * 15 / 16)
    assert machine.group(50e6, 16, 16) == pytest.approx(500 * 15 / 16)
    assert machine.group(1e6, 1, 1) == 0


def test_a_pair_is_bound_by_computing_or_by_communication() -> None:
    ahead = Cost(forward=10, forward_exposed=6, forward_wire=8)
    assert ahead.pair_with(Cost(backward=12, weights=5, backward_exposed=4, backward_wire=9)) == 4 + 8 + 5
    assert ahead.pair_with(Cost(backward=12, weights=1, backward_exposed=4, backward_wire=12)) == 8 + 12
    assert ahead.pair_with(Cost(backward=2, weights=1, backward_exposed=2, backward_wire=30)) == 13  # never longer than one after the other


def test_gradients_of_experts_go_over_their_own_replicas() -> None:
    model, machine = load_whole("deepseek-v2-lite"), Machine(load_cluster(PAPER))
    one = step_costs(model, machine, layout_of("ep=32,dp=32"), 64, EpTimes(1, 1))
    two = step_costs(model, machine, layout_of("ep=32,dp=64"), 64, EpTimes(1, 1))
    assert sum(map(sum, one.times.reduce)) < sum(map(sum, two.times.reduce))
    assert len(one.times.reduce[0]) == len(one.times.gather[0]) > 1
    assert sum(map(sum, one.times.gather)) == pytest.approx(sum(map(sum, one.times.reduce)) / 2, rel=1e-3)


def test_recomputation_of_whole_layers_adds_a_forward_pass() -> None:
    model, machine, layout = load_whole("llama3-8b"), Machine(load_cluster("hw-dgx-h100")), layout_of("tp=8")
    once, again = (step_costs(model, machine, layout, 4096, None, again=flag).stages[0] for flag in (False, True))
    assert again.backward == pytest.approx(once.backward + once.forward)
    assert 0 < once.forward < once.backward + once.weights


def test_what_is_not_modelled_is_told() -> None:
    with pytest.raises(ConfigError, match="step: found cp=2, etp=1, expected 1: context and expert tensor parallelism are not modelled yet"):
        step_costs(load_whole("llama3-8b"), Machine(load_cluster(PAPER)), layout_of("cp=2,tp=2"), 4096, None)
