"""The parts of the network, each alone: source, hub tables, load/store units, and the network under a driver of twenty lines."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.base.errors import EmulationMismatch
from dysharp.functional.faults import Faults
from dysharp.functional.network.core import Network, Sources
from dysharp.functional.network.hub_tables import HubTables
from dysharp.functional.network.lsu import LoadStoreUnits
from dysharp.functional.network.messages import Value, WireFormat
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.transaction import Transaction
from dysharp.functional.numbers import number
from dysharp.functional.orders import RandomPool, _OldestPool
from dysharp.isa.commands import Command, Dtype, Stage
from dysharp.isa.packets import Packet, partial_sums
from dysharp.protocol import al_table, tracker

GPUS, LOCAL = 3, 2
BF16, INT = WireFormat(number("bfloat16")), WireFormat(number("int32"))


def pull(tag: int = 0, targets: tuple[int, ...] = (2, 4, 5), near: tuple[int, ...] = (), fmt: WireFormat = INT, **fields) -> Transaction:
    return Transaction(
        source=0,
        tag=tag,
        command=Command.DYLD,
        plane=0,
        address=64 * tag,
        dtype=fmt.payload,
        n_bytes=64,
        stage=Stage.COMBINE,
        targets=targets,
        near=near,
        n_far=len(targets),
        n_near=len(near),
        **fields,
    )


# ---- source ----------------------------------------------------------------------------------------------------------------------


def test_a_partial_sum_counts_once_all_its_packets_are_there():
    sources: Sources[Transaction] = Sources(GPUS, BF16, Statistics())
    t = Transaction(source=0, tag=0, command=Command.DYLD, plane=0, address=0, dtype=Dtype.BFLOAT16, n_bytes=128, targets=(2, 4), n_far=2, n_near=0)
    sources.open(t)
    request = Packet(Command.DYLD, 0, 0, 0, 0, Dtype.BFLOAT16, 0, targets=(2, 4), wanted_bytes=128)
    first, second = partial_sums(request, np.arange(64, dtype=np.float32).tobytes(), 2, 8)
    assert sources.arrive(t, first, ()) is None
    total = sources.arrive(t, second, ())
    assert total is not None
    assert (total.array == np.arange(64)).all()


def test_pieces_after_completion_are_counted_and_dropped():
    statistics = Statistics()
    sources: Sources[Transaction] = Sources(GPUS, INT, statistics)
    t = pull()
    sources.open(t)
    assert sources.add(t, 0, 2, Value(np.array([3]), ())) is None
    assert sources.add(t, 1, 2, Value(np.array([50]), ())) is None  # attempts never mix
    total = sources.add(t, 0, 1, Value(np.array([4]), ()))
    assert total is not None
    assert total.array.tolist() == [7]
    assert sources.add(t, 1, 1, Value(np.array([9]), ())) is None
    assert statistics.tables["collect"]["discarded"] == 1


# ---- hub -------------------------------------------------------------------------------------------------------------------------


class Owner:
    """Remembers what the tables say."""

    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def allocated(self, key, layout):
        self.heard.append(("allocated", key, layout))
        self.tables.track(tracker.Bind(key[0], layout, key[1]))

    def unbound(self, t, key):
        self.heard.append(("unbound", key))

    def tile_ready(self, tile):
        self.heard.append(("ready", tile))

    def output_visible(self, expert, block):
        self.heard.append(("visible", expert, block))


def hub(entries: int = 8) -> tuple[HubTables, Owner, list, Statistics]:
    owner, misses, statistics = Owner(), [], Statistics()
    shape = tracker.TileShape(tile_rows=2, row_bytes=16, n_active=(2, 1))
    tables = HubTables(0, al_table.empty(LOCAL, entries), tracker.empty(shape, 4), owner, lambda _, key: misses.append(key), statistics)
    owner.tables = tables
    return tables, owner, misses, statistics


def store(tag: int = 0) -> Transaction:
    return Transaction(source=1, tag=tag, command=Command.DYST, plane=0, address=0, dtype=Dtype.INT32, n_bytes=16, n_far=2, n_near=0)


def test_a_copy_is_served_once_all_its_targets_are_translated():
    tables, owner, misses, statistics = hub()
    served = []
    tables.look_up(store(), (0, 1), 7, served.append)
    assert misses == [(0, 7), (1, 7)]
    assert list(tables.waiting()) == ["GPU 0 AL miss of expert 0, token 7", "GPU 0 AL miss of expert 1, token 7"]
    tables.memory_answers((1, 7))
    assert served == []
    tables.look_up(store(2), (0,), 7, served.append)  # joins the miss
    tables.memory_answers((0, 7))
    assert served == [[(0, 0), (1, 0)], [(0, 0)]]
    assert [what for what, *_ in owner.heard] == ["allocated", "allocated"]
    tables.look_up(store(1), (1,), 7, served.append)  # now in the TLB
    assert statistics.tables["al_tlb"] == {"entries": 8, "lookups": 4, "hits": 1, "misses": 2, "merged": 1}


def test_reading_what_nobody_wrote_and_tiles_that_fill():
    tables, owner, *_ = hub()
    tables.look_up(pull(), (1,), 3, lambda places: None)
    tables.memory_answers((1, 3))
    assert owner.heard == [("unbound", (1, 3))]
    tables.look_up(store(), (1,), 3, lambda places: None)
    tables.memory_answers((1, 3))
    tables.track(tracker.ChunkStore(1, 0, 0, 16))
    tables.track(tracker.Gemm1Block((1, 0)))
    tables.track(tracker.Gemm2Block((1, 0)))
    assert owner.heard[1:] == [("allocated", (1, 3), 0), ("ready", (1, 0)), ("visible", 1, 3)]


# ---- the whole under a driver ----------------------------------------------------------------------------------------------------


class Driver:
    """Expert e answers e + 1 everywhere; stores are counted."""

    def __init__(self, pool, **faults) -> None:
        fmt = INT
        self.network: Network[Transaction] = Network(
            self, pool, fmt, n_gpus=GPUS, experts_per_gpu=LOCAL, reduction_entries=1, faults=Faults(**faults)
        )
        shape = tracker.TileShape(1, 16, (9, 9))
        known = [((e, block), block) for e in range(LOCAL) for block in range(9)]
        order = (tuple(range(9)),) * LOCAL
        self.tables = [self.network.tables(g, al_table.bound(LOCAL, 4, known), tracker.bound(shape, 9, order), Owner()) for g in range(GPUS)]
        self.complete_values: dict[int, list[int]] = {}
        self.told: list[tuple[int, int, int]] = []

    def locate(self, gpu, address):
        return self.tables[gpu], address // 64

    def store(self, t, gpu, places, packet):
        raise AssertionError

    def load(self, t, gpu, places, packet):
        return Value(np.full(t.elements, sum(gpu * LOCAL + e + 1 for e, _ in places)), ())

    def complete(self, t, value):
        self.complete_values[t.tag] = value.array.tolist()

    def arrived(self, gpu, packet):
        self.told.append((gpu, packet.token, packet.expert))


@pytest.mark.parametrize("seed", range(6))
def test_pulls_add_every_target_once_whatever_is_evicted(seed):
    driver = Driver(RandomPool(seed), timeouts=bool(seed % 2))
    pulls = [pull(tag, targets=(2, 3, 5), near=(0, 1)) for tag in range(8)]
    for t in pulls:
        driver.network.open(t)
        driver.network.request(t, b"")
        driver.network.local(t, 0, lane=t.tag)
    while len(driver.network.pool):
        driver.network.step()
    assert driver.complete_values == {tag: [3 + 4 + 6 + 1 + 2] * 16 for tag in range(8)}
    counts = driver.network.statistics.tables["reduction"]
    assert counts["sessions"] == 8
    assert counts["evictions"] > 0
    for t in pulls:
        driver.network.close(t)
    assert not list(driver.network.under_way())


def test_notifications_cross_the_switch_or_stay():
    driver = Driver(_OldestPool())
    driver.network.notify(0, 2, token=5, expert=1, plane=0, tag=0)
    driver.network.notify(1, 1, token=6, expert=3, plane=0, tag=0)
    while len(driver.network.pool):
        driver.network.step()
    assert sorted(driver.told) == [(1, 6, 3), (2, 5, 1)]
    assert driver.network.statistics.packets == {"notification": 2}


def test_the_queue_of_lists_refuses_and_lets_in_later():
    driver = Driver(_OldestPool())
    sent, done = [], []
    units = LoadStoreUnits(driver.network, 2, 0, lambda t, attempt: sent.append((t.tag, attempt)), lambda t: done.append(t.tag))
    pulls = [pull(tag) for tag in range(4)]
    for t in pulls:
        units.enter(t)
    assert driver.network.statistics.tables["multimemq"] == {"entries": 2, "peak": 2, "refused": 2}
    while len(driver.network.pool):
        driver.network.step()
    assert sent == [(tag, 0) for tag in range(4)]
    assert list(units.waiting(0)) == [f"GPU 0 tag {tag} outstanding" for tag in range(4)]
    units.finish(pulls[1])
    assert done == [1]


def test_requests_are_sent_again_until_attempts_run_out():
    driver = Driver(_OldestPool())
    sent = []
    units = LoadStoreUnits(driver.network, 2, 1, lambda t, attempt: sent.append(attempt), lambda t: None)
    units.enter(pull())
    while len(driver.network.pool):
        driver.network.step()
    assert sent == [0, 1]
    assert driver.network.statistics.injected["duplicate"] == 1
    for _ in range(6):
        units._retry(pull())
    assert sent == list(range(8))
    with pytest.raises(EmulationMismatch, match="GPU 0 tag 0: found no attempt number left"):
        units._retry(pull())
