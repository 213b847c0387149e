"""One question, asked of every room that answers it: which answers there are, and how many statements stand behind them.

    python bench/quantities.py

Answers of one function, and equal answers, are one statement: regimes of one clock may differ, two clocks that agree are as good as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from dysharp.costs import exchange as costs_exchange
from dysharp.costs.attention import AttentionCall
from dysharp.costs.exchange import HUB, IN_SWITCH, Peers, Rows
from dysharp.costs.machine import Machine, machine_of
from dysharp.model import Layout
from dysharp.model.batch import prompt_batch
from dysharp.model.formats import formats_of
from dysharp.model.layout import Chunk
from dysharp.model.state import rank_parameters
from dysharp.model.weights import layer_weights
from dysharp.planning import cost as planning_cost
from dysharp.serving import exchange as serving_exchange
from dysharp.serving.layer import layer_ops
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica
from dysharp.specs import load_cluster, load_whole
from dysharp.training import costs as training_costs
from dysharp.training import moe_block
from dysharp.training.block import Block
from dysharp.training.recipe import TrainingRecipe
from dysharp.workload import closed

EQUAL = 1e-6
"""Answers that differ by less, relative to the larger, are equal."""
SHAPE, TOKENS = (8192, 4096, 14336), 4096
H100, B200, H200 = (load_cluster(name) for name in ("hw-dgx-h100", "hw-dgx-b200", "hw-dgx-h200"))
MODEL = load_whole("deepseek-v3")
LAYOUT = Layout(ep=8, dp=8)


class Answer(NamedTuple):
    """A number, who gave it, and the function that states it. One that others are built from is shown and not `counted`."""

    who: str
    stated_at: Callable[..., Any]
    value: float
    counted: bool = True


def statements(given: list[Answer]) -> int:
    """Groups of answers by equal function or equal value."""
    groups: list[list[Answer]] = []
    for one in (one for one in given if one.counted):
        near = [group for group in groups if any(other.stated_at == one.stated_at or _equal(other.value, one.value) for other in group)]
        groups = [group for group in groups if group not in near] + [[one, *(other for group in near for other in group)]]
    return len(groups)


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= EQUAL * max(abs(a), abs(b))


def _of_machines(method: str, cluster: Any, *arguments: Any, benchmark: bool = False, **named: Any) -> list[Answer]:
    """A method of the clock under each regime."""
    given = {"serve": "serving", "step": "training", **({"benchmark": "benchmark"} if benchmark else {})}
    return [
        Answer(who, getattr(Machine, method), getattr(machine_of(cluster, regime), method)(*arguments, **named), who != "benchmark")
        for who, regime in given.items()
    ]


def _replica(system: str = "deepep", **degrees: int) -> Replica:
    return Replica(MODEL, formats_of("bf16", "bf16"), ServeLayout(**degrees), machine_of(H200, "serving"), system)


def _dispatch() -> list[Answer]:
    layer = MODEL.layer
    served = serving_exchange.exchange(_replica(dp=8, ep=8), float(TOKENS)).dispatch
    trained = moe_block.exchange(machine_of(H200, "training"), LAYOUT, layer, float(TOKENS), TrainingRecipe(dispatcher="deepep")).dispatch  # type: ignore[arg-type]
    return [Answer("serve", costs_exchange.exchange, served), Answer("step", costs_exchange.exchange, trained)]


def _remote() -> list[Answer]:
    stated = closed.expected_copies
    layer = MODEL.layer
    assert layer is not None
    return [
        Answer("traffic", stated, closed.uniform_traffic(256, 8, 8).remote_gpus),
        Answer("kernels and domains", stated, stated(8, 256, 8) * 7 / 8),
        Answer("with groups", stated, Peers(8).copies(layer, 8) * 7 / 8),
    ]


def _in_switch() -> list[Answer]:
    def slope(us: Callable[[float], float]) -> float:
        """Microseconds of a token, without what all tokens share."""
        return (us(8.0 * TOKENS) - us(4.0 * TOKENS)) / (4 * TOKENS)

    layer, machine = MODEL.layer, machine_of(H200, "training")
    assert layer is not None
    one, other = (_replica(name, dp=8, ep=8) for name in ("dysharp", "moe-hub"))
    served = slope(lambda n: serving_exchange.least_us(one, n, 0.0)) / slope(lambda n: serving_exchange.least_us(other, n, 0.0))
    row = 2.0 * layer.hidden

    def planned(name: str) -> float:
        return slope(lambda n: costs_exchange.least_us(machine, layer, Peers(8), Rows(n, row, row), name, 0.0))

    return [Answer("serve", costs_exchange.least_us, served), Answer("plan", costs_exchange.least_us, planned(IN_SWITCH) / planned(HUB))]


def _optimizer() -> list[Answer]:
    model, machine = load_whole("qwen3-30b"), machine_of(H200, "training")
    held = rank_parameters(model, LAYOUT, [Chunk(0, model.n_layers)])
    us = training_costs.update_us(machine, LAYOUT, held, 1, TrainingRecipe())
    return [Answer("step", training_costs.update_us, us), Answer("plan", planning_cost.update_us, us)]


@contextmanager
def _products() -> Iterator[list[tuple[float, float, float]]]:
    """[(m, n, k)] of the GEMMs that are asked of the clock."""
    asked: list[tuple[float, float, float]] = []
    known = Machine.gemm

    def gemm(self: Machine, m: float, n: float, k: float, *rest: Any, **more: Any) -> float:
        asked.append((m, n, k))
        return known(self, m, n, k, *rest, **more)

    Machine.gemm = gemm  # type: ignore[assignment,method-assign]
    try:
        yield asked
    finally:
        Machine.gemm = known  # type: ignore[method-assign]


def _parameters() -> list[Answer]:
    """Of a dense layer of DeepSeek-V3: listed, and of the GEMMs of a prompt and of a training pass."""
    listed = float(sum(weight.parameters for weight in layer_weights(MODEL, "*-") if weight.product))
    with _products() as served:
        layer_ops(_replica(), prompt_batch(float(TOKENS), float(TOKENS)), 0)
    with _products() as trained:
        Block(MODEL, machine_of(H200, "training"), Layout(), TOKENS).layer(0, None)
    both = sum(n * k for _, n, k in served), sum(n * k for m, n, k in trained if m == TOKENS) / 2  # forward, and gradients of inputs
    return [Answer(who, layer_weights, n) for who, n in zip(("model", "serve, from its GEMMs", "step, from its GEMMs"), (listed, *both), strict=True)]


PREFILL = AttentionCall(batch=1, queries=TOKENS, heads=32, kv_heads=8, qk_dim=128, v_dim=128)
QUANTITIES: dict[str, Callable[[], list[Answer]]] = {
    "BF16 GEMM 8192 x 4096 x 14336, H100 (us)": lambda: _of_machines("gemm", H100, *SHAPE, "bf16", benchmark=True),
    "FP8 GEMM 8192 x 4096 x 14336, B200 (us)": lambda: _of_machines("gemm", B200, *SHAPE, "fp8", benchmark=True),
    "kernel moving 256 MB, H100 (us)": lambda: _of_machines("memory", H100, 256e6),
    "all-gather 64 MB, 8 H100 (us)": lambda: [
        *_of_machines("collective", H100, "all_gather", 64e6, 8),
        Answer("gradients", Machine.collective, machine_of(H100, "training").group(64e6, 8, 1)),
    ],
    "attention prefill, 32 heads, 4096 tokens, H100 (us)": lambda: _of_machines("attention", H100, PREFILL),
    "DeepEP Dispatch, DeepSeek-V3, EP8, 4096 tokens, BF16, H200 (us)": _dispatch,
    "remote GPUs of a token, 256 experts, top 8, EP8": _remote,
    "exchange by DySHARP over MoE-Hub, the same": _in_switch,
    "optimizer, Qwen3-30B, EP8, H200 (us)": _optimizer,
    "parameters of a dense layer of DeepSeek-V3": _parameters,
}


class Stated(NamedTuple):
    """A quantity with its answers."""

    quantity: str
    given: list[Answer]

    @property
    def statements(self) -> int:
        """How many statements stand behind the answers."""
        return statements(self.given)

    def __str__(self) -> str:
        places = (f"{one.stated_at.__module__}.{one.stated_at.__qualname__}".removeprefix("dysharp.") for one in self.given)
        return f"{self.statements:>2}  {self.quantity}: " + "; ".join(
            f"{one.who} {one.value:,.5g} ({place})" for one, place in zip(self.given, places, strict=True)
        )


def table() -> list[Stated]:
    """All quantities."""
    return [Stated(quantity, ask()) for quantity, ask in QUANTITIES.items()]


if __name__ == "__main__":
    print("statements per quantity")
    print(*table(), sep="\n")
