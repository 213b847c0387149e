"""The scheduler: every rule once against a step-by-step reference, and what holds for all requests: none lost, memory never over, first come first
served, Little's law."""

from math import gcd
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.serving.replay.fleet import Failure, _Fleet, _steps_of
from dysharp.serving.replay.gaps import Gaps
from dysharp.serving.replay.prefixes import PrefixCache
from dysharp.serving.replay.request import Request
from dysharp.serving.replay.requests import Requests, requests_of
from dysharp.serving.replay.scheduler import Group, Server, schedule_of
from tests.serving.replay.cases import CASES, Case, Linear, little, ran, reference, rows, same_times


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_as_its_reference(name: str) -> None:
    assert same_times(CASES[name])


def test_the_cases_meet_every_rule() -> None:
    """Preemption under each engine that preempts, hits, gathering, priorities; else equality would say little."""
    lost = {case.engine for case in CASES.values() if any(group.preempted for group in reference(case)[1])}
    assert lost == {"vllm", "sglang"}
    assert sum(ran(case).hit > 0 for case in CASES.values()) >= 10
    assert sum(case.groups > 1 and case.gathered > 0 for case in CASES.values()) >= 5
    assert {case.engine for case in CASES.values()} == {"vllm", "sglang", "trtllm"}


class Watched(Server):
    """A server that looks at its memory whenever a step is planned."""

    def begin(self, now: float) -> float | None:
        """As it is, then every promise."""
        end = super().begin(now)
        for group in self.groups:
            cache = group.cache
            assert cache.others + cache.weight * (len(cache.pinned) + len(cache.idle)) <= cache.capacity
            assert len(group.running) <= self.engine.most_requests
            assert group.n == sum(group.slots) <= len(group.running)
        return end


@st.composite
def few(draw: st.DrawFn) -> tuple[Requests, str, int, int]:
    """Requests, an engine, its memory and its most requests."""
    size = draw(st.sampled_from((0, 16)))
    made, at = [], 0.0
    for i in range(draw(st.integers(1, 25))):
        at += draw(st.floats(0, 2e-3))
        prompt, output = draw(st.integers(1, 150)), draw(st.integers(0, 50))
        names = tuple((draw(st.integers(0, 1)) if b < 3 else i, b) for b in range(prompt // size)) if size else ()
        names = tuple((names[0][0] if b < 3 else i, b) for b in range(len(names)))
        made.append(Request(at, prompt, output, names, i - 1 if i and draw(st.booleans()) else -1, 1e-3, 0))
    engine = draw(st.sampled_from(("vllm", "sglang", "trtllm")))
    return Requests(tuple(made), "few", size), engine, draw(st.integers(200, 600)), draw(st.integers(1, 30))


@settings(max_examples=60, deadline=None)
@given(few())
def test_no_token_is_lost_and_the_memory_is_never_over(drawn: tuple[Requests, str, int, int]) -> None:
    requests, engine, tokens, most = drawn
    case = Case(requests, engine, -(-tokens // schedule_of(engine).block), most)
    rules, schedule = case.rules
    block = gcd(schedule.block, requests.block)
    group = Group(schedule, rules, PrefixCache(-(-tokens // block), max(1, requests.block // block)), requests.block, block)
    steps = [max(1, row.output) - 1 for row in requests.rows]
    done = _Fleet([Watched(rules, [group], Linear())], requests, steps, "least-load").run()
    ends = dict(zip(done.columns["number"].astype(int).tolist(), done.columns["end"].tolist(), strict=True))
    assert len(ends) + done.refused == len(requests.rows)
    assert not group.running
    assert not group.waiting
    assert group.cache.others == group.n == group.most == 0
    assert not group.cache.pinned
    assert all(ends[i] >= ends[row.after] + row.pause * 1e6 for i, row in enumerate(requests.rows) if i in ends and row.after in ends)


def test_first_come_first_served() -> None:
    """Without priorities first tokens come in order of arrival, whatever the lengths and the memory."""
    for name, case in CASES.items():
        if case.groups == 1 and not any(row.priority or row.after >= 0 for row in case.requests.rows) and not case.requests.users:
            done = ran(case)
            columns = done.columns
            order = np.argsort(columns["number"])
            first = (columns["arrived"] + columns["ttft"])[order]
            assert (np.diff(first) >= 0).all(), name


def test_little_and_the_parts_of_a_run() -> None:
    case = Case(requests_of("rate=1500,isl=40,osl=30,spread=0.5,n=3000"))
    done = ran(case)
    for measured in (False, True):
        inside, law = little(done, measured)
        assert inside == pytest.approx(law, rel=0.01)
    assert done.measured == 2700
    assert done.warm_up + done.window + done.drain == pytest.approx(float(done.columns["end"].max()))
    assert done.rate == pytest.approx(1500, rel=0.1)
    assert done.keeps(1e9, 1e9) == 1
    assert done.keeps(0, 1e9) == 0
    assert done.ttft.p50 <= done.ttft.p90 <= done.ttft.p99


def test_gaps_are_counted_token_by_token() -> None:
    """The mean time between tokens is that of all tokens behind first ones, and quantiles are within 1 %."""
    for engine in ("vllm", "sglang"):
        case = Case(rows(*((i * 1e-3, 30 + 7 * i, 20 + i) for i in range(12))), engine)
        columns = ran(case).columns
        outputs = np.array([case.requests.rows[int(i)].output for i in columns["number"]])
        assert ran(case).itl.mean == pytest.approx(float((columns["tpot"] * (outputs - 1)).sum() / (outputs - 1).sum()), rel=1e-9)
    gaps = Gaps()
    for us in range(1, 1001):
        gaps.add(float(us), 2)
    assert gaps.at(0.5) == pytest.approx(500, rel=0.011)
    assert gaps.at(0.99) == pytest.approx(990, rel=0.011)
    few = Gaps()
    for us in (1e2, 1e3, 1e4):
        few.add(us, 1)
    assert few.at(0.5) == pytest.approx(1e3, rel=0.011)


def test_experts_see_the_tokens_of_all_groups_and_a_step_waits_for_the_busiest() -> None:
    """Four requests and none: half of what two groups like the busiest would bring."""
    busy, idle = (SimpleNamespace(n=n, taken=[]) for n in (4, 0))
    for groups, part in (([busy, idle], 0.5), ([busy, busy], 1.0), ([busy], 1.0)):
        server: Any = SimpleNamespace(groups=groups, queries=1)
        assert Server._even(server, [one for one in groups if one.n], 4) == part


def test_drafts_shorten_outputs_as_their_acceptance_says() -> None:
    """By position: 0.8, then half of those; 1 + 0.8 + 0.4 tokens a step."""
    outputs = np.full(4000, 221)
    assert np.mean(_steps_of(outputs, (0.8, 0.5))) == pytest.approx(220 / 2.2, rel=0.02)
    assert _steps_of(np.array([5, 1, 0]), ()) == [4, 0, 0]
    assert _steps_of(outputs, (0.8, 0.5)) == _steps_of(outputs, (0.8, 0.5))


def test_a_replica_that_stops_loses_no_request() -> None:
    case = Case(rows(*((i * 1e-4, 60, 40) for i in range(40))))
    engine, rules = case.rules
    steps = [39] * 40

    def servers() -> list[Server]:
        return [Watched(engine, [Group(rules, engine, PrefixCache(1 << 20), 0, rules.block)], Linear()) for _ in range(2)]

    whole = _Fleet(servers(), case.requests, steps, "least-load").run()
    for lasts in (float("inf"), 0.004):
        down = _Fleet(servers(), case.requests, steps, "least-load").run([Failure(0, 0.003, lasts)])
        assert sorted(down.columns["number"]) == sorted(whole.columns["number"])
        assert down.latency.mean > whole.latency.mean
    with pytest.raises(ConfigError, match="failure: replica: found 7, expected 0 to 1"):
        _Fleet(servers(), case.requests, steps, "least-load").run([Failure(7, 1.0)])
