"""One layer, one clock: the same operator takes the same microseconds in serve, step and plan, but for what the table of regimes names."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

import dysharp
from dysharp.costs.layer import kernels
from dysharp.costs.machine import NCCL_AND_OWN, Machine, machine_of
from dysharp.costs.regime import regime_of
from dysharp.model import Layout
from dysharp.model.batch import prompt_batch
from dysharp.model.formats import Formats
from dysharp.model.operators import Core, DeltaNetState, LayerOperator, MemoryOp, Weight, is_routed, operators, served
from dysharp.planning.layers import pieces_of
from dysharp.serving.layer import layer_ops
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.whole import WholeModel
from dysharp.training.block import Block
from dysharp.training.recipe import TrainingRecipe

CELLS = 200
MOST_APART = 10
CLUSTERS = ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200", "hw-gb200-nvl72", "hw-hgx-b300")
MODELS = ("llama3-8b", "llama3-70b", "qwen3-30b", "qwen3-235b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b", "kimi-k2")
FORMATS = {"bf16": "bf16", "fp8": "fp8"}
TIMED = (Weight, MemoryOp, Core, DeltaNetState)


@dataclass(frozen=True)
class Cell:
    """One operator of a layer under a tensor degree, for one sequence of `tokens` tokens."""

    cluster: str
    model: WholeModel
    number: int
    tp: int
    tokens: int
    dtype: str
    op: LayerOperator


def draw(seed: int = 51, count: int = CELLS) -> list[Cell]:
    """Seeded cells over models, layers, degrees, lengths, formats and GPUs."""
    rng, cells = random.Random(seed), list[Cell]()
    while len(cells) < count:
        model, tp = load_whole(rng.choice(MODELS)), rng.choice((1, 2, 4, 8))
        number = rng.randrange(model.n_layers)
        ops = [op for op in served(operators(model, number, ServeLayout(tp=tp).cut)) if isinstance(op, TIMED) and not is_routed(op)]
        op = rng.choice([op for op in ops if not isinstance(op, MemoryOp) or (op.kernels and op.steps[0])])
        cells.append(Cell(rng.choice(CLUSTERS), model, number, tp, 1 << rng.randrange(6, 14), rng.choice(tuple(FORMATS)), op))
    return cells


def us(cell: Cell, machine: Machine) -> float:
    """The operator's forward pass on a machine."""
    name = FORMATS[cell.dtype]
    return sum(one.us for one in kernels(machine, cell.op, prompt_batch(cell.tokens, cell.tokens), Formats(name, name, name)))


def test_regimes_differ_in_library_and_fusion_alone() -> None:
    """With the libraries and the fused kernels of serving, training and benchmark give serving's microseconds to the last digit, but for power."""
    own = regime_of("serving")
    for cell in draw():
        cluster = load_cluster(cell.cluster)
        same = replace(regime_of("training"), dense=own.dense, grouped=own.grouped, fused=own.fused)
        assert us(cell, Machine(cluster, same)) == us(cell, machine_of(cluster, "serving")), cell


def test_a_kernels_own_rate_differs_in_few_cells() -> None:
    """Where neither library nor fusion may speak, serving and training are equal: attention, states, kernels that memory limits by equal bytes."""
    apart = [cell for cell in draw() if not isinstance(cell.op, Weight) and not _fused(cell.op) and not _equal(cell)]
    assert len(apart) <= MOST_APART, apart


def _fused(op: LayerOperator) -> bool:
    return isinstance(op, MemoryOp) and op.kernels * op.served != op.forward * op.rows


def _equal(cell: Cell) -> bool:
    cluster = load_cluster(cell.cluster)
    return us(cell, machine_of(cluster, "serving")) == us(cell, machine_of(cluster, "training"))


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b", "deepseek-v3", "qwen3-next-80b"])
def test_serve_and_step_and_plan_ask_that_clock(model: str) -> None:
    """The verbs add up the same function: every named kernel of a serving layer, every piece of a training layer, every layer of a plan."""
    whole, cluster, tokens = load_whole(model), load_cluster("hw-dgx-h200"), 2048
    number, formats, batch = whole.n_layers - 1, Formats(), prompt_batch(tokens, tokens)
    serving = machine_of(cluster, "serving")
    found = layer_ops(Replica(whole, formats, ServeLayout(), serving), batch, number)
    core = sum(one.us for one in found if one.name.startswith(("attention prefill", "linear attention prefill")))
    ops = operators(whole, number)
    cores = [op for op in ops if isinstance(op, (Core, DeltaNetState))]
    assert core == sum(one.us for op in cores for one in kernels(serving, op, batch, formats) if "prefill" in one.name)
    training = machine_of(cluster, "training")
    block = Block(whole, training, Layout(), tokens, TrainingRecipe(dtype="bf16", dispatcher="deepep" if whole.layer else ""))
    assert block.pieces(number)[0]["core attention"].forward == sum(
        one.us for op in cores for one in kernels(training, op, block.batch, block.formats)
    )
    planned = pieces_of(whole, training, Layout(), tokens, "deepep", "none", block.training_recipe, 1.0)
    assert planned.costs["t" if whole.layer else "d"].forward == pytest.approx(block.layer(number, None).forward, rel=0.2 if whole.linear else 1e-9)


@pytest.mark.parametrize("n_bytes", [28 << 10, 1 << 20, 64 << 20])
def test_ranks_of_two_domains_pay_for_the_way_between_them(n_bytes: int) -> None:
    """Engines' own kernels stay inside a domain, so NCCL sums; its Program is the second way to the time."""
    machine = machine_of(load_cluster("hw-dgx-h100-x8"), "serving")
    assert [*machine.reducing(16, n_bytes, NCCL_AND_OWN)] == ["nccl"]
    program = dysharp.compare(workload=f"all-reduce:{n_bytes}B", cluster=machine.cluster, systems=["nccl"], gpus=16).rows[0].time_us
    assert machine.all_reduce(16, n_bytes) == pytest.approx(program, rel=0.35)
    for kind in ("all_gather", "reduce_scatter"):
        assert machine.collective(kind, n_bytes, 16) > machine.collective(kind, n_bytes, 8)
