"""Loops: the formula and the run step by step agree where both apply, Little's law, order, limits."""

from dataclasses import replace
from itertools import pairwise

import pytest

from dysharp.costs.machine import machine_of
from dysharp.model.batch import StepBatch
from dysharp.model.formats import formats_of
from dysharp.serving.engine import engine_of
from dysharp.serving.launch import start_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.loop import closed_loop
from dysharp.serving.memory import weight_bytes
from dysharp.serving.replay.fleet import replay
from dysharp.serving.replay.report import Replay
from dysharp.serving.replay.requests import requests_of
from dysharp.serving.step import StepTable, step_time
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_whole

SPREAD = (0.8 / 1.2) ** 2 / 3
"""Of uniform lengths from a fifth of the longest."""


def table(engine: str, scenario: Scenario, layout: str = "tp=8", model: str = "minimax-m2.5") -> StepTable:
    replica = Replica(load_whole(model), formats_of("fp8"), serve_layout_of(layout), machine_of(load_cluster("hw-dgx-h200"), "serving"))
    return StepTable(replica, engine_of(engine), scenario)


def run(steps: StepTable, scenario: Scenario, ratio: float = 0.8, rounds: int = 10, cap: float = 1e9) -> Replay:
    """The same users, request by request."""
    asked = f"users={scenario.concurrency:g},isl={scenario.isl:g},osl={scenario.osl:g},ratio={ratio:g},n={scenario.concurrency * rounds:g}"
    return replay(steps.replica, steps.engine, requests_of(asked), cap=cap)


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("users", "prompt"), [(16, 922), (64, 922), (64, 7373)])
def test_the_formula_is_the_run(engine: str, users: int, prompt: int) -> None:
    """Spread lengths, few prompts at once: TPOT and requests per second within 3 %. With 30 rounds the burst at the start fades."""
    scenario = Scenario(users, prompt, 922, spread=SPREAD)
    steps = table(engine, scenario)
    ran, said = run(steps, scenario, ratio=0.2, rounds=30), closed_loop(steps, scenario)
    assert ran.tpot.mean == pytest.approx(said.tpot, rel=0.03)
    assert ran.rate == pytest.approx(said.rate, rel=0.03)


def many(engine: str, users: float) -> tuple[StepTable, Scenario]:
    """A model of small experts on eight groups, where prompts take most of the time."""
    scenario = Scenario(users, 1024, 256, spread=SPREAD)
    return table(engine, scenario, "dp=8,ep=8", "qwen3-30b"), scenario


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("users", [8, 64, 512])
def test_the_formula_is_the_run_where_prompts_take_most_of_the_time(engine: str, users: int) -> None:
    """Each group has its own queue and budget, as in the replay."""
    steps, scenario = many(engine, users)
    asked = requests_of(f"users={users},isl=1024,osl=256,ratio=0.2,n={max(600, 10 * users)}")
    ran, said = replay(steps.replica, engine_of(engine), asked, cap=1e9), closed_loop(steps, scenario)
    assert said.prompt_share > 0.3 or users < 512
    assert said.rate == pytest.approx(ran.rate, rel=0.1)
    assert said.tpot == pytest.approx(ran.tpot.mean, rel=0.13)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_more_users_never_have_fewer_requests(engine: str) -> None:
    states = [closed_loop(*many(engine, float(1 << i))) for i in range(13)]
    assert all(a.rate <= b.rate * 1.0001 for a, b in pairwise(states))
    assert all(a.tpot <= b.tpot * 1.0001 for a, b in pairwise(states))
    assert all(0 < state.prompt_share < 1 for state in states)
    if engine != "trtllm":  # prompts of other groups come sooner where users are many
        assert all(a.ttft <= b.ttft * 1.0001 for a, b in pairwise(states))


@pytest.mark.parametrize("users", [1, 2, 4, 8, 64])
def test_prompts_take_no_more_than_all_the_time(users: int) -> None:
    """Answers of two tokens: nearly all of the time goes to prompts."""
    scenario = Scenario(users, 8192, 2)
    steps = table("vllm", scenario, "tp=1", "qwen3-30b")
    said, ran = closed_loop(steps, scenario), run(steps, scenario, rounds=300 // users)
    assert 0.4 < said.prompt_share <= 1
    assert said.rate == pytest.approx(ran.rate, rel=0.2)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("users", [2, 8])
def test_the_formula_is_the_replay_of_long_prompts(engine: str, users: int) -> None:
    """30,000 tokens in, 64 out: of few users most are in their own prompts, and the others' prompts come in the rest of their time."""
    asked = requests_of(f"users={users},isl=30000,osl=64,ratio=0.2,n=400")
    lengths = [row.prompt for row in asked.rows[40:]]
    mean = sum(lengths) / len(lengths)
    scenario = Scenario(users, mean, 64, spread=sum((n / mean - 1) ** 2 for n in lengths) / len(lengths))
    steps = table(engine, scenario)
    said, ran = closed_loop(steps, scenario), replay(steps.replica, steps.engine, asked)
    assert said.rate == pytest.approx(ran.rate, rel=0.05)
    assert said.tpot == pytest.approx(ran.tpot.mean, rel=0.12)
    assert said.ttft == pytest.approx(ran.ttft.mean, rel=0.25)


def test_two_users_are_served_at_least_as_fast_as_one() -> None:
    """Prompts of 30,000 tokens on a slow GPU, where prompts go first: a server with requests never rests."""
    replica = Replica(load_whole("qwen2.5-32b"), formats_of("fp8"), serve_layout_of("tp=1"), machine_of(load_cluster("hw-hgx-h20"), "serving"))
    rates = []
    for users in (1, 2, 4):
        scenario = Scenario(users, 30000, 64)
        steps = StepTable(replica, engine_of("sglang"), scenario)
        rates.append(closed_loop(steps, scenario).rate)
    assert rates == sorted(rates)


@pytest.mark.slow
def test_one_process_reads_the_text_of_all_prompts() -> None:
    """Its rate is that of the run, and users beyond it wait."""
    steps, scenario = many("vllm", 3000)
    steps.engine = replace(steps.engine, token_us=10.0)
    said, ran = closed_loop(steps, scenario), run(steps, scenario, rounds=10)
    assert said.rate == pytest.approx(1e6 / (1024 * steps.engine.token_us), rel=1e-3)
    assert said.rate == pytest.approx(ran.rate, rel=0.05)
    assert said.queued > 0


def test_littles_law_and_repeats() -> None:
    scenario = Scenario(32, 4000, 1000)
    steps = table("vllm", scenario)
    first, again = (run(steps, scenario).to_dict() for _ in range(2))
    assert first == again
    said = closed_loop(steps, scenario)
    assert said.rate / 1e6 * (said.ttft + 999 * said.tpot) == pytest.approx(32, rel=1e-3)


def test_the_split_of_the_worked_example() -> None:
    """MiniMax on eight H200, 64 users: prompts take 3.6 % of the time with 1K prompts and 19 % with 8K, TPOT 17.8 and 25.9 ms measured."""
    short, long = (closed_loop(table("vllm", scenario), scenario) for scenario in (Scenario(64, 922, 922), Scenario(64, 7373, 922)))
    assert short.prompt_share == pytest.approx(0.036, abs=0.03)
    assert long.prompt_share == pytest.approx(0.19, abs=0.08)
    assert short.tpot / 1e3 == pytest.approx(17.8, rel=0.2)
    assert long.tpot / 1e3 == pytest.approx(25.9, rel=0.2)


def test_users_beyond_the_places_wait() -> None:
    scenario = Scenario(64, 1000, 500)
    steps = table("sglang", scenario)
    free, tight = closed_loop(steps, scenario), closed_loop(steps, scenario, 16)
    assert tight.ttft > 10 * free.ttft
    assert tight.tpot < free.tpot
    assert tight.queued > 0 == round(free.queued)
    assert run(steps, scenario, cap=16).ttft.mean == pytest.approx(tight.ttft, rel=0.1)


def test_equal_lengths_come_in_waves_where_prompts_go_first() -> None:
    """All users wait for the prompts of all, and no prompt interrupts a decoding request."""
    scenario = Scenario(16, 1000, 200)
    steps = table("sglang", scenario)
    waves, spread = (run(steps, scenario, ratio=r, rounds=20) for r in (1.0, 0.2))
    assert waves.ttft.mean > 1.5 * spread.ttft.mean
    assert waves.tpot.mean < spread.tpot.mean


def test_a_lone_prompt_costs_less_than_one_of_each_group() -> None:
    scenario = Scenario(64, 4000, 1000)
    steps = table("sglang", scenario, "dp=8,ep=8")
    assert steps.prompts_us(4000, 4000) < steps.prompts_us(32000, 4000) < 8 * steps.prompts_us(4000, 4000)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_stages_take_turns(engine: str) -> None:
    """Two stages on two nodes: half of the weights, about as many tokens of a GPU as two replicas at the same TPOT, a token waits for both stages."""
    scenario, rules = Scenario(128.0, 4000.0, 1000.0), engine_of(engine)
    rates = machine_of(load_cluster("hw-dgx-h200-x2"), "serving")
    one, two = (Replica(load_whole("deepseek-v3"), formats_of("fp8"), serve_layout_of(text), rates) for text in ("tp=8", "tp=8,pp=2"))
    assert two.layout.gpus == 16
    assert 0.48 < weight_bytes(two) / weight_bytes(one) < 0.54
    half = closed_loop(StepTable(one, rules, replace(scenario, concurrency=64.0)), replace(scenario, concurrency=64.0))
    table = StepTable(two, rules, scenario)
    both, ran = closed_loop(table, scenario), run(table, scenario)
    assert both.tpot == pytest.approx(half.tpot, rel=0.1)
    assert both.rate == pytest.approx(2 * half.rate, rel=0.1)
    assert ran.tpot.mean == pytest.approx(both.tpot, rel=0.05)
    alone = StepTable(two, rules, scenario).decode_us(1.0)
    assert alone > StepTable(one, rules, scenario).decode_us(1.0)
    assert "stage to stage" in step_time(two, StepBatch(decodes=1, context=1)).parts
    assert "16" not in start_of(rules, two, scenario).command.split("--max")[0]
    assert " 2" in start_of(rules, two, scenario).command
    assert "61 layers do not fill 64 stages" in serve_layout_of("pp=64").conflicts(two.model)


def test_a_lone_user_waits_for_nobodys_steps() -> None:
    """One user: no step is scheduled before a prompt, so its first token comes sooner by those steps, in the run and by formula."""
    one = Scenario(1, 1024, 256)
    steps = table("vllm", one)
    scheduled = steps.engine.first_us(steps.replica, steps.decode_us(1)) - steps.engine.first_us(steps.replica, 0.0)
    assert scheduled > 10 * steps.engine.first_us(steps.replica, 0.0)
    own = steps.prompts_us(1024, 1024) + (1024 * steps.engine.token_us)
    assert run(steps, one, ratio=1.0).ttft.mean == pytest.approx(own, rel=0.02)
    assert closed_loop(steps, one).ttft < own + scheduled / 2
