"""Kinds and points beyond 0001: sessions, chains, thresholds, cancelling, holds by data (see 0002)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy import HARDWARE, REQUEST, TILE_PS, WIRE, Toy

from dysharp.base.errors import SimulationError
from dysharp.oracle import run_oracle
from dysharp.program.tables import Chaining, Head, Kind, Point, Tail

LAT = HARDWARE.lat
PULLED = REQUEST + 2 * LAT + HARDWARE.responder + LAT + WIRE + LAT


def test_reducing_pushes_are_acknowledged_together():
    t = Toy(3)
    session = t.b.sums([0], [2], 0)
    row, tile = t.rows(0)
    early = t.op("early", Kind.PUSH_REDUCE, 1, {0: [row]}, session=session)
    wait = t.op("wait", Kind.DELAY, 2, ps=7000)
    late = t.op("late", Kind.PUSH_REDUCE, 2, {0: [row]}, after=(wait,), session=session)
    trace = run_oracle(t.build())
    visible = 7000 + LAT + WIRE + LAT
    assert trace.tile_ready[tile] == visible
    assert trace.member.tolist() == [visible, visible]
    assert trace.done[early] == trace.done[late] == visible + HARDWARE.ack
    assert trace.down_busy[0] == WIRE  # one sum, not two contributions


def test_contribution_frees_its_buffer_before_the_sum_is_complete():
    t = Toy(3, hardware=replace(HARDWARE, vc_bytes=WIRE))
    session = t.b.sums([0], [2], 0)
    t.op("half", Kind.PUSH_REDUCE, 1, {0: []}, session=session)
    other = t.op("other", Kind.PUT, 1, {2: []})
    t.op("half", Kind.PUSH_REDUCE, 2, {0: []}, session=session, after=(other,))
    assert run_oracle(t.build()).start[other] == 2 * LAT  # exposed after a hop, credit after another


def two_sums(places: int) -> tuple[Toy, list[int]]:
    """Two sums of one home, each of two contributions. The second sum comes when the first has one contribution."""
    t = Toy(3)
    sums = t.b.sums([0, 0], [2, 2], places)
    row, tile = zip(*(t.rows(0) for _ in range(2)), strict=True)
    wait = t.op("wait", Kind.DELAY, 2, ps=50_000)
    t.op("first", Kind.PUSH_REDUCE, 1, {0: [row[0]]}, session=sums)
    for node in (1, 2):
        t.op("second", Kind.PUSH_REDUCE, node, {0: [row[1]]}, session=sums + 1)
    t.op("first", Kind.PUSH_REDUCE, 2, {0: [row[0]]}, session=sums, after=(wait,))
    return t, list(tile)


def test_sum_without_a_place_passes():
    t, tile = two_sums(1)
    trace = run_oracle(t.build())
    visible = trace.member.tolist()
    assert visible[0] == visible[3] == trace.tile_ready[tile[0]]  # the first sum is added
    assert visible[1] != visible[2]
    assert trace.tile_ready[tile[1]] == max(visible[1:3])  # the home adds the second one
    assert (trace.done[[2, 3]] == np.array(visible[1:3]) + HARDWARE.ack).all()
    assert trace.down_busy[0] == 3 * WIRE


@pytest.mark.parametrize("places", [0, 2])
def test_sums_with_places_are_added(places):
    t, _ = two_sums(places)
    assert run_oracle(t.build()).down_busy[0] == 2 * WIRE


def test_late_load_is_answered_from_the_switch():
    t = Toy(3)
    session = t.b.sums([0], [2], 0)
    first = t.op("first", Kind.MERGED_LOAD, 1, {0: []}, session=session)
    wait = t.op("wait", Kind.DELAY, 2, ps=9000)
    late = t.op("late", Kind.MERGED_LOAD, 2, {0: []}, session=session, after=(wait,))
    trace = run_oracle(t.build())
    assert trace.done[first] == PULLED
    assert trace.done[late] == 9000 + LAT + WIRE + LAT
    assert trace.down_busy[0] == REQUEST


def test_load_beyond_the_expected_begins_a_new_session():
    t = Toy(2)
    session = t.b.sums([0], [1], 0)
    first = t.op("first", Kind.MERGED_LOAD, 1, {0: []}, session=session)
    t.op("again", Kind.MERGED_LOAD, 1, {0: []}, session=session, after=(first,))
    assert run_oracle(t.build()).done.tolist() == [PULLED, 2 * PULLED]


def test_sum_that_never_completes_is_a_deadlock():
    t = Toy(2)
    session = t.b.sums([0], [2], 0)
    t.op("half", Kind.PUSH_REDUCE, 1, {0: []}, session=session)
    with pytest.raises(SimulationError, match="waits for the other members of session 0"):
        run_oracle(t.build())


@pytest.mark.parametrize(("mode", "other_starts"), [(Chaining.HOLD, 20_000), (Chaining.YIELD, 1000)])
def test_chain_holds_or_yields_its_slot_while_it_waits(mode, other_starts):
    t = Toy(1)
    chain = t.b.chain(t.pools[0], mode)
    gate = t.op("gate", Kind.DELAY, 0, ps=10_000)
    t.op("first", Kind.COMPUTE, 0, chain=chain, ps=1000)
    t.op("second", Kind.COMPUTE, 0, chain=chain, ps=10_000, after=(gate,))
    other = t.op("other", Kind.COMPUTE, 0, ps=1000)
    assert run_oracle(t.build()).start[other] == other_starts


def test_holding_chain_passes_a_queue_that_needs_slots():
    t = Toy(1)
    chain = t.b.chain(t.pools[0], Chaining.HOLD)
    first = t.op("first", Kind.COMPUTE, 0, chain=chain)
    t.op("other", Kind.COMPUTE, 0, prio=-1, after=(first,))
    t.op("second", Kind.COMPUTE, 0, chain=chain)
    assert run_oracle(t.build()).start.tolist() == [0, 2 * TILE_PS, TILE_PS]


@pytest.mark.parametrize("announced", [1, 3])
def test_announced_threshold_counts_what_was_promised(announced):
    t = Toy(2)
    signal = t.op("n", Kind.SIGNAL, 0, {1: []}, value=announced)
    delays = [t.op("event", Kind.DELAY, 1, ps=10_000) for _ in range(4)]
    join = t.op("all", Kind.JOIN, 1, after=(signal, *delays), threshold=0)
    assert run_oracle(t.build()).done[join] == announced * 10_000


def test_announcement_after_the_events_still_fires():
    t = Toy(2)
    wait = t.op("wait", Kind.DELAY, 0, ps=50_000)
    signal = t.op("n", Kind.SIGNAL, 0, {1: []}, value=1, after=(wait,))
    event = t.op("event", Kind.DELAY, 1, ps=10_000)
    join = t.op("all", Kind.JOIN, 1, after=(signal, event), threshold=0)
    trace = run_oracle(t.build())
    assert (trace.done[join], trace.cause[join]) == (trace.done[signal], signal)


def test_cancelled_join_takes_its_dependants_along():
    t = Toy(1)
    stop = t.op("stop", Kind.DELAY, 0, ps=1000)
    never = t.op("surplus", Kind.JOIN, 0, threshold=1)
    tile = t.op("tile", Kind.COMPUTE, 0, after=(never,))
    behind = t.op("behind", Kind.COMPUTE, 0, after=(tile, stop))
    count = t.op("grid done", Kind.JOIN, 0, after=(stop, tile), threshold=1)
    t.b.edges(Tail.OP_DONE, stop, Head.JOIN_CANCEL, never)
    trace = run_oracle(t.build())
    for op in (never, tile, behind):
        assert trace.ready[op] == trace.issue[op] == trace.done[op] == -1
    assert trace.done[count] == 1000


def test_cancelling_a_join_that_fired_does_nothing():
    t = Toy(1)
    stop = t.op("stop", Kind.DELAY, 0, ps=1000)
    join = t.op("join", Kind.JOIN, 0)
    t.b.edges(Tail.OP_DONE, stop, Head.JOIN_CANCEL, join)
    assert run_oracle(t.build()).done.tolist() == [1000, 0]


def test_chain_and_stream_go_on_after_a_cancelled_op():
    t = Toy(1)
    chain = t.b.chain(t.pools[0], Chaining.HOLD)
    stop = t.op("stop", Kind.DELAY, 0, ps=1000)
    never = t.op("surplus", Kind.JOIN, 0, threshold=1)
    t.op("tile 0", Kind.COMPUTE, 0, chain=chain, ps=500)
    t.op("tile 1", Kind.COMPUTE, 0, chain=chain, after=(never,))
    last = t.op("tile 2", Kind.COMPUTE, 0, chain=chain)
    other = t.op("other", Kind.COMPUTE, 0)
    t.b.edges(Tail.OP_DONE, stop, Head.JOIN_CANCEL, never)
    trace = run_oracle(t.build())
    assert trace.start[last] == 1000
    assert trace.start[other] == trace.done[last]


def test_table_touched_by_data_overflows_but_blocks_issue():
    t = Toy(2)
    table = t.b.semaphore(1, 1, "table", "rows")
    rows = [t.rows(1)[0] for _ in range(2)]
    for row in rows:
        t.op("put", Kind.PUT, 0, {1: [row]})
    closed = t.op("closed", Kind.DELAY, 1, ps=20_000)
    reader = t.op("reader", Kind.COMPUTE, 1, rows=(rows[0],))
    for row in rows:
        t.b.hold(table, row, closed, acquire_at=Point.ROW_FIRST_TOUCH)
    t.b.hold(table, reader)
    trace = run_oracle(t.build())
    assert trace.ready[reader] == LAT + WIRE + LAT
    assert trace.issue[reader] == 20_000


def test_hold_may_begin_with_a_join_and_end_with_an_issue():
    t = Toy(1)
    slots = t.b.semaphore(0, 1)
    first = t.op("first", Kind.DELAY, 0, ps=100)
    second = t.op("second", Kind.DELAY, 0, ps=100)
    join = t.op("join", Kind.JOIN, 0, after=(first, second))
    user = t.op("user", Kind.COMPUTE, 0, after=(first,))
    release = t.op("release", Kind.PUT, 0, {0: []}, after=(join,))
    t.b.hold(slots, join, release, acquire_at=Point.JOIN_FIRST_EVENT, release_at=Point.OP_ISSUED)
    t.b.hold(slots, user)
    assert run_oracle(t.build()).issue[user] == 200


def test_edges_from_issue_and_delivery():
    t = Toy(2)
    put = t.op("put", Kind.PUT, 0, {1: []})
    on_issue, on_delivery = (t.op(name, Kind.JOIN, 1) for name in ("issued", "delivered"))
    t.b.edges(Tail.OP_ISSUED, put, Head.OP_ISSUE, on_issue)
    t.b.edges(Tail.MEMBER_DELIVERED, 0, Head.OP_ISSUE, on_delivery)
    assert run_oracle(t.build()).done[1:].tolist() == [0, LAT + WIRE + LAT]
