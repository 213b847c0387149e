"""The kernels of `engine/blocks/tables.py` and the unit of `protocol/aau.py` do the same, event by event."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.engine.blocks import columns as c
from dysharp.engine.blocks import tables as t
from dysharp.engine.kernel import kernel
from dysharp.protocol import aau

row_lookup, row_answer = kernel(t.row_lookup.py_func), kernel(t.row_answer.py_func)

REGIONS, ROWS, PIECES, BYTES = 2, 4, 3, 16
N_ROWS = REGIONS * ROWS


class Hub:
    """One hub on the kernels, with the events and outputs of the protocol. Row i of region g is row 4 g + i of the kernels."""

    def __init__(self, entries: int, banks: int, n_packets: int) -> None:
        self.entries, rows = entries, np.arange(N_ROWS)
        self.places = np.zeros((N_ROWS + banks, 6), np.int32)
        self.places[:N_ROWS, c.PLACE_LEFT], self.places[:N_ROWS, c.PLACE_REGION] = PIECES, rows // ROWS
        self.places[:N_ROWS, c.PLACE_BANK] = N_ROWS + (rows // ROWS + rows % ROWS) % banks
        self.places[N_ROWS:, [c.PLACE_PREV, c.PLACE_NEXT]] = np.arange(N_ROWS, N_ROWS + banks)[:, None]
        self.keys, self.hubs = np.zeros((N_ROWS + 1, 6), np.int64), np.zeros((1, t.HUB_BANK0), np.int64)
        self.hubs[:, t.HUB_MSHRS] = 99
        t.al_clear(N_ROWS, self.keys, self.hubs)
        self.packets, self.spilled, self.out = np.zeros((n_packets, 2), np.int64), np.zeros(REGIONS, np.int64), np.zeros(1, np.int64)

    def store(self, key: aau.Key, packet: int) -> list[type]:
        row = key[0] * ROWS + key[1]
        found = row_lookup(row, packet, 0, self.entries, self.keys, self.hubs, self.packets, self.places, self.spilled)
        return {c.ROW_NEW: [aau.Allocated, aau.Placed], c.ROW_HELD: [aau.Placed], t.AL_READ: [aau.ReadMap], t.AL_JOINED: []}[found]

    def answer(self, key: aau.Key) -> list[type]:
        row = key[0] * ROWS + key[1]
        new = row_answer(row, 0, self.entries, self.keys, self.hubs, self.packets, self.places, self.spilled, self.out)
        outputs: list[type] = [aau.Allocated] if new else []
        packet = int(self.out[0])
        while packet >= 0:
            outputs.append(aau.Placed)
            packet = int(self.packets[packet, t.WAITER_NEXT])
        return outputs

    def held(self, bank: int) -> list[aau.Key]:
        """Rows in a bank, the oldest first."""
        result, row = [], int(self.places[N_ROWS + bank, c.PLACE_NEXT])
        while row < N_ROWS:
            result.append((row // ROWS, row % ROWS))
            row = int(self.places[row, c.PLACE_NEXT])
        return result


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from((1, 2, 3)),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 3)), max_size=60),
    st.integers(0, 59),
)
def test_row_tables_agree(entries, banks, steps, first):
    """`first`: number of the first packet; any packet may be number 0, also one that others wait behind."""
    hub = Hub(entries, banks, len(steps) + 1)
    state = aau.empty((aau.Region(0, PIECES * BYTES, ROWS),) * REGIONS, entries=entries, banks=banks)
    sent = dict.fromkeys(((g, i) for g in range(REGIONS) for i in range(ROWS)), 0)
    for n, (is_answer, *where) in enumerate(steps):
        packet = (first + n) % len(steps)
        key = tuple(where)
        if not is_answer and sent[key] == PIECES:
            continue
        sent[key] += not is_answer
        event = aau.MapAnswer(key) if is_answer else aau.RowPacket(key, 0, BYTES, packet)
        state, outputs = aau.step(state, event)
        found = hub.answer(key) if is_answer else hub.store(key, packet)
        assert found == [type(output) for output in outputs if not isinstance(output, aau.Spilled)]
        assert [hub.held(bank) for bank in range(banks)] == [list(bank) for bank in state.banks]
        assert hub.spilled.tolist() == list(state.evicted)
        assert hub.hubs[0, t.HUB_PENDING] == len(state.waiting)
        assert hub.hubs[0, t.HUB_CACHED] == sum(len(bank) for bank in state.banks)
        assert sum(hub.places[:N_ROWS, c.PLACE_STATE] == c.ROW_SPILLED) == len(state.memory)
