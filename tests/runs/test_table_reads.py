"""When a table of the hubs is called too small."""

from __future__ import annotations

import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.runs.one_pass import table_warning
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing


@pytest.fixture(scope="module")
def program() -> Program:
    system, model, cluster = get_system("dysharp"), load_model("S-8"), load_cluster("paper-gh200-nvl32")
    return system.plan(model, cluster, make_routing("uniform", model, cluster.n_gpus, 1), "fwd", system.options())


@pytest.mark.parametrize(("reads", "said"), [(1000, False), (1040, False), (1100, True), (2000, True)])
def test_rows_may_be_read_five_percent_more_often_than_once(program: Program, reads: int, said: bool) -> None:
    time_ps = int(1.1 * run_burst(program)[0].time_ps)
    lines = table_warning("dysharp", program, entries=512, rows=1000, reads=reads, time_ps=time_ps, fidelity="packet")
    assert len(lines) == said
    assert not said or f"a row is read {reads / 1000:.1f} times from memory" in lines[0]


@pytest.mark.parametrize("fidelity", ["burst", "packet"])
def test_repeated_reads_must_cost_time(program: Program, fidelity: str) -> None:
    time_ps = run_burst(program)[0].time_ps
    for late, said in ((1.0, 0), (1.1, 1)):
        assert len(table_warning("dysharp", program, entries=512, rows=1000, reads=2000, time_ps=int(time_ps * late), fidelity=fidelity)) == said


def test_a_program_without_tables_is_never_warned_about() -> None:
    system, model, cluster = get_system("deepep"), load_model("S-8"), load_cluster("paper-gh200-nvl32")
    bare = system.plan(model, cluster, make_routing("uniform", model, cluster.n_gpus, 1), "fwd", system.options())
    assert table_warning("deepep", bare, entries=512, rows=1000, reads=9000, time_ps=1, fidelity="packet") == ()
