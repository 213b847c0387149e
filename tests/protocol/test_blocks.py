"""Invariants of the protocol blocks under any order of events."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dysharp.protocol
from dysharp.protocol import al_table, collect, lsu, readiness, reduction, region, tracker
from dysharp.protocol.frozen import Table

KEYS = st.tuples(st.integers(0, 1), st.integers(0, 4))
quick = settings(max_examples=150, deadline=None)


def run(block, state, *events):
    """The state after `events`, and all outputs."""
    outputs = []
    for event in events:
        state, more = block.step(state, event)
        outputs += more
    return state, outputs


def test_readme_example_runs():
    page = Path(dysharp.protocol.__file__).with_name("README.md")
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def test_a_tag_waits_for_one_contribution_at_least():
    with pytest.raises(AssertionError, match="a opens without targets"):
        collect.step(collect.empty(), collect.Open("a", 0))
    state, _ = collect.step(collect.empty(), collect.Open("a", 1))
    assert collect.step(state, collect.PartialSum("a", 0, 1, 5))[1] == (collect.Complete("a", 0, 5),)


def test_table_keeps_its_order_and_its_past():
    old = Table([("a", 1), ("b", 2)])
    assert list(old.put("a", 3).items()) == [("a", 3), ("b", 2)]
    assert list(old.last("a", 3)) == ["b", "a"]
    assert old.last("b", 2) is old
    assert list(old.without("a").without("x")) == ["b"]
    assert old == Table([("a", 1), ("b", 2)]) != Table([("b", 2), ("a", 1)])
    assert hash(old) == hash(Table([("a", 1), ("b", 2)]))
    assert (old["a"], old.get("x"), "x" in old, len(old), old.first()) == (1, None, False, 2, "a")
    assert repr(old) == "Table([('a', 1), ('b', 2)])"


# ---- region ------------------------------------------------------------------------------------------------


@quick
@given(st.integers(1, 9), st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_region_packs_densely_and_every_tile_becomes_ready_once(n_rows, tile_rows, first_touch, random):
    state = region.empty(n_rows, 64, tile_rows, first_touch=first_touch)
    fills = [region.Fill(row, 32) for row in range(n_rows) for _ in range(2)]
    random.shuffle(fills)
    n_tiles, ready_at = -(-n_rows // tile_rows), {}
    for i, fill in enumerate(fills):
        state = region.step(state, fill)
        for tile in range(n_tiles):
            if region.tile_ready(state, tile):
                ready_at.setdefault(tile, i)
            else:
                assert tile not in ready_at
    assert sorted(state.slot) == list(range(n_rows))
    assert all(state.row_at[slot] == row for row, slot in enumerate(state.slot))
    assert sorted(ready_at) == list(range(n_tiles))
    first_seen = list(dict.fromkeys(f.row for f in fills))
    assert list(state.row_at) == (first_seen if first_touch else list(range(n_rows)))


# ---- AL table ----------------------------------------------------------------------------------------------


@quick
@given(st.integers(1, 3), st.integers(1, 3), st.lists(st.tuples(st.integers(0, 2), KEYS), max_size=60))
def test_al_table_binds_once_and_densely_and_answers_every_packet(tlb_entries, mshrs, steps):
    state = al_table.empty(2, tlb_entries, mshrs)
    bound: dict[al_table.Key, int] = {}
    waiting: dict[int, al_table.Key] = {}
    for packet, (kind, key) in enumerate(steps):
        event = al_table.MemoryAnswer(key) if kind == 0 else al_table.Lookup(key, packet, kind == 1)
        if kind:
            waiting[packet] = key
        state, outputs = al_table.step(state, event)
        for output in outputs:
            if isinstance(output, al_table.BlockBound):
                assert output.key not in bound
                bound[output.key] = output.layout
            elif isinstance(output, al_table.Found):
                assert bound[output.key] == output.layout
                assert waiting.pop(output.packet) == output.key
            elif isinstance(output, al_table.Unbound):
                assert output.key not in bound
                assert waiting.pop(output.packet) == output.key
            elif isinstance(output, al_table.Full):
                assert len(state.pending) == mshrs
                assert waiting.pop(output.packet) == output.key
        assert len(state.tlb) <= tlb_entries
        assert len(state.pending) <= mshrs
        assert not set(state.tlb) & set(state.pending)
        for expert in (0, 1):
            assert [i for _, i in state.tables[expert].items()] == list(range(len(state.tables[expert])))
            assert {(expert, a): i for a, i in state.tables[expert].items()} == {k: i for k, i in bound.items() if k[0] == expert}
    for key in list(state.pending):
        state, outputs = al_table.step(state, al_table.MemoryAnswer(key))
        for output in outputs:
            if not isinstance(output, al_table.BlockBound):
                del waiting[output.packet]
    assert len(state.pending) == len(waiting) == 0


def test_al_table_lookups_of_a_pending_block_share_one_answer():
    lookups = [al_table.Lookup((0, 9), packet, packet == 1) for packet in range(3)]
    state, outputs = run(al_table, al_table.empty(1, 4), *lookups)
    assert outputs == [al_table.ReadTable((0, 9))]
    state, outputs = run(al_table, state, al_table.MemoryAnswer((0, 9)), al_table.MemoryAnswer((0, 9)))
    assert outputs == [al_table.BlockBound((0, 9), 0), *(al_table.Found(packet, (0, 9), 0) for packet in range(3))]
    assert al_table.is_hit(state, (0, 9))
    assert al_table.layout_of(state, (0, 9)) == 0


def test_al_tlb_drops_the_least_recently_used_entry():
    state = al_table.empty(1, 2)
    for index in (5, 6, 5, 7):
        state, _ = run(al_table, state, al_table.Lookup((0, index), None, True), al_table.MemoryAnswer((0, index)))
    assert list(state.tlb) == [(0, 5), (0, 7)]  # 6 came after 5, but was not looked up again
    assert list(state.tables[0]) == [5, 6, 7]


def test_al_table_does_not_allocate_for_a_read():
    state, outputs = run(al_table, al_table.empty(1, 2), al_table.Lookup((0, 3), "p", False), al_table.MemoryAnswer((0, 3)))
    assert outputs == [al_table.ReadTable((0, 3)), al_table.Unbound("p", (0, 3))]
    assert al_table.layout_of(state, (0, 3)) == -1
    assert len(state.tlb) == 0


def test_al_table_of_the_forward_serves_the_backward():
    state = al_table.bound(2, 1, [((0, 4), 0), ((1, 4), 0), ((0, 2), 1)])
    _, outputs = run(al_table, state, al_table.Lookup((0, 2), "p", True), al_table.MemoryAnswer((0, 2)))
    assert outputs[-1] == al_table.Found("p", (0, 2), 1)


# ---- readiness ---------------------------------------------------------------------------------------------


@quick
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_tokens_are_ready_exactly_when_all_have_told(expected, entries, random):
    notices = [(token, expert) for token, n in enumerate(expected) for expert in range(n)]
    told = notices + notices[: len(notices) // 2]  # some are sent twice
    random.shuffle(told)
    state = readiness.empty(tuple(expected), entries)
    seen: set[readiness.Notice] = set()
    for notice in told:
        known = notice in seen
        seen.add(notice)
        state, outputs = readiness.step(state, notice)
        for token, n in enumerate(expected):
            count = sum(t == token for t, _ in seen)
            assert readiness.n_ready(state, token) == count
            assert (token in state.ready) == (count == n)
            completes = not known and token == notice[0] and count == n
            assert (readiness.TokenReady(token) in outputs) == completes
        assert len(state.on_chip) <= entries
        assert not set(state.on_chip) & set(state.memory)
    assert sorted(state.ready) == list(range(len(expected)))
    assert len(state.on_chip) == len(state.memory) == 0


# ---- reduction and collection ------------------------------------------------------------------------------


@quick
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(1, 3),
    st.lists(st.integers(0, 4), max_size=8),
    st.randoms(use_true_random=False),
)
def test_sums_survive_any_eviction(counts, entries, expiries, random):
    """`counts[session]`: targets behind each response. Requests come before their responses, in any order else."""
    expected = [sum(c) for c in counts]
    unsent = [[reduction.Response(s, n, 10**s * n) for n in c] for s, c in enumerate(counts)]
    todo = [*range(len(counts)), *(s for s, c in enumerate(counts) for _ in c), *(-1 - s for s in expiries if s < len(counts))]
    random.shuffle(todo)
    port, source, requested, totals = reduction.empty(entries), collect.empty(), set(), {}
    for s in range(len(counts)):
        source, _ = collect.step(source, collect.Open(s, expected[s]))
    for s in todo:
        if s < 0:
            event = reduction.Expire(-1 - s)
        elif s not in requested:
            event = reduction.Request(s, expected[s])
            requested.add(s)
        else:
            event = unsent[s].pop()
        port, outputs = reduction.step(port, event)
        assert len(port.table) <= entries
        assert all(entry.remaining > 0 and entry.remaining + entry.count == expected[s] for s, entry in port.table.items())
        for piece in outputs:
            assert isinstance(piece, reduction.Result) == (piece.count == expected[piece.session] and not isinstance(piece, reduction.Bypass))
            source, done = collect.step(source, collect.PartialSum(piece.session, 0, piece.count, piece.value))
            totals |= {d.tag: d.value for d in done}
    assert totals == {s: 10**s * n for s, n in enumerate(expected)}
    assert len(port.table) == len(source.open) == 0


def test_one_packet_per_session_without_eviction():
    events = [reduction.Request("a", 3), reduction.Request("b", 2)]
    events += [reduction.Response(session, 1, 1) for session in "abab"]
    port, outputs = run(reduction, reduction.empty(2), *events, reduction.Response("a", 1, 1))
    assert outputs == [reduction.Result("b", 2, 2), reduction.Result("a", 3, 3)]
    assert len(port.table) == 0


def test_entry_without_data_leaves_silently():
    port, outputs = run(reduction, reduction.empty(1), reduction.Request("a", 2), reduction.Request("b", 1), reduction.Expire("b"))
    assert outputs == []
    assert len(port.table) == 0
    assert run(reduction, port, reduction.Expire("b")) == (port, [])


def test_arrays_are_payloads():
    one = np.ones(4, np.float32)
    events = [reduction.Request("a", 3), reduction.Response("a", 2, one), reduction.Response("a", 1, 2 * one)]
    _, (result,) = run(reduction, reduction.empty(1), *events)
    assert (result.value == 3).all()
    pieces = [collect.Open("a", 4), collect.PartialSum("a", 0, 3, result.value), collect.PartialSum("a", 0, 1, one)]
    _, (complete,) = run(collect, collect.empty(), *pieces)
    assert (complete.value == 4).all()
    assert complete.value.dtype == np.float32


def test_reduction_refuses_what_cannot_be():
    port, _ = run(reduction, reduction.empty(2), reduction.Request("a", 2))
    for event, text in (
        (reduction.Request("a", 2), "second request of a"),
        (reduction.Request("b", 0), "request of b without targets"),
        (reduction.Response("a", 3, 1), "a: 3 targets answer, 2 are left"),
    ):
        with pytest.raises(AssertionError, match=text):
            reduction.step(port, event)


def test_first_complete_attempt_wins_and_pieces_of_attempts_never_mix():
    state, outputs = run(collect, collect.empty(), collect.Open("a", 2), collect.PartialSum("a", 0, 1, 5), collect.PartialSum("a", 1, 1, 7))
    assert outputs == []
    state, outputs = run(collect, state, collect.PartialSum("a", 1, 1, 8), collect.PartialSum("a", 0, 1, 6))
    assert outputs == [collect.Complete("a", 1, 15), collect.Discarded("a", 0)]
    with pytest.raises(AssertionError, match="a attempt 0: 3 contributions, expected 2"):
        run(collect, state, collect.Open("a", 2), collect.PartialSum("a", 0, 3, 1))


# ---- LSU ---------------------------------------------------------------------------------------------------


def test_instructions_leave_as_their_lists_arrive_and_wait_outside_a_full_queue():
    state, outputs = run(lsu, lsu.empty(2), *(lsu.Enter(tag, 3) for tag in "abc"))
    assert outputs == [lsu.FetchList("a"), lsu.FetchList("b"), lsu.Refused("c")]
    state, outputs = run(lsu, state, lsu.ListArrived("b"), lsu.Enter("c", 3), lsu.ListArrived("a"))
    assert outputs == [lsu.Send("b", 0), lsu.FetchList("c"), lsu.Send("a", 0)]
    assert (list(state.queue), dict(state.outstanding.items())) == (["c"], {"b": 0, "a": 0})


def test_retries_take_the_next_attempt_until_there_is_none():
    state, outputs = run(lsu, lsu.empty(1, attempts=3), lsu.Enter("a", 1), lsu.ListArrived("a"), *[lsu.Retry("a")] * 3)
    assert outputs == [lsu.FetchList("a"), lsu.Send("a", 0), lsu.Send("a", 1), lsu.Send("a", 2), lsu.Exhausted("a")]
    state, outputs = run(lsu, state, lsu.Finish("a"), lsu.Finish("a"), lsu.Retry("a"))
    assert outputs == [lsu.Done("a")]


def test_empty_list_is_done_at_once_even_if_the_queue_is_full():
    _, outputs = run(lsu, lsu.empty(1), lsu.Enter("a", 1), lsu.Enter("b", 0))
    assert outputs == [lsu.FetchList("a"), lsu.Done("b")]


# ---- tracker -----------------------------------------------------------------------------------------------


@quick
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_tiles_are_ready_when_their_own_rows_are_there_and_tell_once(n_active, tile_rows, entries, blocks, random):
    shape = tracker.TileShape(tile_rows, 6, tuple(n_active), blocks, blocks)
    state = tracker.bound(shape, entries, tuple(tuple(100 * e + i for i in range(n)) for e, n in enumerate(n_active)))
    stores = [tracker.ChunkStore(e, i, chunk, (4, 2)[chunk]) for e, n in enumerate(n_active) for i in range(n) for chunk in (0, 1)]
    stores += stores[: len(stores) // 3]  # retries
    random.shuffle(stores)
    todo: list = list(stores)
    seen, ready, told = set(), [], []
    while todo:
        event = todo.pop(random.randrange(len(todo)))
        state, outputs = tracker.step(state, event)
        if isinstance(event, tracker.ChunkStore):
            seen.add((event.expert, event.layout, event.chunk))
        for output in outputs:
            if isinstance(output, tracker.TileReady):
                expert, row = output.tile
                mine = range(row * tile_rows, min((row + 1) * tile_rows, n_active[expert]))
                assert all((expert, layout, chunk) in seen for layout in mine for chunk in (0, 1))
                ready.append(output.tile)
                todo += [tracker.Gemm1Block(output.tile)] * blocks
            elif isinstance(output, tracker.RowReady):
                todo += [tracker.Gemm2Block(output.tile)] * blocks
            elif isinstance(output, tracker.Notify):
                told.append((output.token, output.expert))
        assert len(state.on_chip) <= entries
        assert not set(state.on_chip) & set(state.memory)
    assert sorted(ready) == [(e, row) for e, n in enumerate(n_active) for row in range(-(-n // tile_rows))]
    assert sorted(told) == [(100 * e + i, e) for e, n in enumerate(n_active) for i in range(n)]
    assert len(state.on_chip) == len(state.memory) == 0


def test_tracker_spills_the_least_recently_used_tile_and_goes_on_counting():
    state = tracker.bound(tracker.TileShape(2, 8, (4,)), 1, ((7, 8, 9, 5),))
    events = [tracker.ChunkStore(0, 0, 0, 8), tracker.ChunkStore(0, 2, 0, 8), tracker.ChunkStore(0, 1, 0, 8)]
    state, outputs = run(tracker, state, *events)
    assert outputs == [tracker.TileSpilled((0, 0)), tracker.TileReady((0, 0)), tracker.TileSpilled((0, 1))]
    assert tracker.entry_of(state, (0, 1)).bytes == 8


def test_blocks_are_bound_in_layout_order():
    with pytest.raises(AssertionError, match="block 1 of expert 0 is bound out of order"):
        tracker.step(tracker.empty(tracker.TileShape(2, 8, (2,)), 1), tracker.Bind(0, 1, 3))
