"""Heap, tree of minima, FIFO, hub FIFO and ring do what heapq, min and deque do."""

from __future__ import annotations

import heapq
import random
from collections import deque

import numpy as np
import pytest

from dysharp.engine.blocks.columns import NEXT
from dysharp.engine.blocks.fifo import fifo_pop, fifo_push, mixed_pop, mixed_push, ring_pop, ring_push
from dysharp.engine.blocks.heap import heap_pop, heap_push, tree_first, tree_set
from dysharp.engine.kernel import kernel

SEEDS = range(10)
_push, _pop = kernel(heap_push.py_func), kernel(heap_pop.py_func)


@pytest.mark.parametrize("seed", SEEDS)
def test_heap_is_a_heap_of_pairs(seed: int) -> None:
    draw = random.Random(seed)
    base, expected = 3, []
    keys, ids = np.full(50, -1, np.int64), np.full(50, -1, np.int32)
    for entry in range(40):
        _push(keys, ids, base, len(expected), draw.randrange(5), entry)
        heapq.heappush(expected, (int(keys[base + _place(ids, base, len(expected) + 1, entry)]), entry))
        while expected and draw.random() < 0.4:
            assert (keys[base], ids[base]) == expected[0]
            _pop(keys, ids, base, len(expected))
            heapq.heappop(expected)
    assert (keys[:base] == -1).all()
    assert sorted(zip(keys[base : base + len(expected)], ids[base : base + len(expected)], strict=True)) == sorted(expected)


def _place(ids: np.ndarray, base: int, size: int, entry: int) -> int:
    return ids[base : base + size].tolist().index(entry)


@kernel
def _set(tree, leaf, t):
    tree_set(tree, leaf, t)
    return tree_first(tree)


@pytest.mark.parametrize("seed", SEEDS)
def test_tree_gives_the_lowest_of_the_earliest(seed: int) -> None:
    draw = random.Random(seed)
    times = [1 << 62] * 8
    tree = np.full(16, 1 << 62, np.int64)
    for _ in range(60):
        leaf, t = draw.randrange(8), draw.randrange(4)
        times[leaf] = t
        assert _set(tree, leaf, t) == times.index(min(times))
        assert tree[1] == min(times)


@kernel
def _fifo_push(ends, row, link, entry):
    fifo_push(ends, row, link, 0, entry)


@kernel
def _fifo_pop(ends, row, link):
    return fifo_pop(ends, row, link, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_fifos_share_one_array_of_links(seed: int) -> None:
    draw = random.Random(seed)
    ends, link, queues = np.full((3, 2), -1, np.int32), np.full((30, 1), -1, np.int32), [deque() for _ in range(3)]
    for entry in range(30):
        row = draw.randrange(3)
        _fifo_push(ends, row, link, entry)
        queues[row].append(entry)
        if draw.random() < 0.5 and queues[draw.randrange(3)]:
            row = next(r for r in range(3) if queues[r])
            assert _fifo_pop(ends, row, link) == queues[row].popleft()
        assert [head for head, _ in ends] == [queue[0] if queue else -1 for queue in queues]


@kernel
def _mixed_push(ends, op, mem, entry):
    mixed_push(ends, 0, op, NEXT, mem, entry)


@kernel
def _mixed_pop(ends, op, mem):
    return mixed_pop(ends, 0, op, NEXT, mem)


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_fifo_mixes_ops_and_responses(seed: int) -> None:
    draw = random.Random(seed)
    ends, op, mem = np.full((1, 2), -1, np.int32), np.full((20, 32), -1, np.int32), np.full((20, 8), -1, np.int32)
    queue: deque[int] = deque()
    for i in range(20):
        entry = i if draw.random() < 0.5 else -2 - i
        _mixed_push(ends, op, mem, entry)
        queue.append(entry)
        while queue and draw.random() < 0.3:
            assert _mixed_pop(ends, op, mem) == queue.popleft()
    assert ends[0, 0] == (queue[0] if queue else -1)


@kernel
def _ring_push(ends, link, due, node, entry):
    return ring_push(ends, 0, link, 0, due, 0, node, 0, entry)


@kernel
def _ring_pop(ends, link):
    return ring_pop(ends, 0, link, 0)


@pytest.mark.parametrize("pops", [0.0, 0.3])
@pytest.mark.parametrize("instants", [1, 2, 6, 20])
@pytest.mark.parametrize("seed", SEEDS)
def test_ring_sorts_entries_of_one_instant_by_node_and_id(seed: int, instants: int, pops: float) -> None:
    """Entries come in any order of time, node and id; some leave between."""
    draw = random.Random(seed)
    n = 40
    ends, link = np.full((1, 3), -1, np.int32), np.full((n, 1), -1, np.int32)
    due = np.array([[draw.randrange(instants)] for _ in range(n)], np.int64)
    node = np.array([[draw.randrange(3)] for _ in range(n)], np.int32)
    expected: list[tuple[int, int, int]] = []
    for entry in draw.sample(range(n), n):
        heapq.heappush(expected, (int(due[entry, 0]), int(node[entry, 0]), entry))
        assert _ring_push(ends, link, due, node, entry) == (expected[0][2] == entry)
        while expected and draw.random() < pops:
            assert _ring_pop(ends, link) == heapq.heappop(expected)[2]
    order = []
    while ends[0, 0] >= 0:
        order.append(_ring_pop(ends, link))
    assert order == [entry for _, _, entry in sorted(expected)]


def test_ring_looks_only_at_the_instant_of_its_tail() -> None:
    """1000 entries that are due earlier are not looked at: a loop in their links would never end."""
    n = 1004
    ends, link = np.full((1, 3), -1, np.int32), np.full((n, 1), -1, np.int32)
    due, node = np.arange(n, dtype=np.int64)[:, None], np.arange(n, 0, -1, dtype=np.int32)[:, None]
    due[1000:] = 1000
    for entry in range(1001):
        _ring_push(ends, link, due, node, entry)
    link[500, 0] = 499
    assert not any(_ring_push(ends, link, due, node, entry) for entry in (1001, 1002, 1003))
    assert [int(link[entry, 0]) for entry in (999, 1003, 1002, 1001, 1000)] == [1003, 1002, 1001, 1000, -1]
