"""What a cancelled op gives back, and what an op that was ready already keeps."""

from __future__ import annotations

import pytest
from toy import Toy

from dysharp.oracle import run_oracle
from dysharp.program.tables import Head, Kind, Point, Tail


@pytest.mark.parametrize("release_at", [Point.OP_ISSUED, Point.OP_DONE])
@pytest.mark.parametrize("ends_at", ["join", "tile"])
def test_a_cancelled_op_gives_back_what_ends_with_it(release_at: Point, ends_at: str) -> None:
    """`stop` cancels a JOIN, and with it the tile behind it, at 1000 ps: then the window opens for `next`."""
    t = Toy(2)
    stop = t.op("stop", Kind.DELAY, 1, ps=1000)
    first = t.op("first", Kind.DELAY, 0, ps=10)
    later = t.op("next", Kind.DELAY, 0, ps=10, after=(first,))
    join = t.op("surplus", Kind.JOIN, 0, threshold=1)
    tile = t.op("tile", Kind.COMPUTE, 0, after=(join,))
    t.b.edges(Tail.OP_DONE, stop, Head.JOIN_CANCEL, join)
    window = t.b.semaphore(0, 1)
    t.b.hold(window, first, {"join": join, "tile": tile}[ends_at], release_at=release_at)
    t.b.hold(window, later)
    trace = run_oracle(t.build())
    assert trace.done[join] == trace.done[tile] == -1
    assert (trace.issue[first], trace.issue[later]) == (0, 1000)


def test_an_op_that_was_ready_at_time_zero_is_not_cancelled() -> None:
    """`late` waits for a JOIN of time 0 and for `slow`; cancelling the JOIN in between takes nothing along."""
    t = Toy(2)
    stop = t.op("stop", Kind.DELAY, 0, ps=1000)
    slow = t.op("slow", Kind.DELAY, 1, ps=2000)
    join = t.op("join", Kind.JOIN, 0)
    late = t.op("late", Kind.DELAY, 0, ps=10, after=(join, slow))
    t.b.edges(Tail.OP_DONE, stop, Head.JOIN_CANCEL, join)
    trace = run_oracle(t.build())
    assert (trace.done[join], trace.done[late]) == (0, 2010)
