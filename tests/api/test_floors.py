"""No answer is below the floor of its FLOPs, bytes and launches, counted here from shapes and the peak rates of the cluster."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dysharp.api.comparison import compare
from dysharp.api.planning import plan
from dysharp.api.serving import serve
from dysharp.api.training import step
from dysharp.base.errors import DysharpError
from dysharp.specs import Cluster, WholeModel, load_cluster, load_model, load_whole
from dysharp.specs.model import Model
from dysharp.workload.make import make_routing

EACH, SEED = 15, 11
CLUSTERS = ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200")
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5}
Floored = tuple[str, float, dict[str, float]]
"""What was asked, the answer in microseconds, and floors by name."""


@dataclass(frozen=True)
class Shape:
    """Multiplications of a token with the weights of layers and head, and parameters of one layer's experts; attention's are left out."""

    routed: float
    other: float
    expert: float

    @classmethod
    def of(cls, model: WholeModel) -> Shape:
        layer = model.layer
        expert = layer.n_matrices * layer.hidden * layer.expert_hidden if layer else 0
        dense = model.dense_layers * model.dense_matrices * model.hidden * model.dense_hidden
        return cls(layer.topk * layer.n_layers * expert if layer else 0, dense + model.hidden * model.vocab, expert)


def peak(cluster: Cluster, precision: str) -> float:
    """FLOPs per microsecond: of the fastest type that a precision may multiply in."""
    return float(max(cluster.bf16_flops_per_us, cluster.fp8_flops_per_us) if precision == "fp8" else cluster.bf16_flops_per_us)


def run_question(draw: random.Random) -> Floored:
    """One layer: products at the peak, rows of the most loaded GPU on its links, weights of one token's experts, one launch."""
    name, cluster = (
        draw.choice(("S-8", "M-8", "deepseek-v2-lite", "qwen3-30b", "moonlight-16b")),
        load_cluster(draw.choice((*CLUSTERS, "paper-dgx-h100"))),
    )
    tokens, system, seed = (
        draw.choice((64, 128, 256, 512)),
        draw.choice(("deepep", "dysharp", "nvls", "hybrid-ep", "deepep-ll", "comet")),
        draw.randrange(9),
    )
    model = load_model(name)
    us = compare(model=name, cluster=cluster, gpus=8, tokens=tokens, seed=seed, routing="uniform", systems=[system]).rows[0].layer_us
    macs = float(model.n_matrices * model.hidden * model.expert_hidden)
    rate = peak(cluster, model.gemm_dtype)
    return f"run {system} {name} {cluster.name} {tokens} {seed}", us, {
        "FLOPs": 2 * tokens * model.topk * macs / rate,
        "rows": received(model, tokens, seed) * model.hidden / cluster.link_bytes_per_us,
        "weights": model.topk / 8 * macs / cluster.hbm_bytes_per_us,
        "launches": cluster.fitted["gpu.kernel_us"] if cluster.gpu else 0.0,
    }  # fmt: skip


def received(model: Model, tokens: int, seed: int) -> float:
    """Tokens that the GPU with most of them gets from others, once each: rows have at least one byte per value."""
    expert = np.asarray(make_routing("uniform", model, 8, tokens, seed=seed).expert)
    gpu = expert // (model.n_experts // 8)
    own = np.arange(len(expert)) // tokens
    return float(max(((gpu == at).any(axis=1) & (own != at)).sum() for at in range(8)))


def step_floors(
    model: WholeModel, cluster: Cluster, gpus: int, tokens: int, precision: str, layers_of_a_rank: float, micro_batches: int
) -> dict[str, float]:
    """Three products of every token with every weight; launches of four products of a layer, three ways; parameters of experts are updated once."""
    shape = Shape.of(model)
    kernel = cluster.fitted["gpu.kernel_us"]
    return {
        "FLOPs": 6 * tokens * (shape.routed + shape.other) / gpus / peak(cluster, precision),
        "launches": 3 * 4 * layers_of_a_rank * micro_batches * kernel,
        "state": (model.layer.n_experts * model.layer.n_layers * shape.expert if model.layer else 0) * 12 / gpus / cluster.hbm_bytes_per_us,
    }


def step_question(draw: random.Random) -> Floored:
    name, cluster = draw.choice(("deepseek-v2-lite", "moonlight-16b", "mixtral-8x7b")), load_cluster(draw.choice(CLUSTERS))
    gpus, mbs, sequence, precision = draw.choice((16, 32, 64)), draw.choice((1, 2)), draw.choice((2048, 4096)), draw.choice(("bf16", "fp8"))
    model, text = load_whole(name), f"pp=2,ep=8,gpus={gpus},mbs={mbs},gbs=128"
    found = step(name, cluster, text, systems=("deepep",), sequence=sequence, precision=precision, quick=True, routing="uniform")
    micro_batches = 128 // (gpus // 2) // mbs
    return f"step {name} {cluster.name} {text} {sequence} {precision}", found.best.step_us, step_floors(
        model, cluster, gpus, 128 * sequence, precision, model.n_layers / 2, micro_batches
    )  # fmt: skip


def plan_question(draw: random.Random) -> Floored:
    name, cluster = draw.choice(("qwen3-30b", "moonlight-16b", "deepseek-v2-lite")), load_cluster(draw.choice(("hw-dgx-h100-x8", "hw-dgx-b200-x8")))
    batch, sequence, precision = draw.choice((128, 512)), draw.choice((2048, 4096)), draw.choice(("bf16", "fp8"))
    tries = ["tp=1", "pp=1,2", "vpp=1", "cp=1", "mbs=1,2", "ep=8", "swap=none", "recompute=none,full", "weights=sharded"]
    best = plan(name, 64, cluster, batch=batch, sequence=sequence, precision=precision, tries=tries, n_best=1).plan.first.found.best[0]
    one, layout = load_whole(name), best.layout
    floors = step_floors(one, cluster, 64, batch * sequence, precision, one.n_layers / layout.pp, layout.micro_batches)
    return f"plan {name} {cluster.name} {batch} {sequence} {precision}", best.step_us, floors


def serve_question(draw: random.Random) -> Floored:
    """A decode step of TP 8 reads the chosen experts of one token and the head, and launches four kernels a layer."""
    name, cluster = draw.choice(("qwen3-235b", "qwen3-30b", "llama3-70b", "glm-4.5-air")), load_cluster(draw.choice(CLUSTERS))
    precision, users, isl = draw.choice(("bf16", "fp8", "int4")), draw.choice((1, 8, 64)), draw.choice((1024, 2048))
    found = serve(name, cluster, isl=isl, osl=512, precision=precision, layouts=["tp=8"], slo="ttft=60s,tpot=2s")
    if not found.points:
        raise DysharpError("no layout fits")
    model, shape, point = load_whole(name), Shape.of(load_whole(name)), found.points[0].at(users)
    rows = point.served.batch
    return f"serve {name} {cluster.name} {precision} {users} {isl}", point.served.tpot, {
        "bytes": (shape.routed + shape.other) * WEIGHT_BYTES[precision] / 8 / cluster.hbm_bytes_per_us,
        "FLOPs": 2 * rows * (shape.routed + shape.other) / 8 / peak(cluster, "fp8"),
        "launches": 4 * model.n_layers * cluster.fitted["gpu.kernel_us"],
    }  # fmt: skip


def asked(question: Callable[[random.Random], Floored], seed: int) -> Floored:
    """The first drawn question that is not refused."""
    for number in range(20):
        try:
            return question(random.Random(f"{question.__name__} {seed} {number}"))
        except DysharpError:
            continue
    raise AssertionError("20 questions were refused")


@pytest.mark.slow
@pytest.mark.parametrize("question", [run_question, step_question, plan_question, serve_question])
def test_no_answer_is_below_its_floor(question: Callable[[random.Random], Floored]) -> None:
    below, share = [], []
    for number in range(EACH):
        name, us, floors = asked(question, SEED + number)
        share.append(max(floors.values()) / us)
        below += [f"{name}: {us:.6g} us, floor of {what} {floor:.6g} us" for what, floor in floors.items() if us < floor]
    assert not below, "\n".join(below)
    assert max(share) > 0.05  # a floor that no answer comes near would hide a fault
