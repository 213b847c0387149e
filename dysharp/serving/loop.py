"""Continuous batching in a closed loop, by formula: a fixed number of users, each of whom sends a prompt as soon as the last answer is complete.

Requests are spread over their length, so a steady state describes them: prompts take a share U of the time, and decoding requests have the rest.
The formula holds where U is well below one and lengths differ; `events.py` runs the same rules step by step.
"""

from dataclasses import dataclass

from dysharp.serving.step_table import StepTable
from dysharp.serving.work import Load

ROUNDS = 60
MOST_SHARE = 0.97
"""Share of prompts at which the loop is taken as saturated."""


@dataclass(frozen=True, slots=True)
class Served:
    """A steady state. Times in microseconds, `rate` in requests per second of the replica."""

    tpot: float
    ttft: float
    rate: float
    batch: float
    """Decoding requests of an attention group."""
    prompt_share: float
    decode: float
    """A step of decoding requests alone."""
    queued: float
    """Part of `ttft` in which users wait for a place in the batch."""


def prompt_us(table: StepTable, load: Load, together: float, requests: float) -> float:
    """Time that one of `together` prompts, which come at once, takes from `requests` decoding requests."""
    most = table.engine.step_tokens
    n = max(1.0, min(together, most * table.groups / load.prompt))
    chunks = max(1.0, load.prompt / most)
    tokens = n * load.prompt / chunks
    busiest = max(tokens / table.groups, min(tokens, load.prompt / chunks))
    beside = requests if table.engine.mixed else 0.0
    took = table.prompts_us(tokens, busiest, beside) - (table.decode_us(beside) if beside else 0.0)
    return max(0.0, took) * chunks / n


def closed_loop(table: StepTable, load: Load, cap: float = float("inf")) -> Served:
    """The steady state of `load` on a replica whose memory holds `cap` requests of each attention group."""
    engine, groups = table.engine, table.groups
    places = min(load.users, min(cap, engine.most_requests) * groups)
    steps = max(1.0, load.answer - 1) / load.accepted
    requests, rate = places, 0.0
    outside = engine.text_us(table.replica, load.prompt)
    for _ in range(ROUNDS):
        decode = table.decode_us(requests)
        together = max(1.0, rate * decode)
        if engine.gathered_steps and groups > 1:
            together = max(together, min(float(groups), 1 + rate * decode * engine.gathered_steps))
        prompt = prompt_us(table, load, together, requests)
        share = min(MOST_SHARE, rate * prompt)
        tpot = decode / (1 - share)
        gathered = (min(together / max(rate, 1e-12), engine.gathered_steps * tpot) / 2) if engine.gathered_steps and groups > 1 and rate else 0.0
        waits = tpot / 2 + share * prompt * together / (2 * (1 - share)) + gathered
        passes = table.stages * prompt_us(table, load, 1.0, requests) + (decode if engine.mixed else 0.0)
        own = passes + outside + engine.first_us(table.replica, decode)
        busy = waits + own + steps * tpot
        new = min(places / busy, MOST_SHARE / max(prompt, 1e-9))
        rate = new if rate == 0.0 else 0.5 * (rate + new)
        requests = max(1.0, min(places, rate * steps * tpot))
    queued = max(0.0, load.users / rate - busy)
    return Served(tpot / load.accepted, waits + own + queued, rate * 1e6, requests / groups, share, decode, queued)
