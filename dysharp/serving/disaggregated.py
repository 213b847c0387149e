"""Disaggregated prefill and decode: pools of workers, rate matching, the transfer of the KV cache from pool to pool; which layouts, how many workers.

A decode worker with a full batch asks for a rate of prompts; a plan has decode workers, and as many prefill workers as serve this rate.
Rounding leaves GPUs idle. The best plans by this count are then run through the steady state of both pools (`_steady_pools`).
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dysharp.base.values import frozen
from dysharp.costs.collectives import link_us
from dysharp.serving.engine import Engine
from dysharp.serving.exchange import beside_caches_us
from dysharp.serving.layout import ServeLayout
from dysharp.serving.loop import Served
from dysharp.serving.memory import kv_bytes, memory_of
from dysharp.serving.search import BATCHES, layouts_of, most_that
from dysharp.serving.step import StepTable
from dysharp.serving.work import Replica, Scenario

REPEATS = 4
SEED = 0
ROUNDS = 60
EQUAL = 1e-6
"""Part by which two rounds of a fixed point differ when it has settled."""
MOST_SHARE = 0.97
"""Share of the time that prompts take of prefill workers that are taken as saturated."""


@frozen
class WorkerPool:
    """Workers of one kind. `table`: the steps of one worker."""

    table: StepTable
    workers: int

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.workers * self.table.replica.layout.gpus


def transfer_us(replica: Replica, prompt: float, domain_gpus: int) -> float:
    """Time of the cache of one prompt out of a prefill worker: over NVLink inside a domain, else by the NICs of its GPUs.

    GPUs that hold copies of a cache send a part each.
    """
    layout, rates, out = replica.layout, replica.machine, replica.machine.cluster.scale_out
    own = kv_bytes(replica, prompt) / (layout.tp if replica.model.attention.mla else max(1, layout.tp // replica.model.attention.kv_heads))
    if out is None or domain_gpus <= out.domain_gpus:
        return float(link_us(rates.gpu, rates.constants, own))
    return own / (out.nic_GBps * out.nics_per_gpu * 1e3) + 2 * out.latency_us


def _most(table: StepTable, scenario: Scenario) -> float:
    """Prompts that a worker takes at once: each group one of several steps, or as many as a step has."""
    return table.groups * max(1.0, table.engine.step_tokens / scenario.isl)


def _prompt_us(table: StepTable, scenario: Scenario, together: float, cache: float = 0.0) -> float:
    """Time that a worker takes for one of `together` prompts, which come at once. `cache`: `transfer_us` of a prompt."""
    most = table.engine.step_tokens
    n = max(1.0, min(together, _most(table, scenario)))
    chunks = max(1.0, scenario.isl / most)
    tokens = n * scenario.isl / chunks
    busiest = max(tokens / table.groups, min(tokens, scenario.isl / chunks))
    step, sent = table.prompts_us(tokens, busiest, 0.0), cache * busiest / scenario.isl
    return max(step + beside_caches_us(table.replica, busiest, step, sent), sent) * chunks / n  # caches leave one after the other


def _steady_pools(prefill: WorkerPool, decode: WorkerPool, scenario: Scenario, cap: float = float("inf")) -> Served:
    """The steady state of both pools under `scenario.concurrency` requests. `cap`: requests of an attention group of a decode worker that fit.

    Layers are sent while later layers are computed, so the last layer's part of the transfer waits alone.
    """
    first, second = prefill.table, decode.table
    places = min(scenario.concurrency, cap * second.groups * decode.workers)
    sent, text = transfer_us(first.replica, scenario.isl, prefill.gpus + decode.gpus), first.engine.token_us * scenario.isl
    requests, rate = places, 0.0
    most = _most(first, scenario)
    fastest = MOST_SHARE * prefill.workers / _prompt_us(first, scenario, most, sent)
    for _ in range(ROUNDS):
        step = _decode_us(decode, scenario, requests, rate * sent)
        together = _together(first, scenario, rate / prefill.workers, most)
        served = together * _prompt_us(first, scenario, together, sent)
        share = min(MOST_SHARE, rate / prefill.workers * served / together)
        waits = share * served / 2
        own = text + first.stages * served + sent / first.replica.model.n_layers + _first_us(second, step)
        busy = waits + own + (scenario.steps - second.engine.answered + 1) * step
        new = min(places / busy, fastest)
        settled = abs(new - rate) < EQUAL * rate
        rate = new if rate == 0.0 else 0.5 * (rate + new)
        requests = max(1.0, min(places, rate * scenario.steps * step))
        if settled:
            break
    queued = max(0.0, scenario.concurrency / rate - busy)
    batch = requests / decode.workers / second.groups
    return Served(_tpot(second.engine, scenario, step), waits + own + queued, rate * 1e6, batch, share, step, queued)


def _decode_us(decode: WorkerPool, scenario: Scenario, requests: float, caches: float) -> float:
    """A step of the pool's `requests` requests. `caches`: part of the time in which one NIC would receive all caches that come."""
    table, each = decode.table, decode.workers * decode.table.groups
    step = table.decode_us(requests / decode.workers)
    return step + beside_caches_us(table.replica, requests / each * (1 + scenario.draft_tokens), step, caches / each * step)


def _first_us(decode: StepTable, step: float) -> float:
    """Time from the end of a transfer to the first token that a client sees."""
    return decode.engine.first_us(decode.replica, step) + (decode.engine.answered - 1) * step


def _tpot(engine: Engine, scenario: Scenario, step: float) -> float:
    """Microseconds of a token behind the first that a client sees: those that came with it take none."""
    return step / scenario.accepted * max(0.0, 1 - (engine.answered - 1) / scenario.steps)


def _together(table: StepTable, scenario: Scenario, rate: float, most: float) -> float:
    """Prompts that one step of a worker takes at `rate`: as many as come during a step."""
    together = 1.0
    for _ in range(ROUNDS):
        more = min(most, max(1.0, rate * together * _prompt_us(table, scenario, together)))
        if abs(more - together) < EQUAL * together:
            break
        together = more
    return together


def run_pools(
    prefill: WorkerPool, decode: WorkerPool, scenario: Scenario, cap: float = float("inf"), *, ratio: float = 0.8, rounds: int = 10
) -> Served:
    """As `_steady_pools`, prompt by prompt: the first prompts of all users come at once, and a worker takes all that wait, up to its tokens.

    A request decodes at the mean batch of the run.
    """
    start = _steady_pools(prefill, decode, scenario, cap)
    table, second = prefill.table, decode.table
    users = max(1, round(scenario.concurrency))
    lengths = scenario.osl * 2 / (1 + ratio) * np.random.default_rng(SEED).uniform(ratio, 1.0, users * rounds) / scenario.accepted
    sent = transfer_us(table.replica, scenario.isl, prefill.gpus + decode.gpus)
    took = [0.0, *(n * _prompt_us(table, scenario, n, sent) for n in range(1, int(_most(table, scenario)) + 1))]
    after = sent / table.replica.model.n_layers + (table.stages - 1) * took[1] + table.engine.token_us * scenario.isl
    step, requests, ttft, rate = start.decode, start.batch, start.ttft, start.rate
    for _ in range(REPEATS):
        tail = after + _first_us(second, step)
        waited, end = _prompt_step(users, prefill.workers, took, (lengths * step).tolist())
        ttft, rate = waited + tail, users * rounds / end * 1e6
        requests = min(scenario.concurrency, rate / 1e6 * scenario.osl / scenario.accepted * step)
        step = 0.5 * (step + _decode_us(decode, scenario, requests, rate / 1e6 * sent))
    batch = requests / decode.workers / second.groups
    return replace(start, tpot=_tpot(second.engine, scenario, step), ttft=ttft, rate=rate, batch=batch, decode=step)


def _prompt_step(users: int, workers: int, took: list[float], decoding: list[float]) -> tuple[float, float]:
    """(mean time from a prompt's arrival to its end, end of the last prompt) of prompts that workers take in the order in which they come."""
    coming, free = [(0.0, n) for n in range(users)], [0.0] * workers
    issued, waited, end = users, 0.0, 0.0
    while coming:
        begin = max(heapq.heappop(free), coming[0][0])
        batch: list[tuple[float, int]] = []
        while coming and coming[0][0] <= begin and len(batch) < len(took) - 1:
            batch.append(heapq.heappop(coming))
        end = begin + took[len(batch)]
        heapq.heappush(free, end)
        for arrived, request in batch:
            waited += end - arrived
            if issued < len(decoding):
                heapq.heappush(coming, (end + decoding[request], issued))
                issued += 1
    return waited / len(decoding), end


PREFILL_LAYOUTS = 4
"""Layouts of prefill workers that are tried: those with most prompts per second of a GPU."""
PLANS = 12
"""Plans that are run through the steady state."""


@frozen
class Disaggregated:
    """Pools within the limits. `idle`: GPUs that rounding leaves; `transfer`: microseconds of one prompt's cache on its way."""

    prefill: ServeLayout
    prefill_workers: int
    decode: ServeLayout
    decode_workers: int
    users: float
    served: Served
    tokens_per_gpu: float
    idle: int
    transfer: float
    ep_system: str
    """`Replica.ep_system` of both pools."""


class _Plan(NamedTuple):
    rate: float
    """Requests per second of all GPUs."""
    prefill: WorkerPool
    decode: WorkerPool
    scenario: Scenario
    cap: float


def best_disaggregated(
    start: Replica, engine: Engine, scenario: Scenario, gpus: int, ttft: float, tpot: float, layouts: Iterable[ServeLayout] | None = None
) -> Disaggregated | None:
    """The pools with most tokens per second within the limits; None: no pools keep the limits."""
    rules = replace(engine, mixed=False, gathered_steps=0, piecewise=False)
    tried = list(layouts if layouts is not None else layouts_of(start, gpus))
    fits = [replace(start, layout=layout) for layout in tried if not layout.conflicts(start.model, gpus, start.machine.domain)]
    first = sorted((rated for replica in fits if (rated := _prompts(replica, rules, scenario, gpus, ttft))), key=lambda pair: -pair[0] / pair[1].gpus)
    plans = [plan for replica in fits for plan in _plans(replica, rules, scenario, gpus, tpot, first[:PREFILL_LAYOUTS])]
    found = [made for plan in sorted(plans, key=lambda p: -p.rate)[:PLANS] if (made := _run(plan, gpus, ttft, tpot))]
    return max(found, key=lambda one: one.tokens_per_gpu) if found else None


def _prompts(replica: Replica, engine: Engine, scenario: Scenario, gpus: int, ttft: float) -> tuple[float, WorkerPool] | None:
    """Prompts per microsecond of one prefill worker that is never idle, if one prompt keeps the limit."""
    if not memory_of(replica, engine.beside(replica.layout.dp), scenario.isl).requests:
        return None
    table, sent = StepTable(replica, engine, scenario), transfer_us(replica, scenario.isl, gpus) / replica.layout.dp
    rate = MOST_SHARE / max(_prompt_us(table, scenario, _most(table, scenario)), sent)
    return (rate, WorkerPool(table, 1)) if _prompt_us(table, scenario, 1.0) < ttft else None


def _plans(replica: Replica, engine: Engine, scenario: Scenario, gpus: int, tpot: float, first: list[tuple[float, WorkerPool]]) -> list[_Plan]:
    """For each batch within the limit the numbers of prefill and decode workers whose rates match on so many GPUs."""
    memory = memory_of(replica, engine.beside(replica.layout.dp), scenario.isl, scenario.osl)
    most = min(memory.requests, engine.most_requests)
    if not most:
        return []
    table, plans = StepTable(replica, engine, scenario), list[_Plan]()

    def keeps(size: int) -> bool:
        return table.decode_us(size * replica.layout.dp) / scenario.accepted <= tpot

    tried = {min(1 << i, most) for i in range(BATCHES)}
    kept = {size for size in tried if keeps(size)}
    if not kept:
        return []
    kept.add(most_that(keeps, max(kept), min(tried - kept, default=most)))
    for size in sorted(kept):
        users = size * replica.layout.dp
        wanted = users / (scenario.steps * table.decode_us(users))
        for rate, pool in first:
            plans += _matched(rate, pool, wanted, WorkerPool(table, 1), replace(scenario, concurrency=users), gpus, size)
    return plans


def _matched(rate: float, prefill: WorkerPool, wanted: float, decode: WorkerPool, scenario: Scenario, gpus: int, cap: float) -> list[_Plan]:
    """The number of decode workers for which the slower of both pools is fastest."""
    best, made = 0.0, list[_Plan]()
    for count in range(1, gpus // decode.gpus + 1):
        left = (gpus - count * decode.gpus) // prefill.gpus
        whole = min(left * rate, count * wanted)
        if left and whole > best:
            best, needed = whole, min(left, int(-(-count * wanted // rate)))
            pools = replace(prefill, workers=max(1, needed)), replace(decode, workers=count)
            made = [_Plan(whole, *pools, replace(scenario, concurrency=scenario.concurrency * count), cap)]
    return made


def _run(plan: _Plan, gpus: int, ttft: float, tpot: float) -> Disaggregated | None:
    """The steady state with most users for which both limits hold."""

    def served(users: int) -> Served:
        return _steady_pools(plan.prefill, plan.decode, replace(plan.scenario, concurrency=float(users)), plan.cap)

    def keeps(users: int) -> bool:
        done = served(users)
        return done.ttft <= ttft and done.tpot <= tpot

    all_users = int(plan.scenario.concurrency)
    users = all_users if keeps(all_users) else most_that(keeps, 0, all_users)
    if not users:
        return None
    first, second, used = plan.prefill.table.replica, plan.decode.table.replica, plan.prefill.gpus + plan.decode.gpus
    done, sent = served(users), transfer_us(first, plan.scenario.isl, used)
    tokens = done.rate * plan.scenario.osl / gpus
    counts = plan.prefill.workers, second.layout, plan.decode.workers, float(users)
    return Disaggregated(first.layout, *counts, done, tokens, gpus - used, sent, first.ep_system)
