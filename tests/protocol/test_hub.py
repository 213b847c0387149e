"""MoE-Hub's units: every order of arrival gives the dense layer, the naive total does not, and mutants are noticed."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace

import pytest
from mutant import Mutant, plant

from dysharp.protocol import aau, dam, rpm
from dysharp.protocol.frozen import Table, put
from tests.protocol.checker import explore
from tests.protocol.checker.hub import HubConfig, Row, check_hub

THREE = (Row(0, 0, 0, 2), Row(0, 1, 0, 3), Row(1, 2, 0, 5))
PARTIAL = HubConfig((3, 5, 7), THREE, producers=2)
CONFIGS = {
    "partial last tile": PARTIAL,
    "late records": HubConfig((3, 5), THREE[:2], records=True),
    "one entry": HubConfig((3, 5), THREE[:2], parts=2),
    "one entry, three rows": HubConfig((3, 5, 7), (*THREE[:2], Row(0, 2, 0, 5)), parts=2, capacity=3),
    "two banks": HubConfig((3, 5, 7), (*THREE[:2], Row(0, 2, 0, 5)), parts=2, banks=2, capacity=3),
    "idle expert": HubConfig((3, 5), (Row(0, 0, 0, 2), Row(1, 1, 0, 3)), producers=2, experts=2, tile_rows=1, capacity=3),
    "no row at all": HubConfig((3,), (), experts=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_order_gives_the_dense_layer(name: str) -> None:
    report = check_hub(CONFIGS[name])
    assert report.ok, str(report)


@pytest.mark.parametrize(("fixed", "reason"), [(4, "hang: region 0 has tiles [1]"), (2, "wrong tensor")])
def test_a_total_set_at_launch_hangs_or_stops_early(fixed: int, reason: str) -> None:
    assert str(check_hub(replace(PARTIAL, fixed=fixed)).reason).startswith(reason)


def test_a_row_beyond_the_capacity_traps_with_region_and_row() -> None:
    assert check_hub(replace(PARTIAL, capacity=2)).reason == "trap: region 0: found row 2 beyond its capacity, expected at most 2 rows"


def freed(unit: aau.AauState, region: int) -> aau.AauState:
    """The unit without any row of `region`."""
    banks = tuple(Table((k, v) for k, v in bank.items() if k[0] != region) for bank in unit.banks)
    memory = Table((k, v) for k, v in unit.memory.items() if k[0] != region)
    return replace(unit, pointer=put(unit.pointer, region, 0), evicted=put(unit.evicted, region, 0), banks=banks, memory=memory)


def test_a_freed_region_starts_from_its_first_place() -> None:
    unit = aau.empty((aau.Region(0, 2, 4), aau.Region(64, 2, 4)), entries=1)
    for key in ((0, 7), (0, 9), (1, 7)):
        unit, _ = aau.step(unit, aau.RowPacket(key, 0, 1, "first"))
    unit, outputs = aau.step(freed(unit, 0), aau.RowPacket((0, 9), 1, 1, "again"))
    assert outputs[0] == aau.Allocated((0, 9), 0)
    assert unit.pointer == (1, 1)


MUTANTS = [
    Mutant("pointer stands still", aau, "_touch", "put(state.pointer, key[0], place + 1)", "state.pointer", "partial last tile", "Assertion"),
    Mutant("evicted rows look new", aau, "_store", "if state.evicted[key[0]]:", "if False:", "one entry, three rows", "trap"),
    Mutant("victim is lost", aau, "_insert", "state.memory.put(victim, bank[victim])", "state.memory", "one entry, three rows", "trap"),
    Mutant("answer allocates again", aau, "_answer", "if stored is None:", "if True:", "one entry, three rows", "trap"),
    Mutant("second waiter is lost", aau, "_store", "(*waiting, store)", "waiting", "two banks", "hang"),
    Mutant("complete row keeps its entry, others lose theirs", aau, "_keep", "if complete else", "if not complete else", "one entry", ""),
    Mutant("place without base of the row", aau, "_place", "place * region.row_bytes", "place", "one entry", "Assertion"),
    Mutant("partial tile never starts", dam, "_release", "last = state.all_ready and n_bytes > 0", "last = False", "partial last tile", "hang"),
    Mutant(
        "first producer speaks for all", dam, "expected_rows", "len(state.announced) == state.producers", "state.announced", "partial last tile", ""
    ),
    Mutant("results leave without records", dam, "_release", "state.records[tile] == rows_of(state, tile)", "True", "late records", "Assertion"),
    Mutant("surplus tiles stay", dam, "_release", "if state.all_ready and n_bytes == 0", "if False and n_bytes == 0", "no row at all", "hang"),
    Mutant("a row is a tile", dam, "_release", "n_bytes == state.tile_rows * state.row_bytes", "n_bytes >= state.row_bytes", "partial last tile", ""),
    Mutant("producers share an announcement", dam, "step", "put(event.producer,", "put(0,", "partial last tile", "hang"),
    Mutant("announced rows count as bytes", dam, "_all_there", "rows * state.row_bytes", "rows", "one entry, three rows", ""),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutants_of_the_units_are_killed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(mutant, monkeypatch)
    report = check_hub(CONFIGS[mutant.machine])
    assert report.reason, f"{mutant.name} survives {report}"
    assert report.reason.startswith(mutant.reason)


# ---- packet manager --------------------------------------------------------------------------------------


def filled(packet: rpm.SentLine, memory: dict[tuple[int, Hashable, int], int]) -> None:
    """Write the valid bytes of a packet; no byte comes twice."""
    for i in valid_bytes(packet):
        assert (packet.peer, packet.line, i) not in memory
        memory[packet.peer, packet.line, i] = packet.data[i]


def valid_bytes(packet: rpm.SentLine) -> list[int]:
    return [i for i in range(rpm.LINE_BYTES) if packet.mask >> i & 1]


@pytest.mark.parametrize(("entries", "timer"), [(1, 0), (1, 1000), (4, 3), (64, 256)])
def test_every_byte_leaves_once(entries: int, timer: int) -> None:
    rng = random.Random(entries)
    writes = [
        rpm.Write(peer, (0, row, line), row, first, bytes([row + 1] * 32), low=row == 2)
        for peer in range(2) for row in range(3) for line in range(2) for first in (0, 32, 64, 96)
    ]  # fmt: skip
    rng.shuffle(writes)
    state, memory = rpm.empty(2, entries=entries, timer=timer), dict[tuple[int, Hashable, int], int]()
    for store in writes:
        state, taken = rpm.write(state, store)
        while not taken:
            state, packet = rpm.send(rpm.tick(state))
            assert packet is not None, "a full partition sends nothing"
            filled(packet, memory)
            state, taken = rpm.write(state, store)
    state = rpm.fence(state)
    while (sent := rpm.send(state))[1] is not None:
        state = sent[0]
        filled(sent[1], memory)
    assert memory == {(w.peer, w.line, w.first + i): w.data[i] for w in writes for i in range(32)}


def test_every_interleaving_of_stores_sends_and_time_keeps_every_byte() -> None:
    """One partition of one entry, a timer of one cycle; stores of two lines and of two priorities of one line."""
    writes = (rpm.Write(0, "a", 0, 0, b"\x01"), rpm.Write(0, "b", 1, 0, b"\x02"), rpm.Write(0, "a", 0, 1, b"\x03", low=True))

    def successors(state):
        unit, left, memory = state
        steps = [("tick", (rpm.tick(unit), left, memory))] if unit.now < 2 else []
        for i in left:
            after, taken = rpm.write(unit, writes[i])
            steps += [(f"store {i}", (after, tuple(j for j in left if j != i), memory))] if taken else []
        after, packet = rpm.send(unit if left else rpm.fence(unit))
        if packet is not None:
            new = frozenset((packet.line, i, packet.data[i]) for i in valid_bytes(packet))
            assert not new & memory
            steps.append(("send", (after, left, memory | new)))
        return steps

    def verdict(state):
        return None if state[2] == {("a", 0, 1), ("b", 0, 2), ("a", 1, 3)} else f"found {set(state[2])}"

    report = explore((rpm.empty(1, entries=1, timer=1), (0, 1, 2), frozenset()), successors, verdict)
    assert (report.complete, report.reason) == (True, None)
    assert report.states > 50


def order_of(state: rpm.RpmState) -> list[tuple[int, Hashable]]:
    out = []
    while (sent := rpm.send(state))[1] is not None:
        state = sent[0]
        out.append((sent[1].peer, sent[1].line))
    return out


def test_the_scheduler_follows_its_rules() -> None:
    def unit(*stores: rpm.Write, timer: int = 1000) -> rpm.RpmState:
        state = rpm.empty(2, entries=8, timer=timer)
        for store in stores:
            state, taken = rpm.write(rpm.tick(state), store)
            assert taken
        return state

    line = bytes(range(128))
    whole = [rpm.Write(peer, f"row {row}", row, 0, line) for peer in (0, 1) for row in (5, 3)]
    assert order_of(unit(*whole)) == [(0, "row 3"), (1, "row 3"), (0, "row 5"), (1, "row 5")]  # in turn; smallest row
    mixed = (rpm.Write(0, "record", 0, 0, line, low=True), rpm.Write(0, "part", 1, 0, b"x"), rpm.Write(0, "whole", 9, 0, line))
    assert order_of(unit(*mixed)) == [(0, "whole"), (0, "record")]  # the partial entry waits for more bytes
    assert order_of(rpm.fence(unit(*mixed))) == [(0, "whole"), (0, "part"), (0, "record")]
    late = unit(rpm.Write(0, "old", 7, 0, b"x"), rpm.Write(0, "new", 1, 0, line), timer=1)
    assert order_of(late) == [(0, "old"), (0, "new")]  # the timer comes first


def test_a_full_link_holds_back_its_peer_only() -> None:
    state = rpm.empty(2, entries=1, timer=1000)
    for peer in (0, 1):
        state, _ = rpm.write(state, rpm.Write(peer, "a", 0, 0, bytes(128)))
    _, packet = rpm.send(state, (False, True))
    assert packet is not None
    assert packet.peer == 1
