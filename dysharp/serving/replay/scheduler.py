"""`Server`: one replica with the scheduler of its engine. Its attention groups have their own requests and memory, and step together.

Where prompts go first, a group without prompts decodes beside those of the others, unless it has drafts (SGLang, managers/scheduler.py,
get_next_batch_to_run).

Between two ends nothing happens but decode steps, so a server jumps: to the next end, or to the step for which memory is missing. An arrival cuts a
jump at the next step. Rules beside `Engine`: `data/schedulers.toml`.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dysharp.base import read_toml
from dysharp.base.errors import entry_of, show
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.exchange import beside_caches_us
from dysharp.serving.replay.prefixes import PrefixCache

if TYPE_CHECKING:
    from dysharp.serving.replay.gaps import Gaps
    from dysharp.serving.replay.prices import StepPrices
    from dysharp.serving.replay.request import Request

FILE = Path(__file__).parent / "data" / "schedulers.toml"
LOADED = -1
"""Priority of a request whose cached blocks have come: it has its memory."""


class Schedule(NamedTuple):
    """Who runs and who waits: a table of `data/schedulers.toml`."""

    name: str
    block: int
    victim: str
    reserve: float
    least: float
    decay_steps: int
    spare_steps: int


@functools.cache
def schedule_of(name: str) -> Schedule:
    """The rules of an engine by name. Raises `ConfigError` with the nearest name."""
    rules = entry_of(name, read_toml(FILE), f"engine {show(name)}: unknown")
    return Schedule(name, least=engine_of(name).reserved, **rules)


class Job:
    """A request on its way. Times in microseconds.

    `made`: output tokens so far; `todo`: decode steps that are left; `left`: tokens of the prompt, and of lost outputs, that are to be computed;
    `growth`: output tokens of a decode step; `blocks`, `most`: KV blocks without a hash, now and at its end.
    """

    __slots__ = (
        "admitted", "arrived", "begun", "beside", "blocks", "end", "first", "group", "growth", "hit", "index", "last", "later", "left", "made",
        "most", "names", "request", "slot", "todo", "total", "version",
    )  # fmt: skip

    def __init__(self, index: int, request: Request, arrived: float, steps: int) -> None:
        self.index, self.request, self.arrived, self.todo = index, request, arrived, steps
        self.growth = (max(1, request.output) - 1) / steps if steps else 0.0
        self.names: tuple[Hashable, ...] = ()
        self.admitted = False
        self.made = self.hit = self.blocks = self.most = self.begun = self.slot = self.version = 0
        self.left = -1
        self.total = request.prompt
        self.first = self.last = self.end = self.later = 0.0
        self.beside = (0, 0.0, 0.0)
        self.group: Group | None = None


class Group:
    """One attention group: who waits, who runs, its memory. `steps`: decode steps so far."""

    def __init__(self, rules: Schedule, engine: Engine, cache: PrefixCache, tokens: int, block: int, growth: float = 1.0) -> None:
        """`tokens`: of a block that a hash names (0: no hashes); `block`: tokens of a KV block; `growth`: mean output tokens of a decode step."""
        self.rules, self.engine, self.cache, self.tokens, self.block = rules, engine, cache, tokens, block
        self.slots = [0] * max(1, int(self.block / growth))
        """Decoding requests by the decode step, modulo the steps of a block, in which they need the next block."""
        self.waiting: list[tuple[int, float, int, Job]] = []
        self.running: dict[Job, None] = {}
        self.ends: list[tuple[int, int, int, Job]] = []
        self.partial: Job | None = None
        self.steps = self.n = self.most = 0
        self.context = self.growth = self.sent = 0.0
        self.reserve = rules.reserve
        self.taken: list[tuple[Job, int, int]] = []
        self.gaps: list[tuple[int, float]] = []
        """(requests, when they had their last token)."""
        self.preemptions = self.asked = self.hit = self.coming = 0
        """`coming`: jobs on their way to this group; `sent`: when its way out for caches is free."""

    def wait(self, job: Job) -> None:
        """A job joins the queue."""
        heapq.heappush(self.waiting, (LOADED if job.admitted else job.request.priority, job.arrived, job.index, job))

    @property
    def place(self) -> bool:
        """Whether one more request may run."""
        return len(self.running) < self.engine.most_requests

    def fits(self, request: Request) -> bool:
        """Whether the request fits alone."""
        return -(-(request.prompt + request.output) // self.block) <= self.cache.capacity

    def admit(self, job: Job, tokens: float, now: float) -> float:
        """Give a job its memory if there is room. Returns when it may start; inf: no room, or more than `tokens` to compute."""
        cache, size, total = self.cache, self.tokens, job.request.prompt + (job.made if job.left else 0)
        names = job.request.hashes[: job.request.prompt // size] if size else ()
        usable = names[: (total - 1) // size] if size else ()
        hits = cache.hits(usable)
        own = total - len(names) * size
        blocks = -(-own // self.block)
        slots = len(self.slots)
        slot = own % self.block * slots // self.block
        most = blocks - (-(slot + job.todo) // slots) + -slot // slots
        reserved = math.ceil(self.reserve * (self.most - cache.others + most - blocks)) if self.reserve else 0
        if cache.needs(names) + blocks + reserved > cache.free or (job.left and total - hits * size > tokens):
            return math.inf
        below, ready = cache.below(usable[hits:], now)
        cache.pin(names)
        cache.hold(blocks)
        job.names, job.blocks, job.most, job.total, job.admitted, job.slot = names, blocks, most, total, True, slot
        self.most += most
        if job.left:
            job.hit = (hits + below) * size
            job.left = total - job.hit
            self.asked, self.hit = self.asked + total, self.hit + job.hit
        self.running[job] = None
        return ready

    def take(self, budget: float, now: float, loading: list[tuple[float, int, Job]]) -> None:
        """Prompts of a step with `budget` tokens, in order. A job whose blocks come from a tier waits for them in `loading`."""
        mixed = self.engine.mixed
        while budget > 0:
            job = self.partial
            if job is None:
                if not self.waiting:
                    break
                job = self.waiting[0][-1]
                if not job.admitted:
                    ready = self.admit(job, math.inf if mixed or not self.taken else budget, now) if self.place else math.inf
                    if ready == math.inf:
                        break
                    if ready > now:
                        heapq.heappop(self.waiting)
                        loading.append((ready, job.version, job))
                        continue
                heapq.heappop(self.waiting)
            part = int(min(job.left, budget))
            self.taken.append((job, part, job.total - job.left))
            job.left -= part
            budget -= part
            self.partial = job if job.left else None
            if job.left:
                break

    def joins(self, now: float) -> int:
        """Jobs whose prompt was computed elsewhere decode at once. Returns the tokens of their caches."""
        came = 0
        while self.waiting and self.waiting[0][-1].left == 0 and self.place and self.admit(self.waiting[0][-1], math.inf, now) < math.inf:
            job = heapq.heappop(self.waiting)[-1]
            if job.made == 1:  # its user sees the first token when it joins
                job.first = max(job.first, now)
            self.decode(job, now)
            self.gaps.append((1, now))
            came += job.total
        return came

    def decode(self, job: Job, now: float) -> None:
        """A job decodes from now on."""
        job.begun, job.last = self.steps, now
        job.slot = (job.slot - self.steps) % len(self.slots)
        self.slots[job.slot] += 1
        self.n += 1
        self.growth += job.growth
        self.context += job.total
        heapq.heappush(self.ends, (self.steps + job.todo, job.index, job.version, job))

    def _stop(self, job: Job) -> None:
        """A job decodes no longer."""
        steps, size = self.steps - job.begun, len(self.slots)
        first = (job.slot + job.begun) % size
        job.blocks += -(-(first + steps) // size) + -first // size
        self.slots[job.slot] -= 1
        self.n -= 1
        self.growth -= job.growth
        self.context = self.context - job.total - steps * job.growth if self.n else 0.0
        job.todo -= steps
        job.made += round(steps * job.growth)

    def _free(self, job: Job) -> None:
        self.cache.unpin(job.names)
        self.cache.hold(-job.blocks)
        self.most -= job.most
        del self.running[job]

    def needs(self, count: int, behind: int = 0) -> int:
        """Blocks that `count` decode steps need, `behind` steps from now."""
        rounds, rest = divmod(count, len(self.slots))
        begin = self.steps + behind
        return rounds * self.n + sum(self.slots[-(begin + j) % len(self.slots)] for j in range(rest))

    def room(self, now: float) -> bool:
        """Hold the blocks of the next decode step. Preempts until they are there; returns whether it did."""
        before, spare = self.preemptions, self.rules.spare_steps
        while self.cache.free < (need := self.needs(1)) or (self.preemptions > before and self.cache.free * self.block < self.n * spare):
            if len(self.running) == 1:
                break
            self._preempt(now)
        self.cache.hold(need)
        if spare and self.preemptions > before:
            made, wanted = (sum(of(job) for job in self.running if job.left == 0) for of in (self._made, lambda job: job.request.output))
            self.reserve = min(1.0, (made + spare * self.n) / max(1, wanted))
        return self.preemptions > before

    def _made(self, job: Job) -> float:
        """Output tokens of a decoding job."""
        return job.made + (self.steps - job.begun) * job.growth

    def _preempt(self, now: float) -> None:
        """Somebody loses its memory, and waits to be computed again."""
        decoding = [job for job in self.running if job.left == 0] if self.rules.victim == "fewest" else []
        if len(decoding) > 1:
            victim = min(decoding, key=lambda job: (self._made(job), -job.request.prompt))
        else:
            victim = max(reversed(self.running), key=lambda job: job.request.priority)
        self.drop(victim)
        self.wait(victim)
        self.preemptions += 1

    def evacuate(self) -> list[Job]:
        """All jobs, without what they had; the memory is empty."""
        found = [*self.running, *(entry[-1] for entry in self.waiting if not entry[-1].admitted)]
        for job in list(self.running):
            self.drop(job)
        for job in found:
            job.left = -1
        self.waiting, self.ends, self.gaps = [], [], []
        self.cache.clear()
        return found

    def drop(self, job: Job) -> None:
        """A job loses what it has in memory."""
        if job is self.partial:
            self.partial = None
        elif job.left == 0:
            self._stop(job)
            self.gaps = [(self.n, self.gaps[0][1])] if self.gaps else []
        self._free(job)
        job.version += 1
        job.left, job.admitted = -1, False

    def most_steps(self, count: int) -> int:
        """Of `count` decode steps those for which memory is there, the first of which has it already."""
        free, size = self.cache.free, len(self.slots)
        if not self.n or self.n * (count // size + 1) <= free:
            return count
        steps = 1 + max(0, free // self.n - 1) * size
        while steps < count and self.needs(steps, 1) <= free:
            steps += 1
        return min(steps, count)

    def advance(self, count: int) -> None:
        """`count` decode steps are done; the first has its blocks."""
        self.cache.hold(self.needs(count - 1, 1))
        self.steps += count
        self.context += count * self.growth
        if self.reserve > self.rules.least:
            self.reserve = max(self.rules.least, self.reserve - count * (self.rules.reserve - self.rules.least) / self.rules.decay_steps)

    def ended(self) -> list[Job]:
        """Jobs that are complete; their outputs stay in the cache where hashes name them."""
        found = []
        while self.ends and self.ends[0][0] <= self.steps:
            _, _, version, job = heapq.heappop(self.ends)
            if version != job.version:
                continue
            self._stop(job)
            self._free(job)
            if self.tokens and len(more := job.request.hashes[: (job.total + job.made - 1) // self.tokens]) > len(job.names):
                self.cache.touch(more)
            found.append(job)
        if not self.running:
            self.reserve = self.rules.reserve
        return found


class Server:
    """A replica. `begin` plans a step or a jump and says when it is over; `finish` carries it out and returns what came of it."""

    def __init__(self, engine: Engine, groups: list[Group], prices: StepPrices, queries: int = 1) -> None:
        self.engine, self.groups, self.prices, self.queries = engine, groups, prices, queries
        self.loading: list[tuple[float, int, Job]] = []
        self.start, self.jump, self.first, self.slope, self.load = 0.0, 0, 0.0, 0.0, (0, 0)
        self.prompts = self.cuts = self.down = False
        self.decoding: list[Group] = []
        self.steps = self.since = self.version = 0
        self.cache_us: Callable[[int], float] | None = None
        """Time of NICs with so many tokens of caches, where rows of experts pass them too."""
        self.busy = self.reader = 0.0
        """`reader`: when the process that turns text into tokens is free."""

    def arrive(self, job: Job, group: Group) -> None:
        """A job waits for a group, which may cut the jump."""
        ahead = bool(group.waiting) and group.waiting[0][:2] <= (job.request.priority, job.arrived)
        job.group = group
        group.wait(job)
        self.cuts = self.jump > 1 and (bool(self.engine.gathered_steps) or (group.place and not ahead))

    def cut(self, now: float) -> float | None:
        """When a jump ends that stops at the first step from `now` on; None: it ends as planned."""
        count, gone = self.jump, now - self.start
        least = self.first + self.slope * (count - 1)
        steps = min(count, max(1, int(gone / max(self.first, least))))
        while steps < count and self._took(steps) < gone:
            steps += 1
        if steps == count:
            return None
        self.jump, self.version = steps, self.version + 1
        return self.start + self._took(steps)

    def _took(self, steps: int) -> float:
        return steps * self.first + self.slope * steps * (steps - 1) / 2

    def begin(self, now: float) -> float | None:
        """Plan from `now` on. Returns when the step or jump is over; None: nothing to do."""
        self.start, mixed = now, self.engine.mixed
        came = 0
        for group in self.groups:
            group.taken = []
            came = max(came, group.joins(now))
        held = self._gathers()
        preempted = [bool(group.n) and group.room(now) if mixed else False for group in self.groups]
        for group, lost in zip(self.groups, preempted, strict=True):
            if not held and not lost:
                group.take(self.engine.step_tokens - (group.n * self.queries if mixed else 0), now, self.loading)
        self.prompts = any(group.taken for group in self.groups)
        self.decoding = [group for group in self.groups if group.n and (self.engine.mixed or not (self.prompts if self.queries > 1 else group.taken))]
        if not mixed:
            for group in self.decoding:
                group.room(now)
        self.decoding = decoding = [group for group in self.decoding if group.n]
        if not decoding and not self.prompts:
            self.jump = 0
            return None
        self.jump = 1 if self.prompts or (came and self.cache_us) else self._jump(decoding, held)
        self.first = self._us(decoding, 0)
        self.slope = (self._us(decoding, self.jump - 1) - self.first) / (self.jump - 1) if self.jump > 1 else 0.0
        if self.cache_us is not None and (moved := came or self._taken()):
            self.first += self.beside_caches(self.first, self.cache_us(moved))
        return now + self._took(self.jump)

    def _taken(self) -> int:
        """Tokens of prompts in the step of the busiest group."""
        return max(sum(part for _, part, _ in group.taken) for group in self.groups)

    def beside_caches(self, step: float, caches: float) -> float:
        """`serving.exchange.beside_caches_us` of the step that was planned last."""
        tokens = self._taken() + max((group.n for group in self.decoding), default=0) * self.queries
        return beside_caches_us(self.prices.replica, tokens, step, caches)

    def _gathers(self) -> bool:
        """Whether prompts wait for prompts of other groups."""
        patience, count = self.engine.gathered_steps, sum(len(group.waiting) for group in self.groups)
        self.since = -1 if not count else self.steps if self.since < 0 else self.since
        return bool(patience) and 0 < count < len(self.groups) and any(group.n for group in self.groups) and self.steps - self.since < patience

    def _jump(self, decoding: list[Group], held: bool) -> int:
        """Decode steps up to the next end, or to what else changes the plan."""
        for group in decoding:
            while group.ends[0][2] != group.ends[0][3].version:
                heapq.heappop(group.ends)
        count = min(group.ends[0][0] - group.steps for group in decoding)
        if held:
            count = min(count, self.since + self.engine.gathered_steps - self.steps)
        if any(group.waiting and group.reserve > group.rules.least for group in self.groups):
            count = 1
        for group in decoding:
            count = group.most_steps(count)
        return max(1, count)

    def _us(self, decoding: list[Group], behind: int) -> float:
        """The time of a step, `behind` steps from now: that of the busiest group."""
        n = max((group.n for group in decoding), default=0)
        context = max(group.context + behind * group.growth for group in decoding) / n if n else 0.0
        if not self.prompts:
            return self.prices.us(n, context, even=self._even(decoding, n))
        parts = max((group.taken for group in self.groups), key=lambda taken: sum(part for _, part, _ in taken))
        tokens = sum(part for _, part, _ in parts)
        new, past = sum(part * part for _, part, _ in parts) / tokens, sum(part * before for _, part, before in parts) / tokens
        if self.engine.mixed or not n:
            return self.prices.us(n, context, tokens, new, past, self._even(decoding, n, tokens))
        prompts = self.prices.us(0, 0.0, tokens, new, past, self._even(decoding, 0, tokens))
        return max(prompts, self.prices.us(n, context, even=self._even(decoding, n)))

    def _even(self, decoding: list[Group], n: int, tokens: int = 0) -> float:
        """Tokens of all groups over those of as many groups like the busiest."""
        if len(self.groups) == 1:
            return 1.0
        every = sum(group.n for group in decoding) * self.queries + sum(part for group in self.groups for _, part, _ in group.taken)
        return min(1.0, every / (len(self.groups) * (n * self.queries + tokens)))

    def finish(self, gaps: Gaps) -> tuple[list[Job], list[Job]]:
        """Carry the plan out. Returns the jobs whose first token came, and those that ended; `gaps` counts times between tokens."""
        count, now = self.jump, self.start + self._took(self.jump)
        self.busy += now - self.start
        self.steps += count if self.engine.mixed or not self.prompts else 0
        first, ended, decoding = list[Job](), list[Job](), set(self.decoding)
        for group in self.groups:
            before, decodes = group.n, group in decoding
            if decodes:
                for n, since in group.gaps:
                    gaps.add(self.start + self.first - since, n)
                if count > 1:
                    gaps.add(self.first + self.slope * count / 2, before * (count - 1))
                group.advance(count)
            for job, _, _ in group.taken:
                if job.left:
                    continue
                if job.made:  # computed again: its next token
                    gaps.add(now - job.last, 1)
                    job.todo -= 1
                else:
                    job.first = now
                    first.append(job)
                job.made += 1
                group.decode(job, now)
            ended += group.ended()
            group.gaps = [(group.n, now)] if decodes or not before else [*group.gaps, (group.n - before, now)]
        for job in ended:
            job.end = now
        self.jump = 0
        return first, ended
