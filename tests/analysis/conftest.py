"""Tiny layers and their finished runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest

from dysharp.analysis import HostCosts, Row, RunInputs, WallTimes, make_row, measure
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.systems import get_system
from dysharp.workload import Routing, make_routing

MODEL = Model(name="tiny", hidden=1000, expert_hidden=256, n_experts=16, topk=4, tokens_per_gpu=40, n_matrices=3, element_bytes=2, gemm_dtype="fp8")


NO_COSTS = HostCosts(WallTimes(0, 0, 0, 0, 0), 0, 0)


@dataclass(frozen=True)
class Run:
    """A finished run and all it came from."""

    inputs: RunInputs
    program: Program
    trace: Trace

    @cached_property
    def measured(self) -> Row:
        return measure(self.inputs, self.program, self.trace)

    @property
    def row(self) -> Row:
        return make_row(self.measured, None, NO_COSTS, blocks={})


def _routing(name: str) -> Routing:
    if name == "one GPU":
        return make_routing("uniform", MODEL, 1, 40)
    routing = make_routing("uniform" if name == "dropped" else name, MODEL, 4, 40, seed=3)
    if name != "dropped":
        return routing
    gone = np.arange(routing.slot.size).reshape(routing.slot.shape) % 3 == 0
    gone[1] = True
    cut = {column: np.where(gone, np.int32(-1), getattr(routing, column)) for column in ("expert", "slot")}
    return replace(routing, **cut)


@cache
def _run(system: str, routing: str, direction: str, options: tuple[tuple[str, Any], ...]) -> Run:
    drawn, chosen = _routing(routing), get_system(system)
    cluster: Cluster = load_cluster("paper-gh200-nvl32").with_gpus(drawn.n_gpus)
    values = chosen.options(**dict(options))
    program = chosen.plan(MODEL, cluster, drawn, direction, values)
    trace, _ = run_burst(program)
    inputs = RunInputs(system, MODEL, cluster, drawn, None, direction, "burst", 3, dict(options), chosen.moves.sent == "none")
    return Run(inputs, program, trace)


@pytest.fixture(scope="session")
def finished() -> Callable[..., Run]:
    """`finished(system, routing="uniform", direction="fwd", **options)`; routing: a distribution, "dropped" or "one GPU"."""

    def make(system: str, routing: str = "uniform", direction: str = "fwd", **options: Any) -> Run:
        return _run(system, routing, direction, tuple(sorted(options.items())))

    return make
