"""`replay`: requests on replicas, event by event: arrivals and who takes them, steps, pauses of users, pools for prefill and decode, failures."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from dysharp.base.errors import ConfigError, check_word, show
from dysharp.serving.disaggregated import transfer_us
from dysharp.serving.engine import Engine
from dysharp.serving.memory import memory_of
from dysharp.serving.replay.gaps import Gaps
from dysharp.serving.replay.prefixes import PrefixCache, Tier
from dysharp.serving.replay.prices import StepPrices
from dysharp.serving.replay.report import Record, Replay, Timeline
from dysharp.serving.replay.requests import Requests
from dysharp.serving.replay.scheduler import Group, Job, Server, schedule_of
from dysharp.serving.work import Replica

ROUTERS = ("round-robin", "least-load", "prefix")
WAITING = 4
"""A waiting request counts as so many running ones (vLLM v1/engine/core_client.py)."""
UNEVEN, UNEVEN_TIMES, MATCHES = 64, 1.5, 0.3
"""SGLang's router (sgl-router README, cache_aware): loads are uneven from this difference and ratio on, and then the least load counts; a prefix
counts from this part of the prompt on."""
ARRIVE, READY, FAIL, STEP = range(4)
"""Kinds of events; at one time in this order."""
DRAFTED = 16
"""Least tokens of a KV block with drafts, whose steps give tokens in parts on average."""
SEED = 0


class Failure(NamedTuple):
    """Replica number `replica`, prefill workers first, stops `at` seconds for `lasts` seconds; what it had begins anew elsewhere."""

    replica: int
    at: float
    lasts: float = math.inf


class TierSize(NamedTuple):
    """A tier of the KV cache of one GPU: `GB`, and `GBps` on the way to the GPU."""

    name: str
    GB: float
    GBps: float


class Pool(NamedTuple):
    """Replicas of one kind."""

    replica: Replica
    number: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.number * self.replica.layout.gpus


def replay(
    pool: Replica | Pool, engine: Engine, requests: Requests, *, router: str = "least-load", prefill: Pool | None = None, cap: float = math.inf,
    acceptance: Sequence[float] = (), tiers: Sequence[TierSize] = (), failures: Iterable[Failure] = (), prefix_cache: bool = True, tokens: int = 0,
    tick: Callable[[int, int], None] = lambda done, of: None,
) -> Replay:  # fmt: skip
    """Run all requests to their end on `pool`, with prompts on the workers of `prefill` if there are any. Raises `ConfigError`.

    `cap`: requests of an attention group at once; `acceptance`: of each draft token, if those before it were accepted; `tokens`: of the KV cache of a
    decoding group, 0: what its memory leaves.
    """
    pool, engine = pool if isinstance(pool, Pool) else Pool(pool), replace(engine, most_requests=int(min(cap, engine.most_requests)))
    draws, send, ahead = tuple(acceptance), None, replace(engine, mixed=False, gathered_steps=0, piecewise=False)
    decoders = _servers_of(pool, engine, requests, () if prefill else tiers, draws, prefix_cache, tokens)
    first = _servers_of(prefill, ahead, requests, tiers, draws, prefix_cache) if prefill else []
    if prefill:
        send = partial(transfer_us, prefill.replica, domain_gpus=pool.gpus + prefill.gpus)
        for server in (*first, *decoders):
            one = server.prices.replica
            server.cache_us = send if one.layout.ep > one.machine.domain else None
    steps = _steps_of(np.array([row.output for row in requests.rows]), draws)
    fleet = _Fleet(decoders, requests, steps, router, first=first, send=send, context=pool.replica.model.context, tick=tick)
    return fleet.run(failures, pool.gpus + (prefill.gpus if prefill else 0))


def _steps_of(outputs: np.ndarray[Any, Any], acceptance: Sequence[float]) -> list[int]:
    """Decode steps behind the first token, drawn: a step gives one token and those of its drafts up to the first that is refused."""
    left = np.maximum(outputs, 1) - 1
    draw, done = np.random.default_rng(SEED), np.zeros(len(left), dtype=int)
    reached = np.cumprod(acceptance)
    while acceptance and (busy := np.flatnonzero(left > 0)).size:
        left[busy] -= 1 + (draw.random(busy.size)[:, None] < reached).sum(axis=1)
        done[busy] += 1
    found: list[int] = (done if acceptance else left).tolist()
    return found


def acceptance_of(drafts: int, accepted: float) -> tuple[float, ...]:
    """Of each of `drafts` tokens, if all are accepted alike and a step gives `accepted` tokens on average, its own among them."""
    alike = np.linspace(0.0, 1.0, 1001)
    given = (alike[:, None] ** np.arange(drafts + 1)).sum(axis=1)
    return (float(np.interp(accepted, given, alike)),) * drafts


@lru_cache(maxsize=8)
def _prices_of(replica: Replica, engine: Engine, drafts: int) -> StepPrices:
    """Of the last servers: runs of one server differ in users."""
    return StepPrices(replica, engine, drafts)


def _servers_of(
    pool: Pool, engine: Engine, requests: Requests, tiers: Sequence[TierSize], acceptance: Sequence[float], cached: bool, tokens: int = 0
) -> list[Server]:
    """The replicas of a pool, empty. They share their table of step times."""
    replica, drafts = pool.replica, len(acceptance)
    layout, rules, one = replica.layout, schedule_of(engine.name), engine.beside(replica.layout.dp)
    prices = _prices_of(replica, engine, drafts)
    memory = memory_of(prices.replica, one, requests.prompt, requests.output)
    growth = 1 + sum(np.cumprod(acceptance).tolist())
    size = requests.block if cached else 0
    block = math.gcd(rules.block if growth == 1 else max(rules.block, DRAFTED), size)
    blocks, weight = int((tokens or memory.tokens) // block), max(1, size // block)

    def group() -> Group:
        token = memory.token * (size or 1)
        lower = [Tier(one.name, int(one.GB * 1e9 / token), token / (one.GBps * 1e3)) for one in tiers] if size else []
        return Group(rules, one, PrefixCache(blocks, weight, lower), size, block, growth)

    return [Server(one, [group() for _ in range(layout.dp)], prices, 1 + drafts) for _ in range(pool.number)]


class _Fleet:
    """The state of a run: a heap of events, replicas, who waits for whom. `steps`: decode steps of each request behind its first token.

    `first`: prefill workers; then `send` says how long a prompt's cache takes on its way; it goes layer by layer. `context`: longest request.
    """

    def __init__(
        self, servers: list[Server], requests: Requests, steps: list[int], router: str, *, first: Sequence[Server] = (),
        send: Callable[[int], float] | None = None, context: int = 0, tick: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:  # fmt: skip
        check_word(router, ROUTERS, f"router {show(router)}: unknown")
        self.decoders, self.first, self.requests, self.steps, self.router = servers, list(first), requests, steps, router
        self.send, self.context, self.tick = send, context, tick
        self.servers, self.takers = [*first, *servers], self.first or servers
        rows = requests.rows
        self.children: dict[int, list[int]] = {}
        self.root = list(range(len(rows)))
        for i, row in enumerate(rows):
            if row.after >= 0:
                self.children.setdefault(row.after, []).append(i)
                self.root[i] = self.root[row.after]
        self.members = np.bincount(self.root, minlength=len(rows)).tolist()
        self.heap: list[tuple[float, int, int, Any]] = []
        self.order = count()
        self.turn, self.load = 0, (0, 0)
        self.gaps, self.line, self.record = Gaps(), Timeline(), Record()

    def run(self, failures: Iterable[Failure] = (), gpus: int = 1) -> Replay:
        """All events. Raises `ConfigError` for a failure of a replica that is not there."""
        rows, users = self.requests.rows, self.requests.users
        fresh = iter([i for i, row in enumerate(rows) if row.after < 0])
        self.fresh = fresh if users else iter(())
        for one in failures:
            if not 0 <= one.replica < len(self.servers):
                raise ConfigError(f"failure: replica: found {one.replica}, expected 0 to {len(self.servers) - 1}")
            self._push(one.at * 1e6, FAIL, one)
        for i, number in enumerate(fresh):
            self._push(0.0 if users else rows[number].arrive * 1e6, ARRIVE, number)
            if i + 1 == users:
                break
        acts: dict[int, Callable[[float, Any], None]] = {ARRIVE: self._arrive, READY: self._ready, FAIL: self._fail}
        heap, pop = self.heap, heapq.heappop
        while heap:
            now, kind, _, what = pop(heap)
            if kind == STEP:
                server, version = what
                if version == server.version:
                    self._step(server, now)
            else:
                acts[kind](now, what)
        groups = [group for server in self.servers for group in server.groups]
        busy = sum(server.busy for server in self.servers) / len(self.servers)
        return self.record.report(self.requests, groups, self.gaps, self.line, gpus, busy)

    def _push(self, at: float, kind: int, what: Any) -> None:
        heapq.heappush(self.heap, (at, kind, next(self.order), what))

    def _arrive(self, now: float, number: int) -> None:
        """A request comes, and a replica takes it."""
        request = self.requests.rows[number]
        job = Job(number, request, now, self.steps[number])
        job.todo = 0 if self.first else job.todo
        self.record.count(now, 1)
        long = 0 < self.context < request.prompt + request.output
        if long or not all(one.groups[0].fits(request) for one in (self.takers[0], self.decoders[0])):
            self.record.refused += 1
            self._gone(job, now)
            return
        self._send(now, job, self.takers)

    def _send(self, now: float, job: Job, among: list[Server]) -> None:
        """A job goes to a group of a replica; text becomes tokens first, one after the other."""
        server, job.group = self._route(job, among)
        text = server.engine.token_us * job.request.prompt if job.left else 0.0
        if text:
            server.reader = max(now, server.reader) + text
        self._comes(server.reader if text else now, job, server, job.group)

    def _comes(self, at: float, job: Job, server: Server, group: Group) -> None:
        """A job is at its group from then on; routers count it from now on (vLLM v1/engine/core_client.py)."""
        group.coming += 1
        self._push(at, READY, (job, job.version, server, group))

    def _route(self, job: Job, among: list[Server]) -> tuple[Server, Group]:
        """By the router's rule, of replicas that are up."""
        up = [one for one in among if not one.down] or among
        targets = [(one, group) for one in up for group in one.groups]
        if len(targets) == 1:
            return targets[0]
        if self.router == "round-robin":
            self.turn += 1
            return targets[(self.turn - 1) % len(targets)]
        loads = [WAITING * (len(group.waiting) + group.coming) + len(group.running) for _, group in targets]
        least = min(loads)
        if self.router == "prefix" and not (max(loads) - least > UNEVEN and max(loads) > UNEVEN_TIMES * least):
            hits = [group.cache.hits(job.request.hashes) for _, group in targets]
            if max(hits) * self.requests.block > MATCHES * job.request.prompt:
                return targets[hits.index(max(hits))]
        # of equal loads the one whose caches have left
        return min(zip(loads, targets, strict=True), key=lambda one: (one[0], max(job.arrived, one[1][1].sent)))[1]

    def _ready(self, now: float, what: tuple[Job, int, Server, Group | None]) -> None:
        """A job waits for its place."""
        job, version, server, group = what
        if group:
            group.coming -= 1
        if version != job.version or job.group is None:
            return
        if not job.admitted and self.router != "round-robin":  # others came to its group while its text became tokens
            job.group = self._route(job, [server])[1]
        idle = server.jump == 0
        server.arrive(job, job.group)
        end = now if idle else server.cut(now) if server.cuts else None
        if idle:
            server.version += 1
        if end is not None:
            self._push(end, STEP, (server, server.version))

    def _step(self, server: Server, now: float) -> None:
        """A step is over, and the next begins."""
        if server.jump:
            self.record.steps += server.jump
            first, ended = server.finish(self.gaps)
            for job in first:
                job.beside = self._beside(server, job, server.first)
            for job in ended:
                self._ended(server, job, now)
        if self.heap and self.heap[0][0] <= now and self.heap[0][1] < STEP:  # who comes now may be in the next step
            self._push(now, STEP, (server, server.version))
            return
        if server.down:
            if all(any(not one.down for one in pool) for pool in (self.takers, self.decoders)):
                for job in [job for group in server.groups for job in group.evacuate()]:
                    job.version += 1
                    self._send(now, job, self.decoders if job.made else self.takers)
            self._sample(server, now)
            return
        end = server.begin(now)
        self._sample(server, now)
        if end is not None:
            self._push(end, STEP, (server, server.version))
        for ready, version, job in server.loading:
            self._push(ready, READY, (job, version, server, None))
        server.loading.clear()

    def _sample(self, server: Server, now: float) -> None:
        """Who waits and who runs, over all replicas."""
        before, server.load = server.load, (sum(len(one.waiting) for one in server.groups), sum(len(one.running) for one in server.groups))
        self.load = self.load[0] + server.load[0] - before[0], self.load[1] + server.load[1] - before[1]
        self.line.add(now, *self.load)

    @staticmethod
    def _beside(server: Server, job: Job, step: float) -> tuple[int, float, float]:
        """What `StepPrices.first_us` asks of a first token on its way to its user. A lone request waits for nobody's steps."""
        assert job.group is not None
        n = max(1, job.group.n) if sum(len(group.running) for group in server.groups) > 1 else 0
        return n, job.group.context / max(1, n), step

    def _ended(self, server: Server, job: Job, now: float) -> None:
        """A job is complete where it is. With pools its cache goes to a decode worker: layers are sent while later ones are computed, and a group
        sends one prompt after the other."""
        if self.send is None or server in self.decoders or not self.steps[job.index]:
            steps = self.steps[job.index]
            mean = (now - job.first) / (steps or 1)
            job.later = server.prices.first_us(*job.beside, mean)
            if self.send is not None:
                job.first += min(server.engine.answered - 1, steps) * mean
            self.record.add(job)
            self._gone(job, now)
            return
        took = self.send(job.request.prompt)
        if server.cache_us is not None:
            took += server.beside_caches(now - server.start, took)
        assert job.group is not None
        job.group.sent = max(job.group.sent, server.start) + took
        job.first = max(now + took / server.prices.replica.model.n_layers, job.group.sent)
        job.todo, job.left, job.admitted = self.steps[job.index], 0, False
        other, job.group = self._route(job, self.decoders)
        job.beside = self._beside(other, job, 0.0)
        self._comes(job.first, job, other, job.group)

    def _gone(self, job: Job, now: float) -> None:
        """Turns behind a request, and the next session of its user."""
        self.record.count(now, -1)
        self.record.done += 1
        if not self.record.done % 1000:
            self.tick(self.record.done, len(self.requests.rows))
        for number in self.children.get(job.index, ()):
            self._push(now + self.requests.rows[number].pause * 1e6, ARRIVE, number)
        root = self.root[job.index]
        self.members[root] -= 1
        if not self.members[root] and (behind := next(self.fresh, None)) is not None:
            self._push(now, ARRIVE, behind)

    def _fail(self, now: float, what: Failure) -> None:
        """A replica stops behind the step that it is in, or is back."""
        server = self.servers[what.replica]
        server.down = what.lasts > 0
        if 0 < what.lasts < math.inf:
            self._push(now + what.lasts * 1e6, FAIL, what._replace(lasts=0.0))
        end = server.cut(now) if server.jump > 1 else None if server.jump else now
        if end is not None:
            server.version += server.jump == 0
            self._push(end, STEP, (server, server.version))
