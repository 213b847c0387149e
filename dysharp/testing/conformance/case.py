"""The cases that rules judge: one pass of a layer, both passes, or a system. Plans and runs happen at first use. Layers are small."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dysharp.analysis import Row, RunInputs, measure
from dysharp.base import AnyMapping, Array, frozen
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import FabricConfig
from dysharp.engine.packet.program import run_packet
from dysharp.functional.experts import GatedExperts, IntegerExperts
from dysharp.functional.machine import Machine
from dysharp.functional.numbers import number
from dysharp.program import Program, Trace
from dysharp.program.relayout import relayout
from dysharp.program.verify import verify
from dysharp.runs import options_of
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.systems import System
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.testing.conformance.rule import NotRun
from dysharp.workload import Routing, make_routing

TINY = Model(name="tiny", hidden=512, expert_hidden=256, n_experts=16, topk=4, tokens_per_gpu=24, n_matrices=2, element_bytes=2, gemm_dtype="fp8")
WIDE = replace(TINY, name="wide", hidden=1000, n_experts=32, topk=8, n_matrices=3)
REAL = "hw-dgx-h100"


@frozen
class SmallLayer:
    """A named workload."""

    name: str
    model: Model
    cluster: Cluster
    routing: Routing


def paper_cluster(n_gpus: int) -> Cluster:
    """The paper's cluster with `n_gpus` GPUs."""
    return load_cluster("paper-gh200-nvl32").with_gpus(n_gpus)


def dropping(routing: Routing, every: int) -> Routing:
    """`routing` without every `every`-th choice and without all choices of token 1."""
    gone = np.arange(routing.slot.size).reshape(routing.slot.shape) % every == 0
    gone[1] = True
    return replace(routing, expert=np.where(gone, np.int32(-1), routing.expert), slot=np.where(gone, np.int32(-1), routing.slot))


def small_layers() -> dict[str, SmallLayer]:
    """Layers by name: even, skewed, with dropped choices, on one GPU, and on an hw cluster."""
    layers = (
        SmallLayer("uniform", TINY, paper_cluster(4), make_routing("uniform", TINY, 4, 24)),
        SmallLayer("lognormal", WIDE, paper_cluster(4), make_routing("lognormal:0.65", WIDE, 4, 24, seed=1)),
        SmallLayer("dropped", TINY, paper_cluster(4), dropping(make_routing("uniform", TINY, 4, 24, seed=2), 3)),
        SmallLayer("one GPU", TINY, paper_cluster(1), make_routing("uniform", TINY, 1, 24, seed=3)),
        SmallLayer("real", TINY, load_cluster(REAL).with_gpus(4), dropping(make_routing("lognormal:0.65", TINY, 4, 24, seed=5), 5)),
    )
    return {layer.name: layer for layer in layers}


def row_format(options: Any, operator: str) -> str:
    """Row format of Dispatch or Combine: the value of the option with the operator's name, else the model's rows."""
    value = getattr(options, operator, "rows")
    return value if value in ROW_BYTES else "rows"


class SystemCase:
    """A system with its options. Rules make their own tensors and layers."""

    def __init__(self, system: System, options: AnyMapping | None = None) -> None:
        self.system = system
        self.options: Any = options_of(system, options or {})
        self.given = {name: getattr(self.options, name) for name in options or {}}

    def needs_gemms(self) -> None:
        """Raise NotRun where the options leave the GEMMs out."""
        if not getattr(self.options, "compute", True):
            raise NotRun("the options leave the GEMMs out")


class CheckedPass(SystemCase):
    """One direction of a layer. `program`: verified. `trace`: Trace at burst level.

    `packets`: Trace at packet level.
    """

    def __init__(self, system: System, layer: SmallLayer, direction: str, options: AnyMapping | None = None) -> None:
        super().__init__(system, options)
        self.direction = direction
        self.layer = replace(layer, routing=system.served(layer.routing, self.options))

    @cached_property
    def program(self) -> Program:
        layer = self.layer
        program = self.system.plan(layer.model, layer.cluster, layer.routing, self.direction, self.options)
        verify(program)
        return program

    @cached_property
    def trace(self) -> Trace:
        return run_burst(self.program)[0]

    @cached_property
    def packets(self) -> Trace:
        cluster = self.layer.cluster
        return run_packet(self.program, FabricConfig(n_planes=cluster.n_switches, speedup=cluster.internal_speedup)).trace

    @cached_property
    def measured(self) -> Row:
        layer, system = self.layer, self.system
        inputs = RunInputs(
            system=system.name, model=layer.model, cluster=layer.cluster, work=layer.routing, layer=None, direction=self.direction,
            fidelity="burst", seed=0, options=self.given, free_links=system.moves.sent == "none",
        )  # fmt: skip
        return measure(inputs, self.program, self.trace)


class Passes:
    """Both directions of a layer."""

    def __init__(self, system: System, layer: SmallLayer, options: AnyMapping | None = None) -> None:
        self.system, self.layer = system, layer
        self.forward, self.backward = (CheckedPass(system, layer, direction, options) for direction in ("fwd", "bwd"))

    @cached_property
    def relayed(self) -> Program:
        """The backward Program on the row layout of the forward run."""
        program = relayout(self.backward.program, self.forward.trace.row_slot)
        verify(program)
        return program


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer: `x`, `dy` `[tokens, hidden]`, `expert`, `weight` `[tokens, topk]`."""

    x: Array
    dy: Array
    expert: Array
    weight: Array
    experts: Any


def layer_case(
    dtype: str = "int32", *, gpus: int = 4, tokens: int = 10, experts: int = 16, topk: int = 4, hidden: int = 96, expert_hidden: int = 16,
    seed: int = 0,
) -> LayerInputs:  # fmt: skip
    """A layer of `tokens` tokens. Token 0 has no expert, and token 3 has one dropped choice."""
    rng = np.random.default_rng(seed)
    n = number(dtype)
    expert = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk]
    expert[0] = -1
    expert[3, 1] = -1
    if n.is_integer:
        x, dy = rng.integers(-3, 4, (2, tokens, hidden))
        return LayerInputs(n.store(x), n.store(dy), expert, rng.integers(1, 4, expert.shape), IntegerExperts(experts, hidden, expert_hidden, seed))
    x, dy = rng.standard_normal((2, tokens, hidden))
    weight = rng.random(expert.shape).astype(np.float32)
    return LayerInputs(n.store(x), n.store(dy), expert, weight, GatedExperts(experts, hidden, expert_hidden, seed))


def run_case(case: LayerInputs, machine: Machine, *, backward: bool = False) -> tuple[Array, ...]:
    """(y,) or (y, dx, gate gradients, weight gradients of both matrices)."""
    y, context = machine.forward(case.x, case.expert, case.weight, case.experts)
    if not backward:
        return (y,)
    dx, gate = machine.backward(context, case.dy, case.experts)
    grads = case.experts.take_grads()
    return y, dx, gate, grads["w1"], grads["w2"]


NAMES = ("y", "dx", "gate gradients", "w1 gradients", "w2 gradients")
"""Names of the results of `run_case`."""
