"""`StepPrices`: the time of a step by its shape, from `step_time` on a grid that is computed where it is first asked for.

A step's parts add up (design note 0040): D(requests, context) of decoding requests, P(tokens, new, cached) of prompts, and C(requests, tokens) of
both together, each linear between points of its grid. On top comes `Engine.step_us`, as in `StepTable`.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import ceil

from dysharp.model.batch import StepBatch
from dysharp.serving.engine import Engine
from dysharp.serving.step import step_time
from dysharp.serving.work import Replica

Axis = tuple[float, ...]
REQUESTS: Axis = (1, 2, 3, 4, 6, 8, *(8 * 2 ** (i / 2) for i in range(1, 17)))
CONTEXT: Axis = (0, *(64 * 2**i for i in range(16)))
TOKENS: Axis = (1, 16, 64, *(128 * 2 ** (i / 2) for i in range(17)))
NEW: Axis = (1, *(16 * 2 ** (i / 2) for i in range(29)))
PAST: Axis = (0, *(256 * 4**i for i in range(8)))
LENGTH, SOME = 1024.0, 1024.0
"""Prompt and context at which C is computed: it does not depend on them."""


class _Grid:
    """A function of two numbers on a grid, linear between its points and beyond its last."""

    def __init__(self, first: Axis, second: Axis, at: Callable[[float, float], float]) -> None:
        self.first, self.second, self.at = first, second, cache(at)
        self.cells: dict[tuple[int, int], tuple[float, ...]] = {}

    def __call__(self, x: float, y: float) -> float:
        """The value at a place."""
        (i, at), (j, beside) = _place(self.first, x), _place(self.second, y)
        cell = self.cells.get((i, j))
        if cell is None:
            cell = self.cells[i, j] = tuple(self.at(a, b) for a in self.first[i : i + 2] for b in self.second[j : j + 2])
        low, high = cell[0] + (cell[1] - cell[0]) * beside, cell[2] + (cell[3] - cell[2]) * beside
        return low + (high - low) * at


def _place(axis: Axis, value: float) -> tuple[int, float]:
    """The cell of a value on an axis, and how far into it the value is."""
    i = min(bisect_right(axis, value, 1, len(axis) - 1) - 1, len(axis) - 2)
    return i, (value - axis[i]) / (axis[i + 1] - axis[i])


class StepPrices:
    """Times of steps of one replica in microseconds. `drafts`: tokens that MTP layers draft for every decoding request."""

    def __init__(self, replica: Replica, engine: Engine, drafts: int = 0) -> None:
        self.engine = engine.beside(replica.layout.dp)
        self.replica, self.drafts, self.groups, self.stages = self.engine.runs(replica), drafts, replica.layout.dp, replica.layout.pp
        self.part, self.launches = self.replica.stage_part, 0
        self.tables = [self._tables(1.0), self._tables(1.0 / self.groups)] if self.groups > 1 else [self._tables(1.0)]

    def _tables(self, share: float) -> tuple[_Grid, list[_Grid], _Grid]:
        """D, P at each of `PAST`, and C where other groups have `share` of this group's tokens on average."""
        replica = self.replica

        def device(batch: StepBatch, ended: float = 0.0) -> float:
            batch = batch if share == 1.0 else replace(batch, mean=share * batch.tokens)
            return step_time(replica, batch, ended, self.drafts).device

        def decode(requests: float, context: float) -> float:
            return device(StepBatch(decodes=requests, context=context, queries=1 + self.drafts))

        def prompts(past: float, tokens: float, new: float) -> float:
            return device(StepBatch(prompts=tokens, seen=past + new / 2, past=past), tokens / new)

        def both(requests: float, tokens: float) -> float:
            tokens = max(1.0, min(tokens, self.engine.step_tokens - requests * (1 + self.drafts)))  # no step has more
            batch = StepBatch(decodes=requests, context=SOME, queries=1 + self.drafts, prompts=tokens, seen=LENGTH / 2)
            alone = device(StepBatch(decodes=requests, context=SOME, queries=1 + self.drafts))
            return device(batch, tokens / LENGTH) - alone - prompts(0.0, tokens, LENGTH)

        behind = [_Grid(TOKENS, NEW, partial(prompts, past)) for past in PAST]
        return _Grid(REQUESTS, CONTEXT, decode), behind, _Grid(REQUESTS, TOKENS, both)

    def device(self, requests: float, context: float, tokens: float = 0.0, new: float = 1.0, past: float = 0.0, even: float = 1.0) -> float:
        """GPU time of a step of `requests` decoding requests with `context` cached tokens on average and `tokens` of prompts, `new` of each, behind
        `past` cached ones, in the busiest group. `even`: tokens of all groups over those of as many groups like the busiest."""
        found = [self._device(tables, requests, context, tokens, new, past) for tables in self.tables]
        if len(found) == 1:
            return found[0]
        return found[1] + (found[0] - found[1]) * (even - 1 / self.groups) / (1 - 1 / self.groups)

    @staticmethod
    def _device(tables: tuple[_Grid, list[_Grid], _Grid], requests: float, context: float, tokens: float, new: float, past: float) -> float:
        decode, prompts, both = tables
        if not tokens:
            return decode(requests, context)
        k, part = _place(PAST, past)
        alone = prompts[k](tokens, min(new, tokens))
        if part:
            alone += (prompts[k + 1](tokens, min(new, tokens)) - alone) * part
        return alone + decode(requests, context) + both(requests, tokens) if requests else alone

    def us(self, requests: float, context: float, tokens: float = 0.0, new: float = 1.0, past: float = 0.0, even: float = 1.0) -> float:
        """From step to step. With stages, each works on a part of the requests (`StepTable`)."""
        step, part, stages = self.engine.step_us, self.part, self.stages
        each = requests / stages
        if not tokens:
            return stages * step(self.replica, part * self.device(max(1.0, each), context, even=even), each)
        if not self.launches:
            self.launches = step_time(self.replica, StepBatch(prompts=LENGTH, seen=LENGTH / 2), 1.0).kernels
        mixed = step(self.replica, part * self.device(each, context, tokens, new, past, even), each, ceil(self.launches * part), tokens)
        if stages > 1 and requests:
            mixed += (stages - 1) * step(self.replica, part * self.device(max(1.0, each), context, even=even), each)
        return mixed

    def first_us(self, requests: float, context: float, step: float, mean: float) -> float:
        """Time of a first token outside its own step of `step`, beside decoding requests: the other stages, and what `Engine.first_us` has. `mean`:
        time from token to token of its output, steps with prompts among them."""
        beside = (self.us(requests, context), mean) if requests else (0.0,)
        return self.engine.first_us(self.replica, *beside) + (self.stages - 1) * step
