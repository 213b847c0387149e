"""One question, asked of every room that answers it: which answers there are, and how many statements stand behind them.

    python bench/quantities.py

Answers of one function, and equal answers, are one statement: regimes of one clock may differ, two clocks that agree are as good as one.
A function is looked up where it may stand; one that is gone no longer answers.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

ROOMS = {"steps": ("training", "costs", "model"), "compute": ("costs",), "serving": ("costs", "model"), "planning": ("training", "costs")}
"""Where else the modules of a room may stand."""
EQUAL = 1e-6
"""Answers that differ by less, relative to the larger, are equal."""
SHAPE = 8192, 4096, 14336
TOKENS = 4096
GONE = AttributeError, ImportError, TypeError


class Ask(NamedTuple):
    """`where`: module and function, such as "steps.machine:Machine.gemm". `of`: the number, from the module or the class that has the function.
    An answer that others are built from is shown and not `counted`."""

    who: str
    where: str
    of: Callable[[Any], float]
    counted: bool = True


class Answer(NamedTuple):
    """A number, who gave it, and the function that states it."""

    who: str
    stated_at: str
    value: float
    counted: bool


def answers(asks: tuple[Ask, ...]) -> list[Answer]:
    """What is found of `asks`."""
    out = []
    for ask in asks:
        try:
            owner, function = _found(ask.where)
            out.append(Answer(ask.who, f"{function.__module__}.{function.__qualname__}".removeprefix("dysharp."), ask.of(owner), ask.counted))
        except GONE:
            continue
    return out


def statements(given: list[Answer]) -> int:
    """Groups of answers by equal function or equal value."""
    groups: list[list[Answer]] = []
    for one in (one for one in given if one.counted):
        near = [group for group in groups if any(other.stated_at == one.stated_at or _equal(other.value, one.value) for other in group)]
        groups = [group for group in groups if group not in near] + [[one, *(other for group in near for other in group)]]
    return len(groups)


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= EQUAL * max(abs(a), abs(b))


def _found(where: str) -> tuple[Any, Any]:
    """The module or class that owns the function, and the function."""
    module, _, path = where.partition(":")
    room = module.partition(".")[0]
    last = module.rpartition(".")[2]
    for name in (module, *(f"{other}{rest}" for other in ROOMS.get(room, ()) for rest in (module.removeprefix(room), f".{last}"))):
        try:
            owner: Any = importlib.import_module(f"dysharp.{name}")
        except ImportError:
            continue
        *classes, function = path.split(".")
        owner = functools.reduce(getattr, classes, owner)
        return owner, inspect.unwrap(getattr(owner, function))
    raise ImportError(where)


def _module(where: str) -> Any:
    """The first of two places of a module that exists."""
    return _found(f"{where}:__loader__")[0]


def _on(kind: Any, cluster: str, regime: str) -> Any:
    """A clock of a machine, of a regime where it has regimes."""
    from dysharp.specs import load_cluster

    return kind(load_cluster(cluster), regime) if "regime" in inspect.signature(kind).parameters else kind(load_cluster(cluster))


def _gemm(cluster: str, dtype: str, weight_bytes: float) -> tuple[Ask, ...]:
    def formula(owner: Any) -> float:
        from dysharp.specs import load_cluster

        machine = load_cluster(cluster)
        return float(owner.gemm_us(machine.own_gpu, machine.fitted, *SHAPE, dtype))

    return (
        Ask("serve", "serving.rates:Rates.gemm", lambda kind: kind(_cluster(cluster)).gemm(*SHAPE, dtype, weight_bytes)),
        Ask("step", "steps.machine:Machine.gemm", lambda kind: _on(kind, cluster, "training").gemm(*SHAPE, dtype)),
        Ask("benchmark", "compute.operators:gemm_us", formula, counted=False),
    )


def _cluster(name: str) -> Any:
    from dysharp.specs import load_cluster

    return load_cluster(name)


def _prefill() -> Any:
    return _module("compute.attention").Attention(batch=1, queries=TOKENS, heads=32, kv_heads=8, qk_dim=128, v_dim=128)


def _replica(model: str = "deepseek-v3", system: str = "deepep", cluster: str = "hw-dgx-h200", **degrees: int) -> Any:
    from dysharp.serving.precisions import formats_of

    from dysharp.serving.layout import ServeLayout
    from dysharp.serving.work import Replica
    from dysharp.specs import load_whole

    rates = _on(_module("serving.rates").Rates, cluster, "serving")
    return Replica(load_whole(model), formats_of("bf16", "bf16"), ServeLayout(**degrees), rates, system)


def _step(model: str, cluster: str = "hw-dgx-h200", **degrees: int) -> tuple[Any, Any, Any]:
    """(machine, layout, model) of a training step."""
    from dysharp.specs import load_whole

    return _on(_module("steps.machine").Machine, cluster, "training"), _module("steps.layout").Layout(**degrees), load_whole(model)


def _dispatch_in_step(module: Any) -> float:
    machine, layout, model = _step("deepseek-v3", ep=8, dp=8)
    practice = _module("steps.practice").Practice(dispatcher="deepep")
    return float(module.exchange(machine, layout, model.layer, float(TOKENS), practice).dispatch)


def _grouped(module: Any) -> float:
    from dysharp.specs import load_whole

    return float(module._copies(8, load_whole("deepseek-v3").layer)) * 7 / 8


def _slope(us: Callable[[float], float]) -> float:
    """Microseconds of a token, without what all tokens share."""
    return (us(8.0 * TOKENS) - us(4.0 * TOKENS)) / (4 * TOKENS)


def _in_switch_serving(module: Any) -> float:
    one, other = (_replica(system=name, dp=8, ep=8) for name in ("dysharp", "moe-hub"))
    return _slope(lambda n: module.least_us(one, n, 0.0)) / _slope(lambda n: module.least_us(other, n, 0.0))


def _in_switch_planning(module: Any) -> float:
    machine, layout, model = _step("deepseek-v3", ep=8, dp=8)
    place = machine, layout, model
    return _slope(lambda n: module.wire_us(*place, n, "in-switch")) / _slope(lambda n: module.wire_us(*place, n, "moe-hub"))


def _held(module: Any) -> tuple[Any, Any, Any, Any]:
    machine, layout, model = _step("qwen3-30b", ep=8, dp=8)
    state = _module("steps.accounting.state")
    chunk = _module("steps.layout").Chunk(0, model.n_layers)
    return machine, layout, model, state.rank_parameters(model, layout, [chunk])


def _optimizer_in_step(module: Any) -> float:
    machine, layout, _, held = _held(module)
    return float(module._update(machine, layout, held, 1, _module("steps.practice").Practice()))


def _optimizer_in_plan(kind: Any) -> float:
    machine, layout, model, held = _held(kind)
    space = _module("planning.space")
    task = space.Task(model, 8, 64)
    return float(kind(task, machine, space.default_space(task, machine))._update(layout, (held.dense, held.experts), 1))


@contextmanager
def _products(kind: Any) -> Iterator[list[tuple[float, float, float]]]:
    """[(m, n, k)] of the GEMMs that are asked of a clock."""
    asked: list[tuple[float, float, float]] = []
    known = kind.gemm

    def gemm(self: Any, m: float, n: float, k: float, *rest: Any, **more: Any) -> Any:
        asked.append((m, n, k))
        return known(self, m, n, k, *rest, **more)

    kind.gemm = gemm
    try:
        yield asked
    finally:
        kind.gemm = known


def _parameters_served(module: Any) -> float:
    """Of the GEMMs of a prompt in a dense layer of DeepSeek-V3."""
    work = _module("serving.work")
    prompts = work.Batch(prompts=float(TOKENS), seen=TOKENS / 2)
    with _products(_module("serving.rates").Rates) as asked:
        module.layer_ops(_replica(), prompts, 0)
    return sum(n * k for _, n, k in asked)


def _parameters_trained(kind: Any) -> float:
    machine, layout, model = _step("deepseek-v3", cluster="hw-dgx-h200", micro_batch=1)
    with _products(_module("steps.machine").Machine) as asked:
        kind(model, machine, layout, TOKENS).layer(0, None)
    return sum(n * k for m, n, k in asked if m == TOKENS) / 2  # products, and gradients of their inputs


def _parameters_listed(module: Any) -> float:
    from dysharp.specs import load_whole

    return float(sum(weight.parameters for weight in module.layer_weights(load_whole("deepseek-v3"), False) if weight.product))


H100, B200 = "hw-dgx-h100", "hw-dgx-b200"
QUANTITIES: dict[str, tuple[Ask, ...]] = {
    "BF16 GEMM 8192 x 4096 x 14336, H100 (us)": _gemm(H100, "bf16", 2.0),
    "FP8 GEMM 8192 x 4096 x 14336, B200 (us)": _gemm(B200, "fp8", 1.0),
    "kernel moving 256 MB, H100 (us)": (
        Ask("serve", "serving.rates:Rates.memory", lambda kind: kind(_cluster(H100)).memory(256e6)),
        Ask("step", "steps.machine:Machine.memory", lambda kind: _on(kind, H100, "training").memory(256e6)),
    ),
    "all-gather 64 MB, 8 H100 (us)": (
        Ask("serve", "serving.rates:Rates.collective", lambda kind: kind(_cluster(H100)).collective("all_gather", 8, 64e6)),
        Ask("step, waited for", "steps.machine:Machine.collective", lambda kind: _on(kind, H100, "training").collective("all_gather", 64e6, 8, 1)),
        Ask("step, gradients", "steps.machine:Machine.group", lambda kind: _on(kind, H100, "training").group(64e6, 8, 1)),
    ),
    "attention prefill, 32 heads, 4096 tokens, H100 (us)": (
        Ask("serve", "serving.rates:Rates.prefill", lambda kind: kind(_cluster(H100)).prefill(_prefill())),
        Ask("step", "steps.machine:Machine.attention", lambda kind: _on(kind, H100, "training").attention(_prefill(), "forward")),
    ),
    "DeepEP Dispatch, DeepSeek-V3, EP8, 4096 tokens, BF16, H200 (us)": (
        Ask("serve", "serving.exchange:exchange", lambda module: module.exchange(_replica(dp=8, ep=8), float(TOKENS)).dispatch),
        Ask("step", "steps.moe_block:exchange", _dispatch_in_step),
    ),
    "remote GPUs of a token, 256 experts, top 8, EP8": (
        Ask("traffic", "workload.closed:uniform_R", lambda module: module.uniform_R(256, 8, 8)),
        Ask("domains", "workload.levels:expected_domains", lambda module: module.expected_domains(8, 256, 8) * 7 / 8),
        Ask("kernels", "compute.transfer:expected_copies", lambda module: float(module.expected_copies(8, 256, 8)) * 7 / 8),
        Ask("plan", "planning.experts:copies", lambda module: module.copies("dedup", 8, 8)),
        Ask("step, with groups", "steps.moe_block:_copies", _grouped),
    ),
    "exchange by DySHARP over MoE-Hub, the same": (
        Ask("serve", "serving.exchange:least_us", _in_switch_serving),
        Ask("plan", "planning.experts:wire_us", _in_switch_planning),
    ),
    "optimizer, Qwen3-30B, EP8, H200 (us)": (
        Ask("step", "steps.costs:_update", _optimizer_in_step),
        Ask("plan", "planning.cost:Coster._update", _optimizer_in_plan),
    ),
    "parameters of a dense layer of DeepSeek-V3": (
        Ask("model", "steps.accounting.weights:layer_weights", _parameters_listed),
        Ask("serve, from its GEMMs", "serving.step:layer_ops", _parameters_served),
        Ask("step, from its GEMMs", "steps.block:Block.layer", _parameters_trained),
    ),
}


class Stated(NamedTuple):
    """A quantity with its answers."""

    quantity: str
    given: list[Answer]

    @property
    def statements(self) -> int:
        """How many statements stand behind the answers; 0 where nothing answers any more."""
        return statements(self.given)

    def __str__(self) -> str:
        return f"{self.statements:>2}  {self.quantity}: " + "; ".join(f"{one.who} {one.value:,.5g} ({one.stated_at})" for one in self.given)


def table() -> list[Stated]:
    """All quantities."""
    return [Stated(quantity, answers(asks)) for quantity, asks in QUANTITIES.items()]


if __name__ == "__main__":
    print("statements per quantity")
    print(*table(), sep="\n")
