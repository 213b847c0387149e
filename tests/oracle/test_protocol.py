"""Invariants of the protocol tables under any order of choices."""

from __future__ import annotations

import doctest
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import dysharp.protocol
from dysharp.protocol import al_table, readiness, reduction, region

KEYS = st.tuples(st.integers(0, 1), st.integers(0, 4))
quick = settings(max_examples=150, deadline=None)


def test_readme_example_runs():
    page = Path(dysharp.protocol.__file__).with_name("README.md")
    assert doctest.testfile(str(page), module_relative=False).failed == 0


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
@given(st.integers(1, 3), st.lists(st.tuples(st.booleans(), KEYS), max_size=60))
def test_al_table_binds_once_and_densely(tlb_entries, steps):
    state = al_table.empty(2, tlb_entries)
    bound: dict[al_table.Key, int] = {}
    for is_lookup, key in steps:
        state = al_table.step(state, al_table.Lookup(key) if is_lookup else al_table.MemoryAnswer(key))
        for known, index in state.table:
            assert bound.setdefault(known, index) == index
        assert len(state.tlb) <= tlb_entries
        assert len(set(state.tlb)) == len(state.tlb)
        assert not set(state.tlb) & {k for k, _ in state.pending}
        for expert in (0, 1):
            indices = sorted(i for (e, _), i in state.table if e == expert)
            assert indices == list(range(state.next_free[expert]))
    for key, _ in state.pending:
        state = al_table.step(state, al_table.MemoryAnswer(key))
        assert al_table.is_hit(state, key)
        assert al_table.layout_index(state, key) >= 0
    assert state.pending == ()


def test_al_table_lookups_of_a_pending_block_share_one_answer():
    state = al_table.empty(1, 4)
    for _ in range(3):
        state = al_table.step(state, al_table.Lookup((0, 9)))
    assert state.pending == (((0, 9), 3),)
    state = al_table.step(state, al_table.MemoryAnswer((0, 9)))
    assert (state.table, state.pending) == ((((0, 9), 0),), ())


def test_al_table_finds_an_evicted_block_again():
    state = al_table.empty(1, 1)
    for index in (5, 6, 5):
        state = al_table.step(state, al_table.Lookup((0, index)))
        state = al_table.step(state, al_table.MemoryAnswer((0, index)))
    assert state.table == (((0, 5), 0), ((0, 6), 1))
    assert state.tlb == ((0, 5),)


# ---- readiness ---------------------------------------------------------------------------------------------


@quick
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_tokens_are_ready_exactly_when_all_have_told(expected, entries, random):
    notices = [(token, tile) for token, n in enumerate(expected) for tile in range(n)]
    told = notices + notices[: len(notices) // 2]  # some are sent twice
    random.shuffle(told)
    state = readiness.empty(tuple(expected), entries)
    seen: set[readiness.Notice] = set()
    for notice in told:
        state = readiness.step(state, notice)
        seen.add(notice)
        for token, n in enumerate(expected):
            count = sum(t == token for t, _ in seen)
            assert readiness.n_ready(state, token) == count
            assert (token in state.ready) == (count == n)
        assert len(state.on_chip) <= entries
        assert not set(state.on_chip) & set(state.spilled)
    assert sorted(state.ready) == list(range(len(expected)))
    assert state.on_chip == state.spilled == state.seen == ()


# ---- reduction ---------------------------------------------------------------------------------------------


@quick
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 3),
    st.lists(st.integers(0, 4), max_size=8),
    st.randoms(use_true_random=False),
)
def test_sums_survive_any_eviction(expected, entries, expiries, random):
    choices: list[reduction.Choice] = [
        reduction.Contribute(s, 10**s * (i + 1)) for s, n in enumerate(expected) for i in range(n)
    ]
    choices += [reduction.Expire(s) for s in expiries if s < len(expected)]
    random.shuffle(choices)
    state = reduction.empty(tuple(expected), entries)
    for choice in choices:
        state = reduction.step(state, choice)
        assert len(state.table) <= entries
        assert len({s.session for s in state.table}) == len(state.table)
        assert all(not reduction.complete(state, s.session) for s in state.table)
    for entry in state.table:  # the timer brings home what is left
        state = reduction.step(state, reduction.Expire(entry.session))
    for s, n in enumerate(expected):
        assert reduction.complete(state, s)
        assert state.received[s].value == 10**s * sum(range(1, n + 1))
    assert state.sent >= len(expected)


def test_one_packet_per_session_without_eviction():
    state = reduction.empty((3, 2), 2)
    for session in (0, 1, 0, 1, 0):
        state = reduction.step(state, reduction.Contribute(session, 1))
    assert state.sent == 2
    assert [s.value for s in state.received] == [3, 2]
