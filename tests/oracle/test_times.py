"""Times of single ops on an idle machine, added up by hand (1 byte = 1 ps; see toy.py for the machine)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy import ACK, HARDWARE, REQUEST, ROW, TILE_PS, WIRE, Toy

from dysharp.base.errors import ProgramError, SimulationError
from dysharp.oracle import run_oracle
from dysharp.program.tables import Alloc, Discipline, Head, HubTable, Kind, Program, Tail

LAT, ACK_PS, RESPOND, LOCAL = HARDWARE.lat, HARDWARE.ack, HARDWARE.responder, HARDWARE.local


def test_put_is_one_serialisation_and_two_hops():
    t = Toy(2)
    t.op("put", Kind.PUT, 0, {1: []})
    trace = run_oracle(t.build())
    delivered = LAT + WIRE + LAT  # the down server cuts through: it starts a hop after the up server
    assert trace.start.tolist() == [0]
    assert trace.end.tolist() == [WIRE]
    assert trace.member.tolist() == [delivered]
    assert trace.done.tolist() == [delivered + ACK_PS]
    assert trace.up_busy.tolist() == [WIRE, ACK]
    assert trace.down_busy.tolist() == [ACK, WIRE]


def test_put_to_its_own_node_needs_no_link():
    t = Toy(1)
    t.op("put", Kind.PUT, 0, {0: []})
    trace = run_oracle(t.build())
    assert (trace.issue[0], trace.start[0], trace.end[0], trace.done[0]) == (0, 0, 0, LOCAL)
    assert trace.up_busy.tolist() == trace.down_busy.tolist() == [0]


def test_set_without_members_is_done_when_issued():
    t = Toy(1)
    t.op("nobody", Kind.MULTICAST, 0, {})
    t.op("nothing", Kind.PULL_REDUCE, 0, {}, after=(0,))
    trace = run_oracle(t.build())
    assert trace.done.tolist() == trace.start.tolist() == [0, 0]


def test_multicast_pays_the_up_link_once():
    t = Toy(3)
    t.op("multicast", Kind.MULTICAST, 0, {0: [], 1: [], 2: []})
    trace = run_oracle(t.build())
    assert trace.member.tolist() == [LOCAL, LAT + WIRE + LAT, LAT + WIRE + LAT]
    assert trace.up_busy.tolist() == [WIRE, ACK, ACK]
    assert trace.done[0] == LAT + WIRE + LAT + ACK_PS


def test_pull_reduce_is_request_response_and_one_result():
    t = Toy(3)
    t.op("pull", Kind.PULL_REDUCE, 0, {0: [], 1: [], 2: []})
    trace = run_oracle(t.build())
    responds = REQUEST + LAT + LAT + RESPOND  # the request's last byte cuts through
    assert trace.member.tolist() == [LOCAL, responds, responds]
    assert trace.end[0] == responds + WIRE
    assert trace.done[0] == responds + LAT + WIRE + LAT
    assert trace.down_busy.tolist() == [WIRE, REQUEST, REQUEST]


def test_request_copy_does_not_wait_for_another_members_response():
    t = Toy(4)
    # Node 2's down link is busy, so node 1 has answered before the request reaches node 2.
    for _ in range(4):
        t.op("put", Kind.PUT, 0, {2: []})
    t.op("pull", Kind.PULL_REDUCE, 3, {1: [], 2: []})
    trace = run_oracle(t.build())
    assert trace.member[4] == REQUEST + LAT + LAT + RESPOND
    # First come, first served: node 0's first copy crosses before the request of node 3.
    assert trace.member[5] == LAT + WIRE + REQUEST + LAT + RESPOND


def test_get_is_a_pull_of_one_member():
    times = []
    for kind in (Kind.GET, Kind.PULL_REDUCE):
        t = Toy(2)
        t.op("get", kind, 0, {1: []})
        times.append(run_oracle(t.build()))
    assert times[0].digest() == times[1].digest()
    assert times[0].time_ps == REQUEST + LAT + LAT + RESPOND + LAT + WIRE + LAT


def test_stripe_moves_the_tail_but_not_the_server():
    t = Toy(
        2, hardware=replace(HARDWARE, n_links=3)
    )  # 8 packets on 3 links: the fullest has 3, the average 8/3
    t.op("put", Kind.PUT, 0, {1: []})
    t.op("put", Kind.PUT, 0, {1: []})
    trace = run_oracle(t.build())
    stripe = 144
    assert trace.start.tolist() == [0, WIRE]
    assert trace.end.tolist() == [WIRE + stripe, 2 * WIRE + stripe]
    assert trace.member[0] == WIRE + stripe + 2 * LAT


def test_two_sources_share_one_down_link_in_turn():
    t = Toy(3)
    for source in (0, 0, 1, 1):
        t.op("put", Kind.PUT, source, {2: []})
    trace = run_oracle(t.build())
    first = LAT + WIRE + LAT
    assert trace.member.tolist() == [first, first + 2 * WIRE, first + WIRE, first + 3 * WIRE]


def test_acknowledgement_debt_is_paid_by_the_next_train():
    t = Toy(2)
    t.op("put", Kind.PUT, 0, {1: []})
    # Node 1 is sending its third train when the copy is delivered: the fourth pays.
    for _ in range(4):
        t.op("put", Kind.PUT, 1, {0: []})
    trace = run_oracle(t.build())
    assert trace.end.tolist()[1:] == [WIRE, 2 * WIRE, 3 * WIRE, 4 * WIRE + ACK]


def test_acknowledgements_take_turns_with_packets_and_wait_behind_the_output_buffer():
    t = Toy(2, hardware=replace(HARDWARE, ack_turns=True))
    t.op("put", Kind.PUT, 0, {1: []})
    for _ in range(4):
        t.op("put", Kind.PUT, 1, {0: []})
    visible = LAT + WIRE + LAT
    # Node 1 is sending: each of 8 acknowledgements waits for a packet. Its second train stands at node 0's down link.
    assert run_oracle(t.build()).done[0] == visible + WIRE + ACK + ACK_PS + WIRE


def test_an_acknowledgement_alone_takes_its_own_bytes():
    t = Toy(2, hardware=replace(HARDWARE, ack_turns=True))
    t.op("put", Kind.PUT, 0, {1: []})
    assert run_oracle(t.build()).done[0] == LAT + WIRE + LAT + ACK + ACK_PS


def test_unequal_links_end_a_train_late_and_free_the_server_early():
    t = Toy(2, hardware=replace(HARDWARE, n_links=3, hashed_links=True))
    for _ in range(2):  # 8 packets of 432 ps: links 0 and 1 take three, link 2 two
        t.op("put", Kind.PUT, 0, {1: []}, key=0)
    trace = run_oracle(t.build())
    assert trace.start.tolist() == [0, WIRE]
    assert trace.end.tolist() == [3 * 432, 6 * 432]
    assert trace.member.tolist() == [3 * 432 + 2 * LAT, 6 * 432 + 2 * LAT]


def test_idle_time_forgives_debt():
    t = Toy(2)
    first = t.op("put", Kind.PUT, 0, {1: []})
    t.op("put", Kind.PUT, 1, {0: []}, after=(first,))
    trace = run_oracle(t.build())
    assert trace.end[1] == trace.start[1] + WIRE


@pytest.mark.parametrize("vc_bytes", [1, WIRE, 2 * WIRE - 1])
def test_full_channel_waits_for_the_credit(vc_bytes):
    t = Toy(2, hardware=replace(HARDWARE, vc_bytes=vc_bytes))
    t.op("put", Kind.PUT, 0, {1: []})
    t.op("put", Kind.PUT, 0, {1: []})
    trace = run_oracle(t.build())
    assert trace.start[1] == LAT + LAT  # the copy crosses into the empty output buffer at LAT, the credit takes a hop


def test_second_channel_takes_the_second_train():
    t = Toy(2, hardware=replace(HARDWARE, vc_bytes=WIRE, n_vcs=2))
    t.op("put", Kind.PUT, 0, {1: []})
    t.op("put", Kind.PUT, 0, {1: []})
    assert run_oracle(t.build()).start.tolist() == [0, WIRE]


def test_full_output_holds_back_the_crossing():
    # One channel of two trains; the output buffer takes one train less than a hop holds (HARDWARE has rate 1 B per ps).
    hardware = replace(HARDWARE, n_vcs=1, vc_bytes=2 * WIRE, lat=0, ack=0, notify=0)
    t = Toy(3, hardware=hardware)
    for source in (0, 0, 2):
        t.op("put", Kind.PUT, source, {1: []})
    trace = run_oracle(t.build())
    # Nodes 0 and 2 send at once, and node 0 arrives first. Both trains have room in the buffer of node 1.
    assert trace.member.tolist() == [WIRE, 3 * WIRE, 2 * WIRE]
    assert hardware.output_bytes == 2 * WIRE


def test_first_touch_of_a_row_is_a_miss():
    t = Toy(2)
    table = t.b.table(HubTable("places", entries=1, misses=1, miss_ps=10_000))
    row, _ = t.rows(1)
    t.op("put", Kind.PUT, 0, {1: [row]})
    program = with_table(t.build(), table)
    assert run_oracle(program).member.tolist() == [LAT + WIRE + LAT + 10_000]


def test_a_miss_without_a_register_waits_for_the_one_before():
    t = Toy(2)
    table = t.b.table(HubTable("places", entries=0, misses=1, miss_ps=10_000))
    row, _ = t.rows(1, 2)
    for i in range(2):
        t.op("put", Kind.PUT, 0, {1: [row + i]})
    first = LAT + WIRE + LAT + 10_000
    assert run_oracle(with_table(t.build(), table)).member.tolist() == [first, first + 10_000]


def test_a_row_that_was_dropped_from_the_cache_misses_again():
    t = Toy(2)
    table = t.b.table(HubTable("places", entries=1, misses=0, miss_ps=10_000))
    rows = [t.rows(1)[0] for _ in range(2)]
    pushes = [t.op("put", Kind.PUT, 0, {1: [row]}) for row in rows]
    pull = t.op("get", Kind.GET, 0, {1: [rows[0]]}, after=tuple(pushes))
    trace = run_oracle(with_table(t.build(), table))
    start = trace.start[pull]
    assert trace.member[pull] == start + REQUEST + LAT + LAT + 10_000 + RESPOND


def test_a_row_in_the_cache_is_known_at_once():
    t = Toy(2)
    table = t.b.table(HubTable("places", entries=2, misses=0, miss_ps=10_000))
    row, _ = t.rows(1)
    push = t.op("put", Kind.PUT, 0, {1: [row]})
    pull = t.op("get", Kind.GET, 0, {1: [row]}, after=(push,))
    trace = run_oracle(with_table(t.build(), table))
    assert trace.member[pull] == trace.start[pull] + REQUEST + LAT + LAT + RESPOND


def parts(t: Toy, row: int, node: int) -> list[int]:
    """The two halves of `row` as two trains from `node` to node 1."""
    return [t.op("put", Kind.PUT, node, {1: [row]}, n_bytes=ROW // 2) for _ in range(2)]


def test_a_new_row_takes_its_place_in_a_row_table_without_a_read():
    t = Toy(2)
    table = t.b.table(HubTable("rat", entries=1, misses=1, miss_ps=10_000, allocates=True))
    row, _ = t.rows(1, 2)
    for i in range(2):
        t.op("put", Kind.PUT, 0, {1: [row + i]})
    assert run_oracle(with_table(t.build(), table)).member.tolist() == [LAT + WIRE + LAT, LAT + 2 * WIRE + LAT]


@pytest.mark.parametrize(("entries", "banks", "reads"), [(2, 1, 0), (2, 2, 0), (1, 1, 2)])
def test_a_spilled_row_is_read_before_its_next_train(entries, banks, reads):
    """Nodes 0 and 2 send two trains each, which arrive in turn. With one entry the rows spill each other."""
    t = Toy(3)
    table = t.b.table(HubTable("rat", entries=entries, misses=0, miss_ps=50_000, allocates=True, banks=banks))
    row, _ = t.rows(1, 2)
    for node, one in ((0, row), (2, row + 1)):
        parts(t, one, node)
    trace = run_oracle(with_table(t.build(), table))
    free = run_oracle(t.build())
    late = trace.member - free.member
    assert (late > 0).sum() >= reads
    assert (late.max() >= 50_000) == (reads > 0)
    assert late[0] == 0


def with_table(program: Program, table: int) -> Program:
    """`program` with all its transfers asking `table`."""
    return replace(program, templates=tuple(replace(t, table=table) for t in program.templates))


def test_gang_takes_the_slots_there_are():
    t = Toy(1, slots=2)
    t.op("gang", Kind.COMPUTE, 0)
    program = t.build()
    three = replace(program, templates=(replace(program.templates[0], tasks=3),))
    assert run_oracle(three).done.tolist() == [2 * TILE_PS]


def test_window_of_one_serialises():
    t = Toy(2)
    window = t.b.semaphore(0, 1)
    ops = [t.op("put", Kind.PUT, 0, {1: []}) for _ in range(2)]
    for op in ops:
        t.b.hold(window, op)
    trace = run_oracle(t.build())
    assert trace.issue.tolist() == [0, trace.done[0]]
    assert trace.ready.tolist() == [0, 0]


def test_first_touch_packs_in_order_of_arrival():
    t = Toy(2)
    _, row, _ = t.b.regions(1, 3, ROW, 2)
    for r in (2, 0, 1):
        t.op("put", Kind.PUT, 0, {1: [row + r]})
    trace = run_oracle(t.build())
    assert trace.row_slot.tolist() == [1, 2, 0]
    assert trace.tile_ready.tolist() == [LAT + 2 * WIRE + LAT, LAT + 3 * WIRE + LAT]


def test_cause_names_the_last_reason():
    t = Toy(2)
    row, tile = t.rows(1)
    put = t.op("put", Kind.PUT, 0, {1: [row]})
    gemm = t.op("tile", Kind.COMPUTE, 1, tiles=(tile,))
    back = t.op("back", Kind.JOIN, 0)
    t.notify(tile, gemm, {row: back})
    trace = run_oracle(t.build())
    assert trace.cause.tolist() == [-1, put, gemm]
    assert trace.done[back] == LAT + WIRE + LAT + TILE_PS + HARDWARE.notify


def test_paced_issuer_leaves_an_interval():
    t = Toy(2)
    paced = t.b.issuer(0, Discipline.READY_FIFO, interval_ps=2500)
    for _ in range(3):
        t.op("put", Kind.PUT, 0, {1: []}, issuer=paced)
    assert run_oracle(t.build()).issue.tolist() == [0, 2500, 5000]


def test_round_robin_over_destinations_then_key():
    t = Toy(3)
    rr = t.b.issuer(0, Discipline.ROUND_ROBIN)
    for destination, key in ((1, 1), (1, 0), (1, 2), (2, 0)):
        t.op("put", Kind.PUT, 0, {destination: []}, issuer=rr, key=key)
    assert run_oracle(t.build()).start.tolist() == [2 * WIRE, 0, 3 * WIRE, WIRE]


def test_response_waits_for_its_edge():
    t = Toy(2)
    get = t.op("get", Kind.GET, 0, {1: []})
    tile = t.op("tile", Kind.COMPUTE, 1)
    t.b.edges(Tail.OP_DONE, tile, Head.MEMBER_RESPOND, get)
    assert run_oracle(t.build()).member.tolist() == [TILE_PS]


def test_deadlock_says_who_waits_for_what():
    t = Toy(2)
    row, tile = t.rows(1, 2, alloc=Alloc.PREFIX)
    t.op("put", Kind.PUT, 0, {1: [row]})
    t.op("tile", Kind.COMPUTE, 1, tiles=(tile,))
    with pytest.raises(
        SimulationError, match=r"deadlock at \d+ ps: 1 of 2 .*waits for tile 0 \(1 rows complete\)"
    ):
        run_oracle(t.build())


def test_deadlock_of_a_window_names_the_semaphore():
    t = Toy(2)
    window = t.b.semaphore(0, 1, "tokens")
    op = t.op("put", Kind.PUT, 0, {1: []})
    t.b.hold(window, op, amount=2)
    with pytest.raises(SimulationError, match=r"waits for semaphore node\[0\]\.tokens \(0 of 1 held\)"):
        run_oracle(t.build())


def test_zero_duration_is_refused():
    t = Toy(1)
    t.op("tile", Kind.COMPUTE, 0, ps=0)
    with pytest.raises(ProgramError, match="duration of 0 ps, expected more than 0"):
        run_oracle(t.build())
