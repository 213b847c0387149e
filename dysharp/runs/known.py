"""Until the time of a layer is known: its first tokens stand for all of them. The one rule, for `run`, `compare` and `advise`.

The time of n tokens is that of the system's own GEMMs and the kernels around them between free transfers, plus start-up, plus a rate for each row of
the busiest link. The first part is simulated and the rows are counted for all tokens; the rate is followed by block, over the first 1/4, 1/2, 3/4 and
all of n tokens. The interval is that of a line through these blocks (docs/design/0039-until-the-answer-is-known.md).
"""

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np

from dysharp.analysis import Row
from dysharp.base import ByName, SimulationError, frozen
from dysharp.runs.header import header_of, settings_of
from dysharp.runs.request import Request, Workload
from dysharp.specs import Cluster, choice_int
from dysharp.systems import System
from dysharp.workload import LEVELS, Routing, first_tokens, scheme_rows

WHOLE_ROWS = 300_000
"""(token, expert) rows up to which `compare` over several domains and `advise` simulate all tokens."""
PRECISION = 0.01
"""Of layers above `WHOLE_ROWS`."""
FEWEST, PART = 512, 4
"""Tokens per GPU with which a layer stops at the earliest, and its tokens over those with which it stops at the latest. All blocks together are 2.5
times as many."""
REFUSED = 0.25
"""Largest part of the time by which an estimate from a given number of tokens (`window`) may be off."""
EVERYWHERE = ("allgather", "ring")
"""Traffic of systems that send every token to every GPU."""
ALONE = 0.03
"""GEMMs run alone where they overlap Dispatch and Combine for less than this share of the layer."""
T90 = 2.92
"""Of Student's t with two degrees of freedom: nine of ten layers are inside."""
UNSEEN = 0.003
"""Of the time, what blocks that happen to lie on a line do not show: layers that stop are chosen by it. Fitted on three draws of layers."""
GROWTH, GROWTH_OF_WINDOWS = 1.5, 1.1
"""Dispatch and Combine take at least this many times as long when the tokens double, unless they are within the precision. Windows may be small."""


class NoEstimate(SimulationError):
    """First tokens that do not tell the time of the whole layer. Exit code 1."""


class _BlockRuns(Protocol):
    """How a layer is simulated."""

    def layer(self, workload: Workload) -> Row:
        """The Row of all tokens of a Workload."""

    def experts(self, workload: Workload) -> Row | None:
        """The Row of the same tokens with transfers that cost nothing; None: not known."""

    def rows(self, routing: Routing, cluster: Cluster) -> int:
        """`busiest_rows`."""


def layer_rows(request: Request, system: System | None = None) -> int:
    """(token, expert) rows of a layer. A `system` that sends every token to every GPU has a row for each GPU."""
    copies = request.cluster.n_gpus if system and system.moves.sent in EVERYWHERE else request.model.topk
    return request.tokens * request.cluster.n_gpus * copies


def may_stop(request: Request, system: System, options: Any) -> bool:
    """Whether the rule knows the layer: rows are sent, by software that works the same way at any size; all ranks are alike; tables of hubs are full
    from the first block on; and there are tokens to leave out."""
    tables = hasattr(options, "rat_banks") or (hasattr(options, "al_misses") and request.cluster.al_tlb_entries > FEWEST)
    same = not system.costs.by_size or system.form_on(request.cluster, options) != "real"
    steady = system.moves.sent != "none" and same and request.skew is None and not tables
    return steady and (bool(request.window) or request.tokens >= PART * FEWEST)


def busiest_rows(system: System, routing: Routing, options: Any, domain_gpus: int) -> int:
    """Rows that the busiest GPU sends or receives in Dispatch, and in Combine; over several domains, by NIC."""
    routing = system.served(routing, options)
    if domain_gpus < routing.n_gpus:
        out, into = LEVELS[system.moves.between or "direct"](routing, domain_gpus).far
        return 2 * max(int(out.max()), int(into.max()))
    ways = (system.moves.sent, system.moves.back or system.moves.sent)
    return sum(max(int(side.max()) for side in scheme_rows(routing, way, options)) for way in ways)


def first_workload(workload: Workload, tokens: int) -> Workload:
    """The first `tokens` tokens of each GPU; the Request has this number too, because warnings read it there."""
    request = dataclasses.replace(workload.request, tokens=tokens, window=None, precision=None)
    return dataclasses.replace(workload, request=request, routing=first_tokens(workload.routing, tokens))


def _gemms_us(row: Row) -> float:
    """Time of the GEMMs on the critical path."""
    return row.path_us["gemm1"] + row.path_us["gemm2"]


def _gemms_are_alone(row: Row) -> bool:
    """Whether Dispatch ends before the GEMMs begin, and Combine begins after they end."""
    phases = row.phases_us
    if not {"dispatch", "gemm1", "gemm2", "combine"} <= phases.keys():
        return False
    early = phases["dispatch"]["end"] - phases["gemm1"]["start"]
    return max(0.0, early) + max(0.0, phases["gemm2"]["end"] - phases["combine"]["start"]) < ALONE * row.time_us


@frozen
class Block:
    """The first `tokens` tokens of a layer. `row`: simulated; None = all tokens. `experts`: with free transfers; None = no part of a sum.
    `rows`: of the busiest link."""

    tokens: int
    row: Row | None
    experts: Row | None
    rows: int

    @property
    def simulated(self) -> Row:
        """`row` of a block that has one."""
        assert self.row is not None
        return self.row

    def beside(self, value: Callable[[Row], float]) -> float:
        """`value` of the layer less that of its experts."""
        return (value(self.row) if self.row else 0.0) - (value(self.experts) if self.experts else 0.0)


def extended(before: Row, row: Row, tokens: int, value: Callable[[Row], float]) -> float:
    """`value` of `tokens` tokens per GPU, by the line through two Rows with fewer tokens."""
    return value(row) + (tokens - row.tokens_per_gpu) * (value(row) - value(before)) / (row.tokens_per_gpu - before.tokens_per_gpu)


def _time(row: Row) -> float:
    return row.time_us


@frozen
class _Known:
    """The first 1/4, 1/2, 3/4 and all of n tokens (`blocks`), and the `whole` layer. `tile`: tokens per GPU that fill a tile of each expert."""

    blocks: tuple[Block, ...]
    whole: Block
    tile: float

    def line(self, value: Callable[[Row], float], by: str = "rows") -> tuple[float, float]:
        """(`value` of all tokens, its prediction interval either way): that of the experts, and the line by least squares through what the blocks
        have beside it. `by`: "rows" of the busiest link, or "tokens"."""
        x, y = (np.array(column, np.float64) for column in zip(*((getattr(block, by), block.beside(value)) for block in self.blocks), strict=True))
        if not (far := x - x.mean()).any():
            return self.line(value, "tokens")
        rate = float(far @ y / (far @ far))
        rest, whole = y - y.mean() - rate * far, getattr(self.whole, by)
        ahead, grown = whole - x.mean(), whole / x.mean()  # all tokens are as rough as few of them, in proportion
        spread = rest @ rest / max(1, len(x) - 2) * (grown**2 + 1 / len(x) + ahead**2 / (far @ far))
        return float(y.mean() + rate * ahead) - self.whole.beside(value), T90 * float(np.sqrt(spread))

    def off(self) -> float:
        """How far the time may be off, either way, as a part of it: the interval of the line, half of what tokens in place of rows say, GEMMs that
        transfers slow (they share memory, until products take longer than weights) or, where less than a tile overlaps them, may hide, and what no
        line shows."""
        (time_us, wide), (other, _), last = self.line(_time), self.line(_time, "tokens"), self.blocks[-1]
        gemms_us = last.beside(_gemms_us) if last.experts or self.blocks[0].tokens < self.tile else 0.0
        return math.hypot(wide / time_us, (other / time_us - 1) / 2, gemms_us / last.simulated.time_us, UNSEEN)

    def refusal(self, most: float, growth: float) -> str:
        """Why the blocks do not tell the time to the part `most`; "" = they may. `growth`: of operators when tokens double, at least."""
        before, row, (time_us, _) = self.blocks[1].simulated, self.blocks[-1].simulated, self.line(_time)
        bounds = (lambda row: row.bound_us), (lambda row: row.workload_bound_us)
        bound = max(extended(before, row, self.whole.tokens, value) for value in bounds)
        if time_us < max(bound, row.time_us):
            return f"found {time_us:.1f} us, below the bound of {bound:.1f} us or the {row.time_us:.1f} us of these"
        for name in ("dispatch", "combine"):
            grown = row.path_us[name] * self.whole.tokens / row.tokens_per_gpu
            if row.path_us[name] < growth * before.path_us[name] and grown > most * time_us:
                return f"{name.capitalize()} takes {before.path_us[name]:.1f} us for half of them and {row.path_us[name]:.1f} us for all"
        return ""

    def window(self, off: float) -> ByName:
        """The estimate, as in `Row.window`."""
        row, tokens, (time_us, _) = self.blocks[-1].simulated, self.whole.tokens, self.line(_time)
        return {
            "tokens": row.tokens_per_gpu, "of_tokens": tokens, "time_us": time_us,
            "us_per_token": (time_us - row.time_us) / (tokens - row.tokens_per_gpu),
            "half_window_time_us": dataclasses.replace(self, blocks=self.blocks[:2]).line(_time)[0], "apart": off,
            "low_us": time_us * (1 - off), "high_us": time_us * (1 + off),
            "path_us": {name: self.line(lambda row, name=name: row.path_us.get(name, 0.0))[0] for name in row.path_us},  # type: ignore[misc]
            "surroundings_us": {name: self.line(lambda row, name=name: row.surroundings_us[name])[0] for name in row.surroundings_us},  # type: ignore[misc]
        }  # fmt: skip


def until_known(workload: Workload, runs: _BlockRuns) -> Row:
    """The Row of the first tokens, with `window` = the estimate for the whole layer. Raises NoEstimate where they do not tell its time.

    With `Request.window`, of so many tokens; else of 512, 1024, ... tokens, until the time is known to `Request.precision`.
    """
    request, done = workload.request, dict[int, Row]()
    most, size = request.precision or REFUSED, request.window or FEWEST
    all_tokens = dataclasses.replace(workload, request=dataclasses.replace(request, window=None, precision=None))

    @cache
    def block(tokens: int, in_turn: bool) -> Block:
        part = all_tokens if tokens == request.tokens else first_workload(workload, tokens)
        row = done.get(tokens)
        if row is None and part is not all_tokens:
            row = done[tokens] = runs.layer(part)
        return Block(tokens, row, runs.experts(part) if in_turn else None, runs.rows(part.routing, request.cluster) or tokens)

    while True:
        full = block(size, False).simulated
        in_turn = _gemms_are_alone(full) or not _gemms_us(full)
        if request.precision and not in_turn:
            raise NoEstimate(f"precision of time: GEMMs of {full.system} overlap its transfers, so they are no part of a sum")
        tile = choice_int("gemm.tile_rows") * request.model.n_experts / (request.model.topk * request.cluster.n_gpus)
        known = _Known(tuple(block(n * size // 4, in_turn) for n in range(1, 5)), block(request.tokens, in_turn), tile)
        off, why = known.off(), known.refusal(most, GROWTH if request.precision else GROWTH_OF_WINDOWS)
        if not why and off <= most:
            return _row(workload, known, off, list(done.values()))
        why = why or f"they tell the time to {off:.2%}, expected {most:.2%}".replace("%", " %")
        needed = size * max(2.0, off / most / 2)  # noise falls by half when tokens double, what is left of the start faster
        while size < needed:
            size *= 2
        if request.window or PART * size > request.tokens:
            raise NoEstimate(f"window: {full.tokens_per_gpu} leading tokens of {full.system} give no estimate: {why}; simulate more tokens")


def _row(workload: Workload, known: _Known, off: float, runs: list[Row]) -> Row:
    """The Row of n tokens with the estimate, and the wall times of all runs."""
    row = known.blocks[-1].simulated
    wall = {name: sum(one.wall_s[name] for one in runs) for name in row.wall_s}
    wall["routing"], wall["total"] = workload.routing_s, wall["total"] - (len(runs) - 1) * workload.routing_s
    header = (*header_of(workload), *settings_of(row.system, row.form, row.options, workload.request))
    return dataclasses.replace(row, window=known.window(off), wall_s=wall, compile_s=sum(one.compile_s for one in runs), header=header)
