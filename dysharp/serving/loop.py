"""Continuous batching in a closed loop, by formula: a fixed number of users, each of whom sends the next prompt when the last output is complete.

Requests are spread over their length, so a steady state describes them: prompts take a share of the time, and decoding requests have the rest. The
formula holds where lengths differ (`python bench/replayed.py` prints how well it agrees with `replay`, which runs the requests one by one).
"""

import math
from dataclasses import replace

from dysharp.base import frozen
from dysharp.serving.balance import largest_of
from dysharp.serving.step import StepTable
from dysharp.serving.work import Scenario

HALVINGS = 40
"""Of the number of decoding requests of a steady state."""


@frozen
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

    def latency(self, scenario: Scenario) -> float:
        """From a prompt to the last token of its output."""
        return self.ttft + scenario.steps * scenario.accepted * self.tpot


def _prompt_us(table: StepTable, scenario: Scenario, together: float, requests: float, varies: float = 0.0) -> float:
    """Time that one of `together` prompts, which come at once, takes from `requests` decoding requests. Steps are those of the run, half of which
    have a deviation of tokens more, and half less: prompts vary in length, and in number by `varies` (variance over the mean)."""
    beside = requests if table.engine.mixed else 0.0
    tokens, budget = together * scenario.isl, _budget(table, requests)
    taken = min(tokens, budget)
    if tokens > budget and not table.engine.mixed:  # whole prompts only: half of one finds no room, or the last part of one is shorter
        taken = max(budget - scenario.isl / 2, scenario.isl / math.ceil(scenario.isl / budget))
    deviation = math.sqrt((scenario.spread + varies) / together)
    busy = math.sqrt((scenario.spread + varies / table.groups) / max(1.0, together / table.groups))
    most, part = _most(table, scenario, taken), budget / table.groups
    signs = (-1, 1) if 0 < deviation < 1 else (0,)
    sizes = [min(budget, taken * (1 + sign * deviation)) for sign in signs]
    took = sum(table.prompts_us(size, min(part, size, most * (1 + sign * busy)), beside) for sign, size in zip(signs, sizes, strict=True))
    return max(0.0, took - len(signs) * (table.decode_us(beside) if beside else 0.0)) * scenario.isl / sum(sizes)


def _most(table: StepTable, scenario: Scenario, taken: float) -> float:
    """Tokens of the group for which all wait: prompts of a step go round the groups (`fleet.WAITING`), and their lengths are spread."""
    mean, groups = taken / table.groups, table.groups
    uneven = math.sqrt(scenario.spread * scenario.isl * max(mean, scenario.isl)) * largest_of(max(1.0, min(groups, taken / scenario.isl)))
    return max(scenario.isl * _ceil(mean / scenario.isl, groups), min(taken, scenario.isl)) + uneven


def _ceil(mean: float, groups: int) -> float:
    """Prompts of the busiest of `groups` groups that have `mean` on average and take turns."""
    return mean + (1 - 1 / groups) / 2


def _budget(table: StepTable, requests: float) -> float:
    """Tokens of prompts that one step takes."""
    return max(1.0, float(table.engine.step_tokens * table.groups) - (requests if table.engine.mixed else 0))


def closed_loop(table: StepTable, scenario: Scenario, cap: float = float("inf")) -> Served:
    """The steady state of `scenario` on a replica whose memory holds `cap` requests of each attention group.

    The unknown is the number of decoding requests: of n requests n / steps end in a step, and as many prompts come. So rate and times follow from n,
    and n is halved down to the users.
    """
    engine = table.engine
    places = min(scenario.concurrency, min(cap, engine.most_requests) * table.groups)
    low, high = 0.0, places
    if engine.mixed:  # every decoding request gets a token in each step, so no more prompts come than a step takes
        high = min(high, scenario.steps * engine.step_tokens * table.groups / (scenario.isl + scenario.steps))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        state = _steady(table, scenario, middle, places)
        room = state.rate * state.latency(scenario) < places * 1e6 and state.rate * engine.token_us * scenario.isl < 1e6 and state.prompt_share < 1
        low, high = (middle, high) if room else (low, middle)
    queued = max(0.0, scenario.concurrency / state.rate * 1e6 - state.latency(scenario))
    return replace(state, ttft=state.ttft + queued, queued=queued)


def _steady(table: StepTable, scenario: Scenario, requests: float, places: float) -> Served:
    """The state with so many decoding requests in which nobody waits for one of the `places`.

    A prompt that is longer than the budget of its attention group comes in parts, one a step. Where prompts go first, a group without prompts decodes
    beside those that have them, unless there are drafts; a group with prompts loses the step.
    """
    engine, groups, steps = table.engine, table.groups, scenario.steps
    others = 1 - 1 / max(1.0, places)  # part of the prompts that are another user's
    uneven = groups * largest_of(groups) * math.sqrt(requests / groups * (1 - requests / places)) if groups > 1 else 0.0
    beside = max(1.0, min(places, requests + uneven))  # all wait for the group with most
    apart = groups if engine.mixed or not scenario.draft_tokens else 1
    room = _budget(table, requests) / groups / scenario.isl  # prompts of a step of a group
    parts = max(1.0, 1 / room + 0.5)  # lengths are spread
    varied = scenario.spread if parts == 1 or not scenario.spread else 1 / 3 / parts  # full parts, and one that is anything up to full
    part = replace(scenario, isl=scenario.isl / parts, spread=varied)
    come = requests / steps * parts  # parts of prompts between two tokens of a request
    decode = table.decode_us(beside)
    free = -math.expm1(-come / apart)  # steps with prompts of a group for each of its tokens: requests end at random
    whole = room * parts if engine.mixed else max(1.0, room * parts - 0.5 if scenario.spread else math.floor(room * parts))
    own = max(free, come / apart / whole)
    lost = 0.0 if engine.mixed else own / (1 + own)
    some = 1 - (1 - (min(1.0, own) if engine.mixed else lost)) ** apart  # of all steps, those with prompts
    together, gathers = come * (1 - lost) / some, engine.gathered_steps if groups > 1 else 0
    varies = max(0.0, 1 + come - together) if own == free else 0.0
    if gathers:
        gathered = min(groups + come / parts / 2, 1 + come / parts * gathers)
        together = max(together, gathered * parts / max(1.0, _ceil(gathered / groups, groups) / room + 0.5))
        some, varies = come * (1 - lost) / together, 0.0
    prompt = together * _prompt_us(table, part, together, beside, varies)
    longer = prompt if engine.mixed else max(prompt, decode * (apart > 1)) - decode
    passes = table.stages * parts * _prompt_us(table, part, 1.0, beside)
    delay = others * ((decode + some * longer) / (1 - lost) - decode)
    # None comes in the time of one's own (`own_us` of the time of a token): tpot = decode + delay / (1 - own_us / tpot).
    own_us = requests / places * passes / steps
    both = decode + delay + own_us
    tpot = (both + math.sqrt(both**2 - 4 * decode * own_us)) / 2
    joined = others * min(together / come, gathers) * tpot / 2 if gathers else 0.0
    text, beyond = engine.token_us * scenario.isl, some * (engine.mixed or 1 - 1 / apart)
    step = tpot if engine.mixed else decode + beyond * longer  # in which a request ends; those with prompts of its own group are between them
    waits = step - text if text < decode else (decode**2 + beyond * longer * (2 * decode + longer)) / (2 * step)
    if engine.mixed:  # parts of prompts that came before fill the budget, of a number of users who come again
        load = others * min(1.0, come / apart / whole * (tpot - decode) / (delay + 1e-9))
        waits += load / (2 * (1 - load)) * (decode + longer) * parts * (1 + scenario.spread)
    else:  # prompts of its group that are read before it begins: those behind the first wait for it and for each other
        met = others * come / parts / groups * max(1, text / step + 0.5)
        waits += passes * met * (1 + met / 2) / (1 + met)
    ttft = others * waits + joined + passes + decode * engine.mixed + text
    busy = 1 - (1 - requests / places) ** (places - 1)  # another one is decoding
    ttft += engine.first_us(table.replica, busy * decode, busy * tpot)
    share = min(1.0, some * prompt / (tpot * (1 - lost)))
    return Served(tpot / scenario.accepted, ttft, requests / steps / tpot * 1e6, requests / groups, share, decode, 0.0)
