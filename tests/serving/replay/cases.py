"""A second opinion on the scheduler: requests on one replica, step by step and token by token, written from the engines' documents.

Nothing is jumped over or kept incrementally: each step looks at all requests and adds up their blocks anew. It shares no code with
`dysharp.serving.replay` but the plain values `Request`, `Requests` and the tables of rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, gcd
from typing import Any

import numpy as np

from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.replay.fleet import Failure, _Fleet
from dysharp.serving.replay.prefixes import PrefixCache
from dysharp.serving.replay.prices import StepPrices
from dysharp.serving.replay.report import Replay
from dysharp.serving.replay.request import Request
from dysharp.serving.replay.requests import Requests
from dysharp.serving.replay.scheduler import Group, Schedule, Server, schedule_of


class Linear(StepPrices):
    """A step's time that is linear in the cached tokens, so that a jump is the sum of its steps."""

    def __init__(self) -> None:
        """No replica."""

    def us(self, requests: float, context: float, tokens: float = 0.0, new: float = 1.0, past: float = 0.0, even: float = 1.0) -> float:
        """Microseconds."""
        return 50 + 2.0 * requests + 0.01 * requests * context + 0.5 * tokens + 1e-4 * tokens * (past + new / 2) + 3 * even

    def first_us(self, requests: float, context: float, step: float, mean: float) -> float:
        """None."""
        return 0.0


@dataclass(frozen=True)
class Case:
    """Requests on one replica of `groups` attention groups with `capacity` KV blocks each."""

    requests: Requests
    engine: str = "vllm"
    capacity: int = 1 << 20
    most: int = 1024
    tokens: int = 64
    groups: int = 1
    gathered: int = 0

    @property
    def rules(self) -> tuple[Engine, Schedule]:
        """Of the engine with the limits of the case."""
        engine = engine_of(self.engine)
        return replace(engine, most_requests=self.most, step_tokens=self.tokens, gathered_steps=self.gathered, token_us=0.0), schedule_of(self.engine)


def ran(case: Case, failures: Sequence[Failure] = ()) -> Replay:
    """The case by `Fleet`."""
    engine, rules = case.rules
    size = case.requests.block
    block = gcd(rules.block, size) if size else rules.block
    groups = [Group(rules, engine, PrefixCache(case.capacity, max(1, size // block)), size, block) for _ in range(case.groups)]
    steps = [max(1, row.output) - 1 for row in case.requests.rows]
    return _Fleet([Server(engine, groups, Linear())], case.requests, steps, "round-robin").run(failures)


@dataclass(eq=False)
class Seen:
    """A request of the reference."""

    number: int
    row: Request
    arrived: float
    made: int = 0
    computed: int = 0
    goal: int = 0
    """Tokens that a prompt step still has to reach."""
    times: list[float] = field(default_factory=list)

    @property
    def decodes(self) -> bool:
        """Whether the prompt is through."""
        return self.computed >= self.goal > 0


class Reference:
    """One attention group: waiting and running requests in order, blocks by name with the time of their last use."""

    def __init__(self, case: Case) -> None:
        self.case, (self.engine, self.rules) = case, case.rules
        self.size = case.requests.block
        self.block = gcd(self.rules.block, self.size) if self.size else self.rules.block
        self.waiting: list[Seen] = []
        self.running: list[Seen] = []
        self.cached: OrderedDict[Any, None] = OrderedDict()
        """Blocks by name, least recently used first; whether one is in use is looked up."""
        self.ratio = self.rules.reserve
        self.preempted: list[int] = []
        self.most_used = 0

    def names(self, one: Seen) -> tuple[Any, ...]:
        """Whole blocks of a prompt that have names."""
        return one.row.hashes[: one.row.prompt // self.size] if self.size else ()

    def own(self, one: Seen, tokens: int) -> int:
        """Blocks without names of a request with so many tokens."""
        return ceil((tokens - len(self.names(one)) * self.size) / self.block)

    def stored(self, one: Seen) -> int:
        """Tokens for which a running request has blocks: its prompt as a whole, or what it has computed."""
        return max(one.goal, one.computed)

    def used(self) -> set[Any]:
        """Names in use."""
        return {name for one in self.running for name in self.names(one)}

    def held(self) -> int:
        """Blocks in use."""
        return sum(self.own(one, self.stored(one)) for one in self.running) + len(self.used()) * max(1, self.size // self.block)

    def evict(self) -> None:
        """Idle names go until all fits."""
        used, weight = self.used(), max(1, self.size // self.block)
        idle = [name for name in self.cached if name not in used]
        while idle and self.held() + len(idle) * weight > self.case.capacity:
            del self.cached[idle.pop(0)]
        self.most_used = max(self.most_used, self.held())

    def final(self, one: Seen, stored: int) -> int:
        """Blocks that a request still wants beyond `stored` tokens."""
        last = one.row.prompt + max(1, one.row.output) - 1
        return self.own(one, max(last, stored)) - self.own(one, stored)

    def admit(self, one: Seen, most: float) -> bool:
        """A waiting request gets blocks for its whole prompt, if they are free beside what running requests have reserved."""
        total, names = one.row.prompt + one.made, self.names(one)
        hits = 0
        while hits < min(len(names), (total - 1) // self.size if self.size else 0) and names[hits] in self.cached:
            hits += 1
        if total - hits * self.size > most:
            return False
        used, weight = self.used(), max(1, self.size // self.block)
        need = self.own(one, total) + weight * len(set(names) - used)
        wanted = sum(self.final(other, self.stored(other)) for other in self.running) + self.final(one, total)
        if need + ceil(self.ratio * wanted) > self.case.capacity - self.held():
            return False
        one.goal, one.computed = total, hits * self.size
        self.running.append(one)
        for name in names:
            self.cached[name] = None
        self.evict()
        return True

    def leave(self, one: Seen) -> None:
        """A request gives its blocks back; its names were used just now, its head last of all."""
        names = self.names(one)
        self.running.remove(one)
        used = self.used()
        for name in reversed(names):
            if name not in used:
                self.cached.move_to_end(name)

    def preempt(self) -> Seen:
        """Who has to go."""
        decoding = [one for one in self.running if one.decodes]
        if self.rules.victim == "fewest" and len(decoding) > 1:
            one = min(decoding, key=lambda seen: (seen.made, -seen.row.prompt))
        else:
            worst = max(seen.row.priority for seen in self.running)
            one = [seen for seen in self.running if seen.row.priority == worst][-1]
        self.leave(one)
        one.goal = one.computed = 0
        self.preempted.append(one.number)
        self.waiting.append(one)
        return one

    def decode(self) -> tuple[list[Seen], bool]:
        """The requests that decode in this step, with their next blocks."""
        lost = False
        while True:
            decoding = [one for one in self.running if one.decodes]
            more = sum(self.own(one, one.computed + 1) - self.own(one, one.computed) for one in decoding)
            spare = self.rules.spare_steps * len(decoding) if lost else 0
            if more <= self.case.capacity - self.held() >= spare or len(self.running) == 1:
                break
            lost = bool(self.preempt())
        if lost and self.rules.spare_steps:
            done = [sum(one.made for one in decoding), sum(one.row.output for one in decoding)]
            self.ratio = min(1.0, (done[0] + self.rules.spare_steps * len(decoding)) / max(1, done[1]))
        for one in decoding:
            one.computed += 1
        self.evict()
        return decoding, lost

    def prompts(self, budget: int) -> list[tuple[Seen, int, int]]:
        """(request, tokens, tokens before them) of a step."""
        taken: list[tuple[Seen, int, int]] = []
        self.waiting.sort(key=lambda one: (one.row.priority, one.arrived, one.number))
        while budget > 0:
            begun = [one for one in self.running if not one.decodes and one not in [seen for seen, *_ in taken]]
            if begun:
                one = begun[0]
            elif self.waiting and len(self.running) < self.case.most:
                one = self.waiting[0]
                if not self.admit(one, float("inf") if self.engine.mixed or not taken else budget):
                    break
                self.waiting.pop(0)
            else:
                break
            part = min(one.goal - one.computed, budget)
            taken.append((one, part, one.computed))
            budget -= part
            if one.computed + part < one.goal:
                break
        return taken


def reference(case: Case) -> tuple[dict[int, tuple[float, float]], list[Reference]]:
    """First and last token of every request, and the groups. One step after the other."""
    rows, users = case.requests.rows, case.requests.users
    groups = [Reference(case) for _ in range(case.groups)]
    fresh = [i for i, row in enumerate(rows) if row.after < 0]
    coming = [(0.0 if users else rows[i].arrive * 1e6, i) for i in (fresh[:users] if users else fresh)]
    later = fresh[users:] if users else []
    now, found, came, steps, since = 0.0, dict[int, tuple[float, float]](), 0, 0, 0
    while coming or any(group.waiting or group.running for group in groups):
        coming.sort()
        if not any(group.waiting or group.running for group in groups):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            at, number = coming.pop(0)
            if not any(group.waiting for group in groups):
                since = steps
            groups[came % len(groups)].waiting.append(Seen(number, rows[number], at))
            came += 1
        now, more = _step(case, groups, now, steps, since, found)
        steps += more
        for number in [number for number in found if number not in [one for one, _ in coming] and found[number][1] == now]:
            coming += [(now + row.pause * 1e6, child) for child, row in enumerate(rows) if row.after == number]
            if later and not any(row.after == number for row in rows):
                coming.append((now, later.pop(0)))
    return found, groups


def _step(case: Case, groups: list[Reference], now: float, steps: int, since: int, found: dict[int, tuple[float, float]]) -> tuple[float, int]:
    mixed, count = groups[0].engine.mixed, sum(len(group.waiting) for group in groups)
    decodes = any(one.decodes for group in groups for one in group.running)
    held = bool(case.gathered) and 0 < count < len(groups) and decodes and steps - since < case.gathered
    decoding, taken = [], []
    for group in groups:
        done, lost = group.decode() if mixed else ([], False)
        decoding.append(done)
        taken.append([] if held or lost else group.prompts(case.tokens - len(done)))
    if not mixed:
        decoding = [[] if parts else group.decode()[0] for group, parts in zip(groups, taken, strict=True)]
    n = max(map(len, decoding))
    context = max(sum(one.computed - 1 for one in done) for done in decoding) / n if n else 0.0
    busiest = max(taken, key=lambda parts: sum(part for _, part, _ in parts))
    tokens = sum(part for _, part, _ in busiest)
    new, past = 1.0, 0.0
    if tokens:
        new, past = sum(part * part for _, part, _ in busiest) / tokens, sum(part * before for _, part, before in busiest) / tokens
    everything = sum(map(len, decoding)) + sum(part for parts in taken for _, part, _ in parts)

    def us(n: int, context: float, tokens: int) -> float:
        even = 1.0 if len(groups) == 1 else min(1.0, everything / (len(groups) * (n + tokens)))
        return Linear().us(n, context, tokens, new if tokens else 1.0, past, even)

    now += us(n, context, tokens) if mixed or not (n and tokens) else max(us(0, 0.0, tokens), us(n, context, 0))
    for group, done, parts in zip(groups, decoding, taken, strict=True):
        _tokens(group, done, parts, now, found)
        if done and group.ratio > group.rules.least:
            group.ratio = max(group.rules.least, group.ratio - (group.rules.reserve - group.rules.least) / group.rules.decay_steps)
        if not group.running:
            group.ratio = group.rules.reserve
    return now, int(any(decoding) and (mixed or not any(taken)))


def _tokens(group: Reference, done: list[Seen], parts: list[tuple[Seen, int, int]], now: float, found: dict[int, tuple[float, float]]) -> None:
    """Tokens come at the end of a step, and who has all of them goes."""
    for one, part, _ in parts:
        one.computed += part
    for one in [*done, *(one for one, _, _ in parts if one.decodes)]:
        one.made += 1
        one.times.append(now)
    ends = [one for one in [*done, *(one for one, _, _ in parts if one.decodes)] if one.made >= max(1, one.row.output)]
    for one in sorted(ends, key=lambda seen: seen.number):
        group.leave(one)
        found[one.number] = one.times[0], now
        if group.size:
            names = one.row.hashes[: (one.row.prompt + one.made - 1) // group.size]
            if len(names) > len(group.names(one)):
                used = group.used()
                for name in reversed(names):
                    group.cached[name] = None
                    if name not in used:
                        group.cached.move_to_end(name)
        group.evict()


def same_times(case: Case) -> bool:
    """Whether first and last tokens and preemptions are those of the reference."""
    done, (found, groups) = ran(case), reference(case)
    columns = done.columns
    rows = zip(*(columns[key] for key in ("number", "arrived", "ttft", "end")), strict=True)
    own = {int(number): (arrived + ttft, end) for number, arrived, ttft, end in rows}
    lost = sum(len(group.preempted) for group in groups)
    return own.keys() == found.keys() and all(np.allclose(own[key], found[key], rtol=1e-9) for key in own) and done.preemptions == lost


def plain_lru(traced: Sequence[Sequence[Any]], capacity: int) -> int:
    """Blocks at the heads of prompts that a plain LRU of so many blocks has; of one prompt the tail is older than the head."""
    held: OrderedDict[Any, None] = OrderedDict()
    hits = 0
    for names in traced:
        for name in names:
            if name not in held:
                break
            hits += 1
        for name in names:
            if name in held:
                held.move_to_end(name)
        for name in names:
            held[name] = None
        while len(held) > capacity:
            held.popitem(last=False)
        for name in reversed(names):
            if name in held:
                held.move_to_end(name)
    return hits


def rows(*rows: tuple[Any, ...], block: int = 0, users: int = 0) -> Requests:
    """Requests from tuples of the fields of `Request`."""
    return Requests(tuple(Request(*row) for row in rows), "case", block, users)


def _drawn(seed: int) -> Case:
    """A tiny case: few requests, little memory, any engine."""
    draw = np.random.default_rng(seed)
    count, size = int(draw.integers(3, 14)), int(draw.choice((0, 0, 16, 32)))
    groups = int(draw.choice((1, 1, 1, 2, 3)))
    found, at = [], 0.0
    for i in range(count):
        at += float(draw.exponential(draw.choice((1e-4, 2e-3))))
        prompt, output = int(draw.integers(1, 200)), int(draw.integers(1, 60))
        family = int(draw.integers(0, 3))
        names = tuple((family if b < 4 else 100 + i, b) for b in range((prompt + output * int(draw.integers(0, 2))) // size)) if size else ()
        after = i - 1 if i and draw.random() < 0.2 else -1
        found.append((at, prompt, output, names, after, float(draw.choice((0.0, 1e-3))), int(draw.choice((0, 0, 0, 1)))))
    engine = str(draw.choice(("vllm", "sglang", "trtllm")))
    block = gcd(schedule_of(engine).block, size) if size else schedule_of(engine).block
    tight = ceil(300 / block) + int(draw.integers(0, 400)) // block
    return Case(rows(*found, block=size), engine, int(draw.choice((tight, 1 << 20))), int(draw.choice((2, 4, 1024))), int(draw.choice((32, 64, 512))),
                groups, int(draw.choice((0, 7))) if groups > 1 else 0)  # fmt: skip


EQUAL = tuple((0.0, 40, 8) for _ in range(6))
CASES = {
    "one request": Case(rows((0.0, 10, 5))),
    "one token": Case(rows((0.0, 10, 1), (0.0, 7, 1))),
    "chunks of a prompt": Case(rows((0.0, 200, 4))),
    "a chunk beside decoding requests": Case(rows((0.0, 10, 30), (3e-4, 200, 4))),
    "first come, first served": Case(rows((0.0, 60, 4), (1e-5, 60, 4), (2e-5, 1, 4))),
    "a jump is cut by an arrival": Case(rows((0.0, 10, 500), (5e-3, 10, 5))),
    "most requests": Case(rows(*EQUAL), most=2),
    "budget of tokens": Case(rows(*EQUAL), tokens=50),
    "prompts first": Case(rows(*EQUAL, (1e-3, 40, 8)), "sglang"),
    "whole prompts only": Case(rows(*EQUAL), "sglang", tokens=100),
    "a long prompt is cut where prompts go first": Case(rows((0.0, 300, 8), (0.0, 30, 8)), "sglang", tokens=100),
    "the last admitted is preempted": Case(rows((0.0, 60, 80), (0.0, 60, 80), (1e-4, 60, 80)), capacity=18),
    "a prompt must fit as a whole": Case(rows((0.0, 60, 80), (0.0, 100, 8)), capacity=10),
    "fewest outputs are retracted": Case(rows((0.0, 60, 90), (0.0, 80, 90), (1e-3, 60, 90)), "sglang", capacity=300),
    "all is reserved": Case(rows((0.0, 60, 80), (0.0, 60, 80), (1e-4, 60, 80)), "trtllm", capacity=10),
    "priorities": Case(rows((0.0, 60, 30, (), -1, 0.0, 1), (1e-5, 60, 30, (), -1, 0.0, 1), (2e-5, 60, 30)), most=1),
    "the lowest priority is preempted": Case(rows((0.0, 60, 80, (), -1, 0.0, 1), (0.0, 60, 80)), capacity=12),
    "turns": Case(rows((0.0, 40, 8), (0.0, 90, 8, (), 0, 1e-3))),
    "users": Case(rows(*EQUAL, users=2)),
    "a prefix is reused": Case(rows((0.0, 70, 8, (1, 2, 3, 4)), (5e-3, 70, 8, (1, 2, 3, 5)), block=16)),
    "the last token is computed": Case(rows((0.0, 64, 8, (1, 2, 3, 4)), (5e-3, 64, 8, (1, 2, 3, 4)), block=16)),
    "an output is a prefix": Case(rows((0.0, 40, 30, (1, 2, 3, 4)), (0.0, 80, 8, (1, 2, 3, 4, 5), 0), block=16)),
    "old blocks go": Case(rows(*((i * 5e-3, 64, 8, tuple(10 * (i % 3) + b for b in range(4))) for i in range(9)), block=16), capacity=10),
    "groups wait for the busiest": Case(rows((0.0, 60, 30), (0.0, 10, 30), (0.0, 60, 5)), groups=2),
    "prompts gather": Case(rows((0.0, 10, 60), (0.0, 10, 60), (2e-3, 10, 20)), "trtllm", groups=2, gathered=9),
} | {f"drawn {seed}": _drawn(seed) for seed in range(60)}  # fmt: skip


def little(done: Replay, measured: bool = False) -> tuple[float, float]:
    """(mean requests inside, rate times mean time inside): equal by Little's law over a whole run, and nearly so in its measured part."""
    times, inside = done.columns["times"], done.columns["inside"]
    begin, end = (done.warm_up, done.warm_up + done.window) if measured else (0.0, done.warm_up + done.window + done.drain)
    clipped = np.clip(times, begin, end)
    mean = float((np.diff(np.append(clipped, end)) * inside).sum()) / (end - begin)
    chosen = done.columns["measured"] > 0 if measured else slice(None)
    stayed = (done.columns["end"] - done.columns["arrived"])[chosen]
    return mean, float(stayed.sum()) / (end - begin)
