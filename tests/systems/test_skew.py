"""Every system with late and slow ranks: oracle, engine, packet level and functional machine take the Program."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import FabricConfig
from dysharp.engine.packet.program import run_packet
from dysharp.functional.experts import IntegerExperts
from dysharp.functional.layer import Tensors
from dysharp.functional.numbers import number
from dysharp.functional.reference import dense_forward
from dysharp.functional.rows import run_rows
from dysharp.oracle import run_oracle
from dysharp.program import Kind, Program, Trace
from dysharp.program.skew import Skew, skewed
from dysharp.program.verify import verify
from dysharp.systems import all_systems
from dysharp.testing.conformance.case import small_layers

LAYERS = small_layers()
SKEW = Skew((0, 3_000_000, 17_000_000, 0), (1.0, 1.5, 1.0, 2.0))
CASES = [
    pytest.param(name, layer, direction, marks=[] if layer == "dropped" else pytest.mark.slow)
    for name, system in all_systems().items()
    for layer, direction in (("dropped", "fwd"), ("uniform", "bwd"), *((("real", "fwd"),) if system.has_real_form else ()))
]


def late(name: str, layer: str, direction: str) -> Program:
    system, small = all_systems()[name], LAYERS[layer]
    program = skewed(system.plan(small.model, small.cluster, small.routing, direction, system.options()), SKEW)
    verify(program)
    return program


def nothing_moves_before_its_rank_starts(program: Program, trace: Trace) -> None:
    start = np.array(SKEW.start_ps)[program.ops.node]
    own = program.ops.template != len(program.templates) - 1  # all but the DELAYs themselves
    assert (trace.ready[own & (program.kinds() == Kind.JOIN)] >= 0).all()
    assert (trace.start[own] >= start[own]).all()
    assert (trace.issue[own] >= start[own]).all()


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "layer", "direction"), CASES)
def test_interpreters_agree_and_late_ranks_wait(name: str, layer: str, direction: str) -> None:
    program = late(name, layer, direction)
    trace = run_burst(program)[0]
    assert trace.digest() == run_oracle(program).digest()
    nothing_moves_before_its_rank_starts(program, trace)
    assert trace.time_ps > 17_000_000
    small = LAYERS[layer]
    config = FabricConfig(n_planes=small.cluster.n_switches, speedup=small.cluster.internal_speedup)
    nothing_moves_before_its_rank_starts(program, run_packet(program, config).trace)


@pytest.mark.parametrize("name", all_systems())
def test_tensors_do_not_depend_on_the_start(name: str) -> None:
    system, program = all_systems()[name], late(name, "dropped", "fwd")
    routing = system.served(LAYERS["dropped"].routing, system.options())
    experts = IntegerExperts(routing.n_experts, 8, 4)
    rng = np.random.default_rng(0)
    tokens = rng.integers(-3, 4, (routing.n_tokens, experts.hidden)).astype(np.int32)
    weight = np.where(routing.slot >= 0, rng.integers(1, 4, routing.slot.shape), 0)
    tensors = Tensors(routing, number("int32"), experts, tokens, weight)
    np.testing.assert_array_equal(run_rows(program, tensors, "random").out, dense_forward(tensors))
