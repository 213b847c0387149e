"""Prefill and decode apart on so many GPUs: which layouts, how many workers of each, and does it pay.

A decode worker with a full batch asks for a rate of prompts; a plan has decode workers, and as many prefill workers as serve this rate.
Rounding leaves GPUs idle. The best plans by this count are then run through the steady state of both pools (`pools.disaggregated`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dysharp.serving.engine import Engine
from dysharp.serving.layout import ServeLayout
from dysharp.serving.loop import MOST_SHARE, Served, prompt_us
from dysharp.serving.memory import memory_of
from dysharp.serving.pools import Pool, disaggregated, transfer_us
from dysharp.serving.search import BATCHES, layouts_of
from dysharp.serving.step_table import StepTable
from dysharp.serving.work import Load, Replica

PREFILL_LAYOUTS = 4
"""Layouts of prefill workers that are tried: those with most prompts per second of a GPU."""
PLANS = 12
"""Plans that are run through the steady state."""


@dataclass(frozen=True, slots=True)
class Apart:
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


class _Plan(NamedTuple):
    rate: float
    """Requests per second of all GPUs."""
    prefill: Pool
    decode: Pool
    load: Load
    cap: float


def best_apart(
    start: Replica, engine: Engine, load: Load, gpus: int, ttft: float, tpot: float, layouts: Iterable[ServeLayout] | None = None
) -> Apart | None:
    """The pools with most tokens per second within the limits; None: no pools keep the limits."""
    rules = replace(engine, mixed=False, gathered_steps=0)
    tried = list(layouts if layouts is not None else layouts_of(start, gpus))
    fits = [replica for layout in tried if (replica := replace(start, layout=layout)).layout.conflicts(start.model) == []]
    first = sorted((rated for replica in fits if (rated := _prompts(replica, rules, load, ttft))), key=lambda pair: -pair[0] / pair[1].gpus)
    plans = [plan for replica in fits for plan in _plans(replica, rules, load, gpus, tpot, first[:PREFILL_LAYOUTS])]
    found = [made for plan in sorted(plans, key=lambda p: -p.rate)[:PLANS] if (made := _run(plan, gpus, ttft, tpot))]
    return max(found, key=lambda one: one.tokens_per_gpu) if found else None


def _prompts(replica: Replica, engine: Engine, load: Load, ttft: float) -> tuple[float, Pool] | None:
    """Prompts per microsecond of one prefill worker that is never idle, if one prompt keeps the limit."""
    if not memory_of(replica, engine.beside(replica.layout.dp), load.prompt).requests:
        return None
    table = StepTable(replica, engine, load, 1.0)
    many = max(1.0, table.engine.step_tokens * table.groups / load.prompt)
    rate = MOST_SHARE / prompt_us(table, load, many, 0.0)
    return (rate, Pool(table, 1)) if prompt_us(table, load, 1.0, 0.0) < ttft else None


def _plans(replica: Replica, engine: Engine, load: Load, gpus: int, tpot: float, first: list[tuple[float, Pool]]) -> list[_Plan]:
    """For each batch within the limit the numbers of prefill and decode workers whose rates match on so many GPUs."""
    memory = memory_of(replica, engine.beside(replica.layout.dp), load.prompt + load.answer)
    most = min(memory.requests, engine.most_requests)
    if not most:
        return []
    table = StepTable(replica, engine, load, float(most))
    steps = max(1.0, load.answer - 1) / load.accepted
    plans = []
    for size in sorted({min(1 << i, most) for i in range(BATCHES)}):
        users = size * replica.layout.dp
        step = table.decode_us(users)
        if step / load.accepted > tpot:
            break
        wanted = users / (steps * step)
        for rate, pool in first:
            plans += _matched(rate, pool, wanted, Pool(table, 1), replace(load, users=users), gpus, size)
    return plans


def _matched(rate: float, prefill: Pool, wanted: float, decode: Pool, load: Load, gpus: int, cap: float) -> list[_Plan]:
    """The number of decode workers for which the slower of both pools is fastest."""
    best, made = 0.0, list[_Plan]()
    for count in range(1, gpus // decode.gpus + 1):
        left = (gpus - count * decode.gpus) // prefill.gpus
        whole = min(left * rate, count * wanted)
        if left and whole > best:
            needed = min(left, int(-(-count * wanted // rate)))
            best = whole
            pools = replace(prefill, workers=max(1, needed)), replace(decode, workers=count)
            made = [_Plan(whole, *pools, replace(load, users=load.users * count), cap)]
    return made


def _run(plan: _Plan, gpus: int, ttft: float, tpot: float) -> Apart | None:
    """The steady state, with fewer users until both limits hold."""
    load = plan.load
    for _ in range(8):
        served = disaggregated(plan.prefill, plan.decode, load, plan.cap)
        if served.ttft <= ttft and served.tpot <= tpot:
            first, second = plan.prefill.table.replica, plan.decode.table.replica
            used = plan.prefill.gpus + plan.decode.gpus
            sent = transfer_us(first, load.prompt, used)
            tokens = served.rate * load.answer / gpus
            workers = plan.prefill.workers, plan.decode.workers
            return Apart(first.layout, workers[0], second.layout, workers[1], load.users, served, tokens, gpus - used, sent)
        load = replace(load, users=0.85 * load.users)
    return None
