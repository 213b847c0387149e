"""The merge table of loads: states, places, least recently used first, bypass (docs/design/0002, MERGED_LOAD)."""

from __future__ import annotations

import numpy as np

from dysharp.protocol.merging import Dropped, Event, Expire, Forward, Give, Load, LoadResponse, MergeState, Output, Response, Take, Taken, empty, step

EXPECTED = 3


def told(state: MergeState, *events: Event) -> tuple[MergeState, list[Output]]:
    """The state and all outputs after `events`."""
    outputs: list[Output] = []
    for event in events:
        state, new = step(state, event)
        outputs += new
    return state, outputs


def load(address: str, asker: int) -> Load:
    return Load(address, asker, EXPECTED)


def test_one_request_goes_on_and_every_load_is_answered():
    state, out = told(empty(1), load("a", 1), load("a", 2), Response("a"))
    assert out == [Forward(1, True), LoadResponse("a", 1), LoadResponse("a", 2)]
    state, out = told(state, load("a", 3))
    assert out == [LoadResponse("a", 3)]
    assert state == empty(1)  # free after the last of the expected loads


def test_the_least_recently_used_response_leaves():
    state, _ = told(empty(2), load("a", 1), load("b", 1), Response("b"), Response("a"), load("b", 2))
    _, out = told(state, load("c", 1))
    assert out == [Dropped("a"), Forward(1, True)]


def test_a_load_passes_where_the_oldest_entry_waits():
    state, _ = told(empty(2), load("a", 1), load("b", 1), Response("b"))
    after, out = told(state, load("c", 1))
    assert out == [Forward(1, False)]
    assert after == state  # nothing left: no thrash


def test_a_timeout_takes_cached_responses_only():
    waiting, out = told(empty(1), load("a", 1), Expire("a"))
    assert out == [Forward(1, True)]
    _, out = told(waiting, Response("a"), Expire("a"), load("a", 2))
    assert out == [LoadResponse("a", 1), Dropped("a"), Forward(2, True)]


def test_sums_have_places_of_the_same_table():
    state, out = told(empty(1), Take(), load("a", 1), Take())
    assert out == [Taken(True), Forward(1, False), Taken(False)]
    state, out = told(state, Give(), load("a", 2), Response("a"), Take())
    assert out == [Forward(2, True), LoadResponse("a", 2), Dropped("a"), Taken(True)]


def test_places_are_neither_lost_nor_made():
    rng = np.random.default_rng(0)
    state, sums, waiting = empty(3), 0, set()
    for _ in range(3000):
        kind, address = int(rng.integers(0, 5)), str(rng.integers(0, 5))
        if kind == 4 and (sums == 0 or rng.random() < 0.5):
            state, out = step(state, Take())
            sums += out[-1] == Taken(True)
        elif kind == 4:
            state, sums = step(state, Give())[0], sums - 1
        elif kind == 3 and waiting:
            state, _ = step(state, Response(sorted(waiting)[0]))
            waiting.discard(sorted(waiting)[0])
        else:
            state, out = step(state, load(address, 0) if kind < 2 else Expire(address))
            waiting |= {address} if Forward(0, True) in out else set()
        assert state.free + len(state.loads) + sums == 3
        assert state.free >= 0
        assert {name for name, entry in state.loads.items() if not entry.ready} == waiting
