"""A step as a graph: replay against closed forms, and time that adds up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.training.answers import split_step
from dysharp.training.graph import StepTimes, replay, replay_schedule, step_graph
from dysharp.training.schedules import Times, all_schedules, equal_times, get_schedule, make_schedule

SMALL = st.integers(1, 50)


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, int, int, StepTimes]:
    name = draw(st.sampled_from(sorted(all_schedules())))
    ranks = 2 * draw(st.integers(1, 2))
    stages = get_schedule(name).stages(ranks, 2)
    cells = Times(*(tuple(draw(st.lists(SMALL, min_size=stages, max_size=stages))) for _ in range(3)), draw(st.integers(0, 9)))
    buckets = st.lists(st.lists(SMALL, max_size=3).map(tuple), min_size=stages, max_size=stages).map(tuple)
    update = tuple(draw(st.lists(SMALL, min_size=stages, max_size=stages)))
    return name, ranks, 2 * ranks, StepTimes(cells, draw(st.integers(0, 9)), draw(buckets), draw(buckets), update, draw(st.booleans()))


@given(steps())
@settings(max_examples=40, deadline=None)
def test_the_time_of_every_rank_and_of_the_longest_path_adds_up(case: tuple[str, int, int, StepTimes]) -> None:
    name, ranks, batches, times = case
    schedule = make_schedule(name, ranks, batches, times=times.cells)
    graph = step_graph(schedule, times)
    split = split_step(replay(graph))
    assert all(sum(parts.values()) == split.total for parts in split.ranks)
    assert all(value >= 0 for parts in split.ranks for value in parts.values())
    assert sum(split.path.values()) == split.total
    assert sum(parts["compute"] for parts in split.ranks) == schedule.microbatches * schedule.directions * sum(map(sum, times.cells[:3]))
    copies = schedule.directions
    reduced = sum(ps for ps, node in zip(graph.duration, graph.nodes, strict=True) if node.kind == "reduce")
    assert reduced == copies * sum(map(sum, times.reduce))


@given(st.integers(2, 5), st.integers(0, 6), st.lists(SMALL, min_size=7, max_size=7), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_one_forward_one_backward_in_closed_form(ranks: int, more: int, sizes: list[int], buckets: int) -> None:
    """Equal stages: gathers and reduces of rank 0 are exposed at both ends, those of the others hide behind the way of the last gradient."""
    f, i, w, hop, gather, reduce, update = sizes
    f, i, w, n = 4 * f, 4 * i, 4 * w, ranks + more
    times = StepTimes(equal_times(ranks, f, i, w, hop), 0, ((reduce,) * buckets,) * ranks, ((gather,),) * ranks, (update,) * ranks)
    total = replay(step_graph(make_schedule("1f1b", ranks, n), times)).makespan
    _, bare = replay_schedule(make_schedule("1f1b", ranks, n), times.cells)
    ends = [(i + w) * (b + 1) // buckets for b in range(buckets)]  # a bucket fills, and is sent when the one before it is
    sent = 0
    for end in ends:
        sent = max(sent, end) + reduce
    if reduce * buckets <= i + w + hop:  # else another rank's buckets may end last
        assert total == gather + bare.makespan - (i + w) + sent + update


def test_sends_take_turns_on_a_link_and_latency_comes_on_top() -> None:
    cells = equal_times(2, 10, 10, 10, hop=3)
    schedule = make_schedule("gpipe", 2, 3)
    fast = replay(step_graph(schedule, StepTimes(cells, send=4))).makespan
    assert fast == (3 + 1) * 30 + 2 * (4 + 3)
    slow = replay(step_graph(schedule, StepTimes(cells, send=25))).makespan
    assert slow == 10 + (3 * 25 + 3) + 10 + 20 + (3 * 25 + 3) + 20  # every send waits for the one before it, in both directions


def test_late_gathers_hide_behind_nothing() -> None:
    cells = equal_times(2, 10, 10, 10)
    early, late = (
        replay(step_graph(make_schedule("1f1b", 2, 4), StepTimes(cells, gather=((5, 5), (5, 5)), optimizer=(7, 7), late_gather=is_late)))
        for is_late in (False, True)
    )
    assert late.makespan == 5 * 30 + 7 + 10
    assert early.makespan == 5 * 30 + 7 + 5  # the second bucket arrives while the first part of the layers computes
    split = split_step(late)
    assert [parts["data_parallel"] for parts in split.ranks] == [10, 10]
    assert split.share("bubble") == 30 / 167


def test_more_bandwidth_or_fewer_bytes_never_slow_a_step() -> None:
    schedule = make_schedule("interleaved", 4, 8, 2)
    made = [replay(step_graph(schedule, StepTimes(equal_times(8, 10, 10, 10, 1), send, ((send,) * 2,) * 8))).makespan for send in (1, 5, 9)]
    assert made == sorted(made)


def test_two_copies_of_a_stage_reduce_together() -> None:
    """DualPipe: the gradients of a stage lie on two ranks, and a bucket leaves when both have filled it."""
    times = StepTimes(equal_times(4), reduce=((1,),) * 4)
    done = replay(step_graph(make_schedule("dualpipe", 4, 8), times))
    named = {(node.rank, node.name): start for node, start in zip(done.graph.nodes, done.start, strict=True) if node.kind == "reduce"}
    assert len(named) == 8
    assert named[0, "reduce 0.0"] == named[3, "reduce 0.0"]


def test_a_wrong_number_of_stages_is_told() -> None:
    with pytest.raises(ConfigError, match="step: reduce: found 1 stages, expected 2"):
        StepTimes(equal_times(2), reduce=((1,),))
