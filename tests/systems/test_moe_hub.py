"""MoE-Hub and its ablations: the order of the packet manager, readiness in hardware, polling thread blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY

from dysharp.engine.burst.run import run_burst, run_burst_counted
from dysharp.engine.packet.program import run_packet
from dysharp.oracle import run_oracle
from dysharp.program import Program, Tail, Trace
from dysharp.specs import load_cluster
from dysharp.systems import get_system
from dysharp.workload import make_routing

CLUSTER = load_cluster("paper-dgx-h800")
LARGE = replace(TINY, hidden=2048, expert_hidden=1024)


def plan(name: str, tokens: int = 128, gpus: int = 4, **options: object) -> Program:
    system = get_system(name)
    return system.plan(LARGE, CLUSTER.with_gpus(gpus), make_routing("uniform", LARGE, gpus, tokens), "fwd", system.options(**options))


def ops_of(program: Program, name: str) -> np.ndarray:
    mine = [i for i, t in enumerate(program.templates) if t.name == name]
    return np.flatnonzero(np.isin(program.ops.template, mine))


def run(program: Program) -> Trace:
    return run_burst(program)[0]


def receivers(program: Program) -> np.ndarray:
    """Receivers of the first rows of GPU 0, train by train."""
    rows = ops_of(program, "dispatch.row")
    rows = rows[program.ops.node[rows] == 0]
    return program.members.node[program.members.ptr[rows]]


def test_the_packet_manager_serves_receivers_in_turn() -> None:
    trains = 2
    assert receivers(plan("moe-hub"))[: 4 * trains : trains].tolist() == [0, 1, 2, 3]
    assert receivers(plan("mh-dep"))[: 4 * trains : trains].tolist() != [0, 1, 2, 3]


def test_rows_for_one_receiver_leave_in_the_order_of_tokens() -> None:
    program = plan("moe-hub")
    rows = ops_of(program, "dispatch.row")
    stream = program.ops.node[rows] * 4 + program.members.node[program.members.ptr[rows]]
    for s in range(16):
        assert (np.diff(program.ops.key[rows][stream == s]) >= 0).all()


def test_small_stores_take_more_flits() -> None:
    up = {size: run(plan("mh-base", store_bytes=size)).up_busy.sum() for size in (32, 128)}
    assert up[32] / up[128] == pytest.approx((2 + 1 + 1) * 4 / (8 + 1 + 1), rel=0.01)


def test_polls_delay_the_first_tile() -> None:
    """Without GEMMs a row is a tile of its own: its result leaves one poll later."""
    programs = {ns: plan("mh-pkt", compute=False, poll_ns=ns) for ns in (50, 1000)}
    first = {ns: run(program).issue[ops_of(program, "combine.row")].min() for ns, program in programs.items()}
    assert first[1000] - first[50] == 950_000


@pytest.mark.parametrize("grid", ["expert", "turn"])
def test_blocks_take_sms_in_the_order_of_the_grid(grid: str) -> None:
    program = plan("mh-base", 512, grid=grid)
    trace, blocks, gemms = run(program), ops_of(program, "other.block"), ops_of(program, "gemm1")
    tile = program.ops.key[gemms]  # edges block -> gemm1 of the same tile
    started = {int(h): int(t) for t, h in zip(program.edges.tail, program.edges.head, strict=True) if t in set(blocks.tolist())}
    mine = gemms[program.ops.node[gemms] == 0]
    issued = trace.issue[[started[o] for o in mine.tolist()]]
    region = np.repeat(np.arange(program.n_regions), np.diff(program.regions.tile_ptr))[tile[program.ops.node[gemms] == 0]]
    in_time = region[np.argsort(issued, kind="stable")]
    assert in_time.tolist() == sorted(in_time.tolist()) if grid == "expert" else in_time[:4].tolist() == [0, 1, 2, 3]


def test_readiness_in_hardware_ends_gemm_1_no_later() -> None:
    ends = {}
    for name in ("moe-hub", "mh-pkt"):
        program = plan(name, 512, second_gemm="kernel")
        ends[name] = run(program).done[ops_of(program, "gemm1")].max()
    assert ends["moe-hub"] < ends["mh-pkt"]


@pytest.mark.sampled
@pytest.mark.parametrize("system", ["moe-hub", "mh-dep"])
def test_tiles_that_are_not_full_wait_for_the_totals(system: str) -> None:
    told = plan(system, totals="announced")
    trace = run(told)
    heard = np.array([trace.tile_ready[told.regions.tile_ptr[i]] for i, name in enumerate(told.regions.name) if name == "totals"])
    gemm = np.flatnonzero(np.isin(told.ops.template, [i for i, t in enumerate(told.templates) if t.operator == "gemm1" and t.tasks > 0]))
    part = told.ops.rows[gemm] < told.ops.rows[gemm].max()
    assert 0 < part.sum() < len(part)
    assert (trace.ready[gemm] >= heard[told.ops.node[gemm]])[part].all()
    edges = told.edges.head[np.isin(told.edges.tail, ops_of(told, "totals.known")) & (told.edges.tail_kind == Tail.OP_DONE)]
    assert set(edges.tolist()) == set(gemm[part].tolist())
    assert len(ops_of(plan(system), "totals")) == 0
    np.testing.assert_array_equal(trace.done, run_oracle(told).done)
    assert abs(run_packet(told).trace.time_ps / trace.time_ps - 1) < 0.05


def test_a_row_table_that_holds_the_open_rows_changes_nothing() -> None:
    program = plan("moe-hub")
    (table,) = program.tables
    assert (table.entries, table.banks, table.allocates) == (16 * 1024, 16, True)
    free = replace(program, tables=(), templates=tuple(replace(t, table=-1) for t in program.templates))
    assert run(program).digest() == run(free).digest()
    packets, without = run_packet(program), run_packet(free)
    assert packets.trace.digest() == without.trace.digest()
    asked = packets.statistics["al_tlb"]
    trains = ops_of(program, "dispatch.row")
    far = program.members.node[program.members.ptr[trains]] != program.ops.node[trains]
    assert (asked["misses"], asked["allocated"]) == (0, far.sum() // 2)


@pytest.mark.sampled
@pytest.mark.parametrize("system", ["mh-base", "mh-pkt", "mh-dep", "moe-hub"])
def test_a_small_row_table_reads_at_both_levels(system: str) -> None:
    program = plan(system, tokens=64, rows_at_once=32, rat_banks=1, rat_bank_entries=4)
    trace, _, counted = run_burst_counted(program)
    packets = run_packet(program)
    assert counted.reads > counted.rows // 4
    assert packets.statistics["al_tlb"]["misses"] > packets.statistics["al_tlb"]["allocated"] // 4
    assert trace.digest() == run_oracle(program).digest()
    assert packets.trace.time_ps == pytest.approx(trace.time_ps, rel=0.03)


def test_rows_side_by_side_leave_train_by_train() -> None:
    program = plan("moe-hub", rows_at_once=4)
    rows = ops_of(program, "dispatch.row")
    rows = rows[program.ops.node[rows] == 0]
    sent = rows[np.argsort(program.ops.prio[rows])]
    assert (program.ops.offset[sent[:16]] > 0).tolist() == 2 * (4 * [False] + 4 * [True])
    assert program.members.fill_row[sent[:4]].tolist() == program.members.fill_row[sent[4:8]].tolist()
