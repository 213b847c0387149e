"""Group waits at a switch, jitter per thread block, and column ranges of tiles (docs/design/0032)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.oracle.run import run_oracle
from dysharp.program import Program
from dysharp.program.skew import Skew, skewed
from dysharp.program.tables import Kind, columns_of
from dysharp.specs import load_cluster
from dysharp.systems.building.tp.sublayer import DRAWS
from dysharp.systems.collectives import get_collective
from dysharp.workload.sublayer import SubLayer

GPUS = 3
WORK = SubLayer("toy", GPUS, 128 * GPUS * 2, 256, 32, 256)
FLIT_PS = 200_000
"""Most that a flit waits for its two links."""
CLUSTER = replace(load_cluster("paper-cais-h100").with_gpus(GPUS), n_sms=4)


def planned(seed: int = 0) -> Program:
    system = get_collective("cais")
    return system.plan(WORK, CLUSTER, system.options(chunk_bytes=8192, seed=seed))


def of(program: Program, name: str) -> np.ndarray:
    return np.flatnonzero(np.array([t.name == name for t in program.templates])[program.ops.template])


def test_every_group_waits_for_the_last_gpu_and_a_round_trip_to_the_switch() -> None:
    """One GPU is 5 us late: every release is two hops and a flit behind the last registration, and its tiles start behind it."""
    program = skewed(planned(), Skew((0, 5_000_000, 0), (1.0, 1.0, 1.0)))
    trace = run_burst(program)[0]
    assert run_oracle(program).digest() == trace.digest()
    group, tiles, e = of(program, "group1"), of(program, "gemm1"), program.edges
    kinds = np.array([t.kind for t in program.templates])[program.ops.template[group]]
    releases, flits = group[kinds == Kind.JOIN], group[kinds == Kind.PUT]
    assert len(flits) == GPUS * len(releases) > GPUS
    for number, release in enumerate(releases):
        registered = flits[program.ops.prio[flits] == number]
        assert sorted(program.ops.node[registered]) == list(range(GPUS))
        met = trace.issue[registered].max() + 2 * program.hardware.lat
        assert met < trace.done[release] < met + FLIT_PS
        behind = e.head[e.tail == release]
        behind = behind[np.isin(behind, tiles)]
        assert set(program.ops.node[behind]) == set(range(GPUS))
        assert trace.issue[behind].min() >= trace.done[release]
    assert trace.done[releases].min() > 5_000_000


def test_each_thread_block_draws_its_own_time() -> None:
    one, again, other = planned(), planned(), planned(seed=1)
    tiles = of(one, "gemm1")
    trace = run_burst(one)[0]
    took = trace.end[tiles] - trace.start[tiles]
    template = one.templates[one.ops.template[tiles[0]]]
    times = one.durations[template.duration, 1 : DRAWS + 1]
    assert (np.diff(times) > 0).all()
    assert times[0] + times[-1] == pytest.approx(2 * times.mean(), rel=1e-3)
    np.testing.assert_array_equal(took, times[one.ops.rows[tiles] - 1])
    assert len(np.unique(one.ops.rows[tiles])) > len(tiles) / 4
    np.testing.assert_array_equal(one.ops.rows, again.ops.rows)
    assert (one.ops.rows[tiles] != other.ops.rows[tiles]).any()


@pytest.mark.parametrize("width", [7, 64, 2047])
@pytest.mark.parametrize("cuts", [(0, 1), (0, 1, 3, 8), (0, 5, 6, 7)])
def test_column_ranges_that_follow_each_other_cover_each_column_once(width: int, cuts: tuple[int, ...]) -> None:
    seen = np.zeros(width, np.int64)
    for first, end in pairwise(cuts):
        seen[columns_of((first, end, cuts[-1]), width)] += 1
    assert (seen == 1).all()
