"""Leading tokens: the first tokens of each GPU stand for all tokens of a layer. The one rule, for `run`, `compare` and `advise`.

The time of a layer is start-up and drain plus its tokens at a steady rate. The rate is the time that the second half of the leading tokens adds,
so start-up and drain, which both runs have, cancel. GEMMs have no steady rate: few tokens read the weights from memory and fill part of a tile.
GEMMs that run alone are taken out of the line. They grow as the GEMMs of a run without transfers, which has all tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from dysharp.analysis import Row
from dysharp.base.errors import SimulationError
from dysharp.base.values import frozen
from dysharp.runs.header import header_of, settings_of
from dysharp.runs.request import Request, Workload
from dysharp.systems import System
from dysharp.workload import first_tokens

WHOLE_ROWS, LEADING_ROWS = 300_000, 150_000
"""(token, expert) rows up to which all tokens of a layer are simulated; most rows of the leading tokens of a larger layer."""
SEARCH_ROWS = 20_000
"""Rows of the leading tokens with which settings of one system are compared (`planning.advice.tuning`). No time is estimated from them."""
EVERYWHERE = ("allgather", "ring")
"""Traffic of systems that send every token to every GPU."""
SETTLED, REFUSED = 0.05, 0.10
"""Relative difference of two estimates up to which there is no warning, and above which there is no estimate."""
ALONE = 0.03
"""GEMMs run alone where they overlap Dispatch and Combine for less than this share of the layer."""
STEP_SHARE, GROWTH = 0.1, 1.1
"""An operator with more than this share of the layer must take this many times as long when the leading tokens double."""


class NoEstimate(SimulationError):
    """Leading tokens that do not tell the time of the whole layer. Exit code 1."""


def leading_tokens(request: Request, system: System | None = None, most_rows: int | None = None) -> int | None:
    """Leading tokens per GPU that stand for a layer, at least 32; None: all tokens, because the layer is small.

    `most_rows`: rows of the leading tokens, and of a small layer; None: `LEADING_ROWS` and `WHOLE_ROWS`.
    A `system` that sends every token to every GPU has a row for each GPU. One without transfers runs with all tokens.
    """
    traffic = None if system is None else system.moves.sent
    copies = request.cluster.n_gpus if traffic in EVERYWHERE else request.model.topk
    each = request.cluster.n_gpus * copies
    n = 1 << max(5, ((most_rows or LEADING_ROWS) // each).bit_length() - 1)
    return None if traffic == "none" or request.tokens * each <= (most_rows or WHOLE_ROWS) or n >= request.tokens else n


def with_leading_tokens(request: Request, system: System | None = None) -> Request:
    """The request, with leading tokens if its layer is large."""
    tokens = leading_tokens(request, system)
    return request if tokens is None else dataclasses.replace(request, window=tokens, chosen=True)


def leading_workload(workload: Workload, tokens: int) -> Workload:
    """The first `tokens` tokens of each GPU; the Request has this number too, because warnings read it there."""
    request = dataclasses.replace(workload.request, tokens=tokens, window=None, chosen=False)
    return dataclasses.replace(workload, request=request, routing=first_tokens(workload.routing, tokens))


def extended(before: Row, row: Row, tokens: int, value: Callable[[Row], float]) -> float:
    """`value` of a layer with `tokens` tokens per GPU, by the line through two Rows with fewer tokens."""
    per_token = (value(row) - value(before)) / (row.tokens_per_gpu - before.tokens_per_gpu)
    return value(row) + (tokens - row.tokens_per_gpu) * per_token


def gemms_us(row: Row) -> float:
    """Time of the GEMMs on the critical path."""
    return row.path_us["gemm1"] + row.path_us["gemm2"]


def gemms_are_alone(row: Row) -> bool:
    """Whether Dispatch ends before the GEMMs begin, and Combine begins after they end."""
    phases = row.phases_us
    if not {"dispatch", "gemm1", "gemm2", "combine"} <= phases.keys():
        return False
    early = phases["dispatch"]["end"] - phases["gemm1"]["start"]
    return max(0.0, early) + max(0.0, phases["gemm2"]["end"] - phases["combine"]["start"]) < ALONE * row.time_us


def does_not_grow(before: Row, row: Row) -> str:
    """The operator whose time does not grow from `before` to `row`, which has more tokens; "" = none.

    Such an operator works in steps, for example a wave of chunks. Few tokens then say nothing about many.
    """
    for name in ("dispatch", "combine"):
        if row.path_us[name] > STEP_SHARE * row.time_us and row.path_us[name] < GROWTH * before.path_us[name]:
            return name.capitalize()
    return ""


@frozen
class Leading:
    """Rows of a quarter, half and all of the leading tokens of a layer with `tokens` tokens per GPU.

    `growth`: in a system without transfers, time of the GEMMs of all tokens over time of the GEMMs of the leading tokens; None: not known.
    """

    quarter: Row
    half: Row
    full: Row
    tokens: int
    growth: float | None

    def estimate(self) -> dict[str, Any]:
        """The estimate, as in `Row.window`. Raises NoEstimate where the leading tokens do not tell the time of the layer."""
        alone = self.growth is not None and gemms_are_alone(self.full)
        late, early = self._time(self.half, self.full, alone), self._time(self.quarter, self.half, alone)
        apart = [early / late - 1] if late > 0 else []
        if not alone and late > 0 and self.growth is not None:  # GEMMs under transfers may hide behind them or not, so both estimates must agree
            apart.append(self._time(self.half, self.full, True) / late - 1)
        self._check(late, early, apart, alone)
        surroundings = {name: self._line(lambda row, name=name: row.surroundings_us[name]) for name in self.full.surroundings_us}  # type: ignore[misc]
        return {
            "tokens": self.full.tokens_per_gpu, "of_tokens": self.tokens, "time_us": late,
            "us_per_token": (late - self.full.time_us) / (self.tokens - self.full.tokens_per_gpu), "half_window_time_us": early,
            "apart": max(map(abs, apart)), "path_us": self._path(alone), "surroundings_us": surroundings,
        }  # fmt: skip

    def _line(self, value: Callable[[Row], float]) -> float:
        return extended(self.half, self.full, self.tokens, value)

    def _time(self, before: Row, row: Row, alone: bool) -> float:
        """Time of all tokens by the line through two Rows; `alone`: GEMMs outside the line, scaled by `growth`."""
        if not alone:
            return extended(before, row, self.tokens, lambda row: row.time_us)
        return extended(before, row, self.tokens, lambda row: row.time_us - gemms_us(row)) + (self.growth or 0.0) * gemms_us(self.full)

    def _path(self, alone: bool) -> dict[str, float]:
        """The critical path of all tokens by operator."""
        path = {name: self._line(lambda row, name=name: row.path_us[name]) for name in self.full.path_us}  # type: ignore[misc]
        return path | ({name: (self.growth or 0.0) * self.full.path_us[name] for name in ("gemm1", "gemm2")} if alone else {})

    def _check(self, late: float, early: float, apart: list[float], alone: bool) -> None:
        """Raise NoEstimate unless the leading tokens tell the time of the whole layer."""
        size = self.full.tokens_per_gpu
        where = f"window: {size} leading tokens of {self.full.system} give no estimate"
        rate = min((b.time_us - a.time_us) / (b.tokens_per_gpu - a.tokens_per_gpu) for a, b in ((self.quarter, self.half), (self.half, self.full)))
        bound = max(self._line(lambda row: row.bound_us), self._line(lambda row: row.workload_bound_us))
        if rate <= 0:
            raise NoEstimate(f"{where}: found {rate:.4f} us per further token, expected above 0; simulate more tokens")
        if alone and (operator := does_not_grow(self.half, self.full)):
            raise NoEstimate(f"{where}: {operator} takes as long for {self.half.tokens_per_gpu} as for {size} tokens; simulate more tokens")
        if late < bound:
            raise NoEstimate(f"{where}: found {late:.1f} us, below the bound of {bound:.1f} us; simulate more tokens")
        if abs(early / late - 1) > REFUSED:
            found = f"found {late:.1f} us from {size} and {early:.1f} us from {size // 2} tokens"
            raise NoEstimate(f"{where}: {found}, expected at most {REFUSED:.0%} apart; simulate more tokens".replace("%", " %"))
        if abs(apart[-1]) > REFUSED:
            found = f"found {late:.1f} us along a line and {late * (1 + apart[-1]):.1f} us with the GEMMs of all tokens"
            raise NoEstimate(f"{where}: {found}, expected at most {REFUSED:.0%} apart; simulate more tokens".replace("%", " %"))


def run_window(workload: Workload, run_layer: Callable[[Workload], Row], run_gemms: Callable[[Workload], float]) -> Row:
    """The Row of the leading tokens, with `window` = the estimate for the whole layer.

    `run_layer` simulates a Workload; `run_gemms` gives the time of its GEMMs without transfers, 0: not known. Raises NoEstimate.
    """
    tokens, size = workload.request.tokens, workload.request.window or 0
    quarter, half, full = (run_layer(leading_workload(workload, n)) for n in (size // 4, size // 2, size))
    few = run_gemms(leading_workload(workload, size)) if gemms_us(full) else 0.0
    whole = dataclasses.replace(workload, request=dataclasses.replace(workload.request, window=None, chosen=False))
    window = Leading(quarter, half, full, tokens, run_gemms(whole) / few if few else None).estimate()
    text = f"{size} leading tokens: two estimates are {window['apart']:.0%} apart; simulate more tokens".replace("%", " %")
    wall = {name: seconds + half.wall_s[name] + quarter.wall_s[name] for name, seconds in full.wall_s.items()}
    wall["routing"], wall["total"] = workload.routing_s, wall["total"] - 2 * workload.routing_s
    return dataclasses.replace(
        full,
        window=window,
        wall_s=wall,
        compile_s=full.compile_s + half.compile_s + quarter.compile_s,
        warnings=(*full.warnings, *((text,) if window["apart"] > SETTLED else ())),
        header=(*header_of(workload), *settings_of(full.system, full.form, full.options, workload.request)),
    )
