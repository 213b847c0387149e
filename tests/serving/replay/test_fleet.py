"""Real replicas under requests: steps cost what `step_time` says, the formula agrees, routers, tiers, pools and failures move answers rightly."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.costs.machine import machine_of
from dysharp.model.batch import StepBatch
from dysharp.model.formats import formats_of
from dysharp.serving.disaggregated import transfer_us
from dysharp.serving.engine import engine_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.loop import closed_loop
from dysharp.serving.replay.fleet import Failure, Pool, TierSize, replay
from dysharp.serving.replay.prices import StepPrices
from dysharp.serving.replay.request import Request
from dysharp.serving.replay.requests import Requests, requests_of
from dysharp.serving.step import StepTable, draft_us, step_time
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_whole


def replica_of(model: str = "qwen3-30b", layout: str = "tp=2", cluster: str = "hw-dgx-h200") -> Replica:
    return Replica(load_whole(model), formats_of("fp8"), serve_layout_of(layout), machine_of(load_cluster(cluster), "serving"))


@pytest.mark.sampled
@pytest.mark.parametrize(("model", "layout"), [("qwen3-30b", "tp=1"), ("deepseek-v3", "dp=8,ep=8"), ("gpt-oss-120b", "tp=2")])
def test_a_step_costs_what_step_time_says(model: str, layout: str) -> None:
    """On points of the grid exactly. Between them a step jumps where attention starts another wave, or where the EP kernels change: at drawn shapes,
    all with prompts and half with cached tokens, 2 % in the middle and 8 % in nine of ten."""
    prices, draw, errors = StepPrices(replica_of(model, layout), engine_of("vllm")), random.Random(3), []
    for _ in range(40):
        decodes, context, tokens = 2 ** draw.uniform(0, 9), 2 ** draw.uniform(7, 14), 2 ** draw.uniform(7, 13)
        past, new = draw.choice((0.0, 4000.0)), min(tokens, 2 ** draw.uniform(6, 12))
        exact = step_time(prices.replica, StepBatch(decodes=decodes, context=context, prompts=tokens, seen=past + new / 2, past=past), tokens / new)
        errors.append(abs(prices.device(decodes, context, tokens, new, past) / exact.device - 1))
    assert np.median(errors) < 0.02
    assert np.percentile(errors, 90) < 0.08
    assert prices.device(8, 1024) == pytest.approx(step_time(prices.replica, StepBatch(decodes=8, context=1024)).device)
    whole = prices.engine.step_us(prices.replica, prices.device(8, 1024), 8)
    assert prices.us(8, 1024) == whole


def test_drafts_and_stages_cost_what_they_cost() -> None:
    drafted = StepPrices(replica_of("deepseek-v3", "tp=8"), engine_of("sglang"), drafts=2)
    batch = StepBatch(decodes=4, context=1024, queries=3)
    assert drafted.device(4, 1024) == pytest.approx(step_time(drafted.replica, batch).device + draft_us(drafted.replica, batch, 2))
    staged, scenario = replica_of("qwen3-30b", "tp=1,pp=2"), Scenario(8, 1024, 2)
    table = StepTable(staged, engine_of("vllm"), scenario)
    assert StepPrices(staged, engine_of("vllm")).us(8, 1025) == pytest.approx(table.decode_us(8), rel=0.01)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("users", [8, 64])
def test_the_formula_agrees_with_the_replay(engine: str, users: int) -> None:
    """One attention group, spread lengths: rate and TPOT within 5 %."""
    replica, scenario = replica_of(), Scenario(users, 1024, 256)
    said = closed_loop(StepTable(replica, engine_of(engine), scenario), scenario)
    ran = replay(replica, engine_of(engine), requests_of(f"users={users},isl=1024,osl=256,ratio=0.2,n={max(600, 20 * users)}"))
    assert ran.rate == pytest.approx(said.rate, rel=0.05)
    assert ran.tpot.mean == pytest.approx(said.tpot, rel=0.05)


@pytest.mark.parametrize(("rate", "n", "spread"), [(20, 400, 0), (40, 400, 0), (20, 400, 1)])
def test_a_short_run_serves_what_comes(rate: float, n: int, spread: float) -> None:
    """Requests still decode when the last one comes: those that had ended by then were 9 to 50 % fewer, the more the higher the rate."""
    ran = replay(replica_of(), engine_of("vllm"), requests_of(f"rate={rate},isl=1000,osl=500,n={n},spread={spread}"))
    assert ran.latency.mean > 0.2 * ran.window
    assert ran.rate == pytest.approx(1e6 * ran.measured / ran.window, rel=0.02)
    assert ran.rate == pytest.approx(rate, rel=0.15)


def test_too_many_requests_are_served_at_the_rate_of_the_machine() -> None:
    """A tenth of what is offered. Those that fill the memory at first begin early: a fifth of these 4000."""
    lengths = "isl=1000,osl=500,n=4000,spread=0.3"
    many, users = (replay(replica_of(), engine_of("vllm"), requests_of(f"{how},{lengths}")) for how in ("rate=400", "users=900"))
    assert many.rate == pytest.approx(users.rate, rel=0.25)


def test_what_comes_at_once_is_made_at_the_rate_of_the_machine() -> None:
    """200 requests in a fifth of a millisecond: their tokens are not made in the second in which they begin."""
    ran = replay(replica_of(), engine_of("vllm"), requests_of("rate=1e6,isl=1000,osl=500,n=200"))
    assert ran.output_rate == pytest.approx(1e6 * ran.measured / ran.tpot.mean, rel=0.15)
    assert ran.output_rate < 1.3 * 200 * 500 / (ran.latency.p99 / 1e6)


def test_caches_leave_by_all_prefill_workers() -> None:
    """A worker whose last cache is on its way runs nothing, as an idle one: prompts went to the first of four, 2.2 requests a second for 5.5."""
    pool = Pool(replica_of("llama3-8b", "tp=1", "hw-dgx-h100,link_GBps=1"), 4)
    ran = replay(pool, engine_of("vllm"), requests_of("users=60,isl=4000,osl=500,n=600"), prefill=pool)
    sent = transfer_us(pool.replica, 4000, 8)
    assert ran.rate == pytest.approx(4 / sent * 1e6, rel=0.1)


def test_a_few_requests_of_many_users_count_to_their_end() -> None:
    """The last of 400 requests comes when 144 have ended: 56 % fewer a second than the machine serves in a long run."""
    few, many = (replay(replica_of(), engine_of("vllm"), requests_of(f"users=256,isl=1000,osl=100,n={n}")).rate for n in (400, 4000))
    assert few == pytest.approx(many, rel=0.2)


def test_hits_shorten_first_tokens() -> None:
    """The same prompts without a cache, with half and with nearly all of each in common: TTFT falls, and the hit rate says by how much."""
    found = [
        replay(replica_of(), engine_of("vllm"), requests_of(f"rate=2,isl={8192 - shared},osl=32,shared={shared},n=200")) for shared in (0, 4096, 7360)
    ]
    assert [one.hit for one in found] == pytest.approx([0, 0.5 * 199 / 200, 7360 / 8192 * 199 / 200], abs=1e-3)
    saved = [a.ttft.p50 - b.ttft.p50 for a, b in pairwise(found)]
    assert min(saved) > 15e3
    assert sum(saved) == pytest.approx(sum(_prompt_us(past) * sign for past, sign in ((0, 1), (7360, -1))), rel=0.1)
    cold = replay(replica_of(), engine_of("vllm"), requests_of("rate=2,isl=832,osl=32,shared=7360,n=200"), prefix_cache=False)
    assert cold.hit == 0
    assert cold.ttft.p50 == pytest.approx(found[0].ttft.p50, rel=0.02)


def _prompt_us(past: int) -> float:
    prices = StepPrices(replica_of(), engine_of("vllm"))
    return prices.us(0, 0, 8192 - past, 8192 - past, past)


def test_a_lone_request_waits_for_nobodys_steps() -> None:
    """Its first token comes behind its text and its own step. Beside others it waits for steps that are scheduled."""
    alone, both = (replay(replica_of(), engine_of("vllm"), Requests(tuple(Request(0.0, 1000, 50) for _ in range(n)), "", 0)) for n in (1, 2))
    prices = StepPrices(replica_of(), engine_of("vllm"))
    own = 1000 * prices.engine.token_us + prices.us(0, 0.0, 1000, 1000)
    assert alone.columns["ttft"][0] == pytest.approx(own, rel=0.01)
    assert both.columns["ttft"].max() > own + 3 * prices.us(1, 1000)


def test_steps_that_are_scheduled_before_a_first_token_have_prompts_too() -> None:
    """As in the formula and in the step-by-step run: the steps in flight are as long as those between the tokens of a request, not decode steps."""
    replica, engine = replica_of(), engine_of("vllm")
    done = replay(replica, engine, requests_of("users=32,isl=8192,osl=64,ratio=0.2,n=640"))
    decode = StepPrices(replica, engine).us(32, 8192)
    assert done.tpot.mean > 3 * decode
    assert done.columns["later"] == pytest.approx([engine.first_us(replica, decode, step) for step in done.columns["tpot"]], rel=0.15, abs=3 * decode)
    assert done.columns["later"].mean() == pytest.approx(engine.first_us(replica, decode, done.tpot.mean), rel=0.05)


def test_prompts_that_come_at_once_go_to_different_groups() -> None:
    """The first has a step of its own; the others, which come before it ends, have one step together, as each fills the budget of a group."""
    asked = Requests(tuple(Request(0.0, 4000, 2) for _ in range(4)), "", 0)
    spread = replay(replica_of(layout="dp=4,ep=4"), engine_of("sglang"), asked)
    assert len(set(spread.columns["ttft"][1:])) == 1


@pytest.mark.parametrize("router", ["round-robin", "least-load", "prefix"])
def test_requests_on_their_way_count_as_load(router: str) -> None:
    """While the text of one becomes tokens, or its cache is sent, the next goes to another replica: two have the times of one alone."""
    both, lone = (Requests((Request(0.0, 4000, 50),) * n, "", 0) for n in (2, 1))
    one, two = Pool(replica_of(layout="tp=1")), Pool(replica_of(layout="tp=1"), 2)
    alone, spread = replay(one, engine_of("vllm"), lone), replay(two, engine_of("vllm"), both, router=router)
    assert spread.columns["ttft"].tolist() == alone.columns["ttft"].tolist() * 2
    alone, spread = replay(one, engine_of("vllm"), lone, prefill=one), replay(two, engine_of("vllm"), both, router=router, prefill=two)
    assert spread.columns["tpot"] == pytest.approx(alone.columns["tpot"].tolist() * 2, rel=1e-9)


def test_routers() -> None:
    """Sessions with a history: the router that looks at prefixes has more hits; round robin shares requests evenly."""
    asked = requests_of("rate=1,isl=1500,osl=60,turns=6,pause=2,n=80,spread=0.5")
    pool = Pool(replica_of(layout="tp=1"), 4)
    found = {name: replay(pool, engine_of("vllm"), asked, router=name) for name in ("round-robin", "least-load", "prefix")}
    assert found["prefix"].hit > 1.5 * found["round-robin"].hit
    assert found["prefix"].ttft.mean < found["round-robin"].ttft.mean
    with pytest.raises(ConfigError, match="router 'prefx': unknown"):
        replay(pool, engine_of("vllm"), asked, router="prefx")


def test_a_tier_below_the_gpu_gives_back_what_was_evicted() -> None:
    """Sessions that do not fit the GPU's cache together come back for their history."""
    asked = requests_of("users=12,isl=9000,osl=20,turns=3,pause=20,n=24")
    replica = replica_of("qwen3-235b", "tp=2")
    alone = replay(replica, engine_of("vllm"), asked)
    fast = replay(replica, engine_of("vllm"), asked, tiers=[TierSize("host", 400, 50)])
    slow = replay(replica, engine_of("vllm"), asked, tiers=[TierSize("disk", 400, 0.5)])
    assert fast.tiers["host"] > 0
    assert fast.hit > alone.hit + 0.1
    assert fast.ttft.mean < min(alone.ttft.mean, slow.ttft.mean)


def test_prefill_and_decode_apart() -> None:
    """Decode steps have no prompts in them: the longest pause between tokens is shorter. A lone prompt waits for its last layer on the wire."""
    one = replica_of(layout="tp=1")
    asked = requests_of("rate=6,isl=4000,osl=200,spread=0.5,n=400")
    both, apart = replay(Pool(one, 2), engine_of("vllm"), asked), replay(Pool(one), engine_of("vllm"), asked, prefill=Pool(one))
    assert apart.itl.p99 < 0.5 * both.itl.p99
    assert apart.gpus == both.gpus == 2
    lone = Requests((Request(0.0, 4000, 3),), "one")
    there, here = (replay(Pool(one), engine_of("vllm"), lone, prefill=prefill) for prefill in (Pool(one), None))
    sent = transfer_us(one, 4000, 2)
    assert sent / one.model.n_layers < there.ttft.mean - here.ttft.mean + 1000 < sent + 2000


def test_groups_send_caches_by_nics_of_their_own() -> None:
    """Two prompts of one moment: their groups send side by side, for 6 ms each."""
    pool, both = Pool(replica_of("deepseek-v3", "dp=8,ep=8", "hw-dgx-h200-x2")), Requests((Request(0.0, 4096, 4),) * 2, "both")
    done = replay(pool, replace(engine_of("sglang"), token_us=0.0), both, prefill=pool)
    assert abs(np.diff(done.columns["ttft"])[0]) < 0.2 * transfer_us(pool.replica, 4096, 16)


def test_pools_over_domains_share_nics_with_their_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of EP 16 and caches pass the same NICs: slower than without, by less than rows and caches one after the other."""
    pool, asked = Pool(replica_of("deepseek-v3", "dp=16,ep=16", "hw-dgx-h100-x4")), requests_of("users=128,isl=4000,osl=100,n=256")
    shared = replay(pool, engine_of("sglang"), asked, prefill=pool)
    monkeypatch.setattr("dysharp.serving.replay.scheduler.beside_caches_us", lambda *_: 0.0)
    alone = replay(pool, engine_of("sglang"), asked, prefill=pool)
    assert 1.0 < shared.latency.mean / alone.latency.mean < 1.05


def test_the_first_token_of_a_decode_worker_that_answers_late() -> None:
    """It answers with its twentieth token: 19 steps later, and the last token is where it was."""
    pool, engine, asked = Pool(replica_of()), engine_of("trtllm"), requests_of("users=4,isl=1000,osl=100,n=8")
    late, soon = (replay(pool, replace(engine, answered=n), asked, prefill=pool) for n in (20, 1))
    assert late.ttft.mean - soon.ttft.mean == pytest.approx(19 * soon.tpot.mean, rel=0.1)
    assert late.latency.mean == pytest.approx(soon.latency.mean)


def test_a_failure_is_answered_by_what_survives() -> None:
    asked = requests_of("rate=10,isl=1000,osl=200,n=600")
    pool = Pool(replica_of(layout="tp=1"), 2)
    whole, down = (replay(pool, engine_of("vllm"), asked, failures=failures) for failures in ((), [Failure(0, 20.0)]))
    assert len(down.columns["end"]) == len(whole.columns["end"]) == 600
    assert down.tpot.p99 > whole.tpot.p99
    few = replay(pool, engine_of("vllm"), requests_of("rate=10,isl=1000,osl=200,n=60"), failures=[Failure(0, 2.0)])
    assert few.queue[-1][1:] == (0, 0)  # what the replica had is counted where it went
    assert 10 < max(waiting + running for _, waiting, running in few.queue) <= 60


@pytest.mark.parametrize(("replica", "ended"), [(0, 20), (1, 20), (2, 0)])
def test_replicas_are_numbered_as_pools_are_written(replica: int, ended: int) -> None:
    """Two prefill workers, then the only decode worker."""
    one, two = Pool(replica_of(layout="tp=1")), Pool(replica_of(layout="tp=1"), 2)
    done = replay(one, engine_of("vllm"), requests_of("rate=10,isl=1000,osl=20,n=20"), prefill=two, failures=[Failure(replica, 1e-6)])
    assert len(done.columns["end"]) == ended


def test_requests_beyond_context_and_memory_are_refused() -> None:
    rows = (Request(0.0, 100, 5), Request(0.1, 200_000, 5), Request(0.2, 100, 5, (), 1))
    done = replay(replica_of(), engine_of("vllm"), Requests(rows, "three"))
    assert (done.refused, len(done.columns["end"])) == (1, 2)
    tight = replace(engine_of("vllm"), memory_part=0.23)  # weights, and room for a few thousand tokens
    assert replay(replica_of(layout="tp=1"), tight, Requests((Request(0.0, 30_000, 5),), "one")).refused == 1


def test_a_replica_that_ends_no_request_is_not_busy() -> None:
    lost = replay(replica_of(), engine_of("vllm"), Requests((Request(0.0, 1000, 500),), "one"), failures=[Failure(0, 0.05)])
    assert (len(lost.columns["end"]), lost.busy) == (0, 0.0)
