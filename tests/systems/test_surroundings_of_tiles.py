"""Systems that start single tiles have the software around their GEMMs as ops, on clusters with a GPU, in every interpreter."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import dysharp as ds
from dysharp.analysis import attribute
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.oracle import run_oracle
from dysharp.program import Program
from dysharp.program.merge import Part, merge
from dysharp.program.schema import BESIDE
from dysharp.program.verify import verify
from dysharp.specs import Cluster, Model, load_cluster
from dysharp.systems import get_system
from dysharp.workload import Routing, make_routing

TILES = ("ccfuser", "tutel", "fastermoe", "comet", "comet-flux", "dysharp-comet")
SOURCE = ("ccfuser", "tutel", "fastermoe")
MODEL = Model("small", hidden=512, expert_hidden=256, n_experts=8, topk=2, tokens_per_gpu=24, n_matrices=3, element_bytes=2, gemm_dtype="fp8")


def asked(name: str, skew: str = "uniform") -> tuple[Cluster, Routing]:
    return load_cluster("hw-dgx-h100").with_gpus(4), make_routing(skew, MODEL, 4, MODEL.tokens_per_gpu)


@functools.cache
def planned(name: str, direction: str = "fwd", skew: str = "uniform") -> Program:
    chosen, (cluster, routing) = get_system(name), asked(name, skew)
    program = chosen.plan(MODEL, cluster, routing, direction, chosen.options())
    verify(program)
    return program


def around(program: Program) -> dict[str, np.ndarray]:
    """Name of a template of the surroundings -> its ops."""
    names = np.array([t.name if t.fn == BESIDE else "" for t in program.templates])[program.ops.template]
    return {name: np.flatnonzero(names == name) for name in {*names.tolist()} - {""}}


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("name", TILES)
def test_the_software_is_in_the_program_and_every_interpreter_runs_it(name: str, direction: str) -> None:
    program = planned(name, direction)
    found, trace = around(program), run_burst(program)[0]
    assert {"around.scatter", "around.gather"} <= found.keys() if name in SOURCE else "around.begin.start" in found
    assert ("around.activation" in found) == (direction == "fwd")
    assert any("cast" in name for name in found) or name in ("tutel", "fastermoe")  # those cast a whole group in the kernel before its GEMMs
    assert run_oracle(program).digest() == trace.digest()
    causes = attribute(program, trace)
    assert sum(causes.values()) == trace.time_ps
    assert causes["surroundings"] > 0
    packet = run_packet(program, fabric_of(asked(name)[0])).trace
    assert packet.time_ps == pytest.approx(trace.time_ps, rel=0.05)


@pytest.mark.parametrize("name", TILES)
def test_nothing_is_charged_after_the_run(name: str) -> None:
    row = ds.run(name, model=MODEL, cluster="hw-dgx-h100", gpus=4, tokens=24, routing="uniform")
    assert row.path_us["around"] > 0
    assert row.time_us == row.program_us
    assert row.surroundings_us["activation_us"] > 0


@pytest.mark.sampled
@pytest.mark.parametrize("name", TILES)
def test_a_merge_has_the_software_of_both(name: str) -> None:
    one = planned(name)
    both = merge([Part("a", one, microbatch=0), Part("b", one, microbatch=1)])
    verify(both)
    trace = run_burst(both)[0]
    assert {"a.around", "b.around"} < {*both.operator_names}
    assert run_oracle(both).digest() == trace.digest()
    alone = run_burst(one)[0].time_ps
    assert alone < trace.time_ps <= 2.001 * alone


@pytest.mark.parametrize("name", SOURCE)
def test_who_sorts_before_sending_pays_for_its_own_tokens(name: str) -> None:
    """The scatter takes as long on every GPU under any skew, because all have as many tokens; Tutel's capacity drops some of the rows."""
    for skew in ("uniform", "lognormal:1.0"):
        program = planned(name, skew=skew)
        trace, scatter = run_burst(program)[0], around(program)["around.scatter"][:4]
        took = (trace.done - trace.ready)[scatter]
        assert took.max() - took.min() <= (0.1 if name == "tutel" else 0.0) * took.max()


def test_a_tile_waits_for_the_cast_of_its_own_rows() -> None:
    program = planned("comet", skew="lognormal:1.0")
    trace, cast = run_burst(program)[0], around(program)["around.cast"]
    gemm = np.flatnonzero(np.array([t.fn == "gemm1" for t in program.templates])[program.ops.template])
    of_tile = gemm[np.argsort(program.ops.key[gemm])]
    assert np.all(trace.issue[of_tile] >= trace.done[cast])
    assert trace.issue[of_tile].min() < trace.done[cast].max()  # no barrier between casts and GEMMs
    rows = program.ops.rows[cast]
    took = trace.done[cast] - trace.issue[cast]
    assert took[rows.argmax()] > took[rows.argmin()]


@pytest.mark.parametrize("name", TILES)
def test_paper_clusters_have_none(name: str) -> None:
    chosen, cluster = get_system(name), load_cluster("paper-gh200-nvl32").with_gpus(4)
    program = chosen.plan(MODEL, cluster, asked(name)[1], "fwd", chosen.options())
    assert not around(program)
    assert "around" not in program.operator_names
