"""The kernels of `engine/blocks/tables.py` and `engine/blocks/points.py` and the blocks of `protocol/` do the same, event by event."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.engine.blocks import columns as c
from dysharp.engine.blocks import tables as t
from dysharp.engine.blocks.points import row_fill
from dysharp.engine.blocks.state import StoreState
from dysharp.engine.kernel import kernel
from dysharp.protocol import al_table, reduction, region

al_lookup, al_answer = kernel(t.al_lookup.py_func), kernel(t.al_answer.py_func)
red_request, red_expire, red_respond = (kernel(part.py_func) for part in (t.red_request, t.red_expire, t.red_respond))

quick = settings(max_examples=200, deadline=None)
HUBS, EXPERTS, BLOCKS = 2, 2, 4  # hubs, experts per hub, algebraic blocks per expert
N_KEYS = HUBS * EXPERTS * BLOCKS


class Hubs:
    """Two hubs on the kernels, with the events and outputs of the protocol."""

    def __init__(self, entries: int, mshrs: int, n_packets: int) -> None:
        self.keys = np.zeros((N_KEYS + HUBS, 6), np.int64)
        self.hubs = np.zeros((HUBS, 5), np.int64)
        self.hubs[:, t.HUB_ENTRIES], self.hubs[:, t.HUB_MSHRS] = entries, mshrs
        self.packets = np.zeros((n_packets, 2), np.int64)
        self.next_free = np.zeros(HUBS * EXPERTS, np.int64)
        self.out = np.zeros(1, np.int64)
        t.al_clear(N_KEYS, self.keys, self.hubs)

    def step(self, hub: int, event: al_table.Event) -> tuple[al_table.Output, ...]:
        expert = hub * EXPERTS + event.key[0]
        key = expert * BLOCKS + event.key[1]
        if isinstance(event, al_table.Lookup):
            packet = event.packet
            found = al_lookup(key, packet, int(event.allocate), hub, N_KEYS, self.keys, self.hubs, self.packets)
            if found >= 0:
                return (al_table.Found(packet, event.key, found),)
            kinds = {t.AL_READ: (al_table.ReadTable(event.key),), t.AL_JOINED: (), t.AL_FULL: (al_table.Full(packet, event.key),)}
            return kinds[found]
        found = al_answer(key, expert, hub, N_KEYS, self.keys, self.hubs, self.packets, self.next_free, self.out)
        released, packet = [], int(self.out[0])
        while packet >= 0:
            released.append(al_table.Unbound(packet, event.key) if found < 0 else al_table.Found(packet, event.key, found))
            packet = int(self.packets[packet, t.WAITER_NEXT])
        assert (found == t.AL_IDLE) == (not released)
        return (al_table.BlockBound(event.key, found), *released) if self.hubs[hub, t.HUB_ALLOCATED] else tuple(released)

    def cached(self, hub: int) -> list[tuple[al_table.Key, int]]:
        """Cached keys with their layouts, least recently used first."""
        result, row = [], self.keys[N_KEYS + hub, t.KEY_NEXT]
        while row < N_KEYS:
            expert, index = divmod(int(row), BLOCKS)
            result.append(((expert % EXPERTS, index), int(self.keys[row, t.KEY_LAYOUT])))
            row = self.keys[row, t.KEY_NEXT]
        return result


@quick
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, HUBS - 1), st.integers(0, 2), st.integers(0, EXPERTS - 1), st.integers(0, BLOCKS - 1)), max_size=80),
)
def test_al_tables_agree(entries, mshrs, steps):
    kernels = Hubs(entries, mshrs, len(steps))
    states = [al_table.empty(EXPERTS, entries, mshrs)] * HUBS
    for packet, (hub, kind, *key) in enumerate(steps):
        event = al_table.MemoryAnswer(tuple(key)) if kind == 0 else al_table.Lookup(tuple(key), packet, kind == 1)
        states[hub], expected = al_table.step(states[hub], event)
        assert kernels.step(hub, event) == expected
        assert kernels.cached(hub) == list(states[hub].tlb.items())
        assert kernels.hubs[hub, t.HUB_CACHED] == len(states[hub].tlb)
        assert kernels.hubs[hub, t.HUB_PENDING] == len(states[hub].pending)
    for hub, state in enumerate(states):
        assert [len(table) for table in state.tables] == kernels.next_free[hub * EXPERTS : (hub + 1) * EXPERTS].tolist()


PORTS, SESSIONS = 2, 6


class Ports:
    """Two ports on the kernels, with the events and outputs of the protocol; session s belongs to port s % 2."""

    def __init__(self, entries: int) -> None:
        self.sessions = np.zeros((SESSIONS + PORTS, 6), np.int64)
        self.ports = np.zeros((PORTS, 2), np.int64)
        self.ports[:, t.PORT_ENTRIES] = entries
        t.red_clear(SESSIONS, self.sessions, self.ports)

    def _row(self, kind, session: int):
        return kind(session, int(self.sessions[session, t.SESSION_COUNT]), int(self.sessions[session, t.SESSION_VALUE]))

    def step(self, event: reduction.Event) -> tuple[reduction.Output, ...]:
        session, port = event.session, event.session % PORTS
        if isinstance(event, reduction.Request):
            victim = red_request(session, event.targets, port, SESSIONS, self.sessions, self.ports)
            return (self._row(reduction.Partial, victim),) if victim >= 0 and self.sessions[victim, t.SESSION_COUNT] else ()
        if isinstance(event, reduction.Expire):
            return (self._row(reduction.Partial, session),) if red_expire(session, port, self.sessions, self.ports) else ()
        answer = red_respond(session, event.count, event.value, port, SESSIONS, self.sessions, self.ports)
        if answer == t.RED_BYPASS:
            return (reduction.Bypass(session, event.count, event.value),)
        return (self._row(reduction.Result, session),) if answer == t.RED_RESULT else ()

    def live(self, port: int) -> list[tuple[int, int, int]]:
        """(session, remaining, count) of the live ones, least recently used first."""
        result, row = [], self.sessions[SESSIONS + port, t.SESSION_NEXT]
        while row < SESSIONS:
            result.append((int(row), int(self.sessions[row, t.SESSION_REMAINING]), int(self.sessions[row, t.SESSION_COUNT])))
            row = self.sessions[row, t.SESSION_NEXT]
        return result


@quick
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(0, SESSIONS - 1), st.integers(1, 4)), max_size=80))
def test_reduction_tables_agree(entries, steps):
    kernels, states = Ports(entries), [reduction.empty(entries)] * PORTS
    for value, (kind, session, count) in enumerate(steps):
        port = session % PORTS
        entry = states[port].table.get(session)
        if kind == 0:
            event = reduction.Expire(session)
        elif kind == 1 and entry is None:
            event = reduction.Request(session, count)
        else:
            event = reduction.Response(session, count if entry is None else min(count, entry.remaining), value - 20)
        states[port], expected = reduction.step(states[port], event)
        assert kernels.step(event) == expected
        assert kernels.live(port) == [(s, e.remaining, e.count) for s, e in states[port].table.items()]
        assert kernels.ports[port, t.PORT_LIVE] == len(states[port].table)


@kernel
def _fill(row, n_bytes, stores, x):
    return row_fill(row, n_bytes, stores, x)


@pytest.mark.parametrize("first_touch", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_regions_agree(seed, first_touch):
    draw = random.Random(seed)
    n_rows, tile_rows, row_bytes = draw.randint(1, 12), draw.randint(1, 4), 48
    n_tiles = -(-n_rows // tile_rows)
    state = region.empty(n_rows, row_bytes, tile_rows, first_touch=first_touch)
    rows = np.zeros((n_rows, 4), np.int32)
    rows[:, c.ROW_LEFT] = row_bytes
    rows[:, c.ROW_SLOT] = -1 if first_touch else np.arange(n_rows)
    regions = np.zeros((1, 5), np.int32)
    regions[0, c.REGION_TILE_ROWS] = tile_rows
    slot_row = np.arange(n_rows, dtype=np.int32)
    tiles, tile_times, x = np.zeros((n_tiles, 7), np.int32), np.zeros((n_tiles, 2), np.int64), np.zeros(8, np.int64)
    tiles[:, c.TILE_LEFT] = [len(region.tile_slots(state, tile)) for tile in range(n_tiles)]
    edges = np.zeros(0, np.int32)
    stores = StoreState(rows, regions, slot_row, tiles, tile_times, edges, edges, edges)
    fills = [(row, 16) for row in range(n_rows) for _ in range(3)]
    draw.shuffle(fills)
    for i, (row, n_bytes) in enumerate(fills):
        before = [region.tile_ready(state, tile) for tile in range(n_tiles)]
        state = region.step(state, region.Fill(row, n_bytes))
        x[c.RUN_NOW] = i + 1
        ready = _fill(row, n_bytes, stores, x)
        became = [tile for tile in range(n_tiles) if region.tile_ready(state, tile) and not before[tile]]
        assert became == ([ready] if ready >= 0 else [])
        assert rows[:, c.ROW_SLOT].tolist() == list(state.slot)
        assert (row_bytes - rows[:, c.ROW_LEFT]).tolist() == list(state.received)
        if ready >= 0:
            assert tile_times[ready, c.TILE_READY] == i + 1
    assert slot_row.tolist() == list(state.row_at)
