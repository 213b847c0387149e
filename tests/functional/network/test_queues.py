"""Packets in flight: order inside a queue, and one event per queue in the pool."""

from __future__ import annotations

from dysharp.functional.network.queues import PacketQueues, Wire
from dysharp.functional.orders import _OldestPool, _TimedPool

A, B = (0, Wire(True, 0, 1, 0)), (0, Wire(True, 0, 1, 8))


def test_a_queue_is_first_in_first_out_and_has_one_event():
    pool = _OldestPool()
    queues = PacketQueues(pool)
    for item in "abc":
        queues.put(A, item)
    queues.put(B, "x")
    assert len(pool) == 2
    taken = []
    while len(pool):
        event = pool.pop()
        taken.append((event, queues.take(event)))
    assert [item for event, item in taken if event == A] == ["a", "b", "c"]
    assert [item for event, item in taken if event == B] == ["x"]


def test_virtual_channels_of_a_link_overtake_each_other():
    pool = _TimedPool()
    queues = PacketQueues(pool)
    queues.put(A, "early in the queue, late in time", time=9)
    queues.put(B, "overtakes", time=3)
    assert queues.take(pool.pop()) == "overtakes"


def test_the_next_item_brings_its_own_time():
    pool = _TimedPool()
    queues = PacketQueues(pool)
    queues.put(A, 1, time=2)
    queues.put(A, 2, time=7)
    queues.put(B, 3, time=5)
    assert [queues.take(pool.pop()) for _ in range(3)] == [1, 3, 2]
