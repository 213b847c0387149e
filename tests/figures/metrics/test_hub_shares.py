"""Shares of producer, network and consumer in the latency of Dispatch (figure hub-shares)."""

import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.figures.metrics.hub_shares import _hub_shares, _parts_ps, _PollingForm
from dysharp.program import Program
from dysharp.program.trace import Trace
from dysharp.runs.point import Point
from dysharp.runs.run import planned

POINT = Point("hub-shares", "paper-qwen2-moe", "paper-dgx-h800", "uniform", gpus=2, tokens=4)


def ran(system: str, **options: object) -> tuple[Program, Trace]:
    (program,) = planned(system, ["fwd"], options, model=POINT.model, cluster=POINT.cluster, gpus=2, tokens=4, routing="uniform", seed=0)
    return program, run_burst(program)[0]


def test_a_row_takes_two_hops_and_a_poll_waits_for_its_tile() -> None:
    (_, network, consumer) = _parts_ps(*ran("mh-base", poll_ns=700))
    assert network.min() == 2 * 250_000  # the paper's latency of a hop
    assert consumer.min() >= 700_000
    assert _parts_ps(*ran("mh-dep"))[2].min() < 700_000


def test_the_parts_end_where_the_tile_starts() -> None:
    """Counted again from the waits of the Program: a row that completes its tile waits for the poll alone."""
    program, trace = ran("mh-base", poll_ns=0)
    parts = _parts_ps(program, trace)
    starts = {int(trace.start[op]) for op in range(program.n_ops) if program.templates[program.ops.template[op]].operator == "gemm1"}
    assert set(parts.sum(0).tolist()) <= starts
    crossed = [m for op in range(program.n_ops) for m in range(*program.members.ptr[op : op + 2]) if program.ops.node[op] != program.members.node[m]]
    there = {int(trace.member[m]) for m in crossed}
    assert set(parts[:2].sum(0).tolist()) <= there


def test_shares_sum_to_one_and_readiness_in_hardware_stands_over_polls() -> None:
    row = _hub_shares(POINT, _PollingForm())
    assert row["producer_share"] + row["network_share"] + row["consumer_share"] == pytest.approx(1)
    own, hardware = (_parts_ps(*ran(system, second_gemm="kernel")).mean(1) for system in ("mh-base", "mh-dep"))
    assert row["kept_consumer"] == pytest.approx(hardware[2] / own[2])
    assert row["dispatch_us"] == pytest.approx(own.sum() / 1e6)
