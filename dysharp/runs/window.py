"""Leading tokens: the first tokens of each GPU stand for all tokens of a layer (docs/design/0006, "Windows")."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from dysharp.analysis import Row
from dysharp.errors import SimulationError
from dysharp.runs.header import header_of, settings_of
from dysharp.runs.request import Request
from dysharp.runs.workload import Workload
from dysharp.workload import first_tokens

SETTLED = 0.05
"""Largest relative difference without a warning, between the estimates from all leading tokens and from half of them."""
WHOLE_ROWS, LEADING_ROWS = 600_000, 270_000
"""(token, expert) rows up to which `compare` simulates all tokens of a layer over several domains; most rows of leading tokens."""
REFUSED = 0.10
"""The same difference, above which there is no estimate."""


class NoEstimate(SimulationError):
    """Leading tokens that do not tell the time of the whole layer. Exit code 1."""


def with_leading_tokens(request: Request) -> Request:
    """The request, with leading tokens if its layer is large and lies over several domains."""
    rows = request.cluster.n_gpus * request.model.topk
    if request.cluster.domains == 1 or request.fidelity != "burst" or request.tokens * rows <= WHOLE_ROWS:
        return request
    window = 1 << max(5, (LEADING_ROWS // rows).bit_length() - 1)
    return dataclasses.replace(request, window=window, chosen=True) if window < request.tokens else request


def run_window(workload: Workload, run_layer: Callable[[Workload], Row]) -> Row:
    """The Row of the leading tokens, with `window` = the estimate for the whole layer. `run_layer` simulates a Workload.

    The time of a layer is start-up and drain plus its tokens at a steady rate. The rate is the time that the second half of the
    leading tokens adds, so start-up and drain, which both runs have, cancel. Half and a quarter of these tokens give a second estimate; the
    difference of the estimates tells whether the rate is settled.
    Raises NoEstimate where further tokens take no time, or the estimates are more than `REFUSED` apart.
    """
    tokens, size = workload.request.tokens, workload.request.window or 0
    quarter, half, full = (run_layer(leading_workload(workload, n)) for n in (size // 4, size // 2, size))
    rate = (full.time_us - half.time_us) / (size - size // 2)
    early_rate = (half.time_us - quarter.time_us) / (size // 2 - size // 4)
    window = {
        "tokens": size,
        "of_tokens": tokens,
        "time_us": full.time_us + (tokens - size) * rate,
        "us_per_token": rate,
        "half_window_time_us": half.time_us + (tokens - size // 2) * early_rate,
    }
    _check_rates(full.system, rate, early_rate, window)
    difference = window["half_window_time_us"] / window["time_us"] - 1
    text = f"{size} leading tokens: the estimate from half as many differs by {difference:+.0%}; simulate more tokens"
    unsettled = (text,) if abs(difference) > SETTLED else ()
    wall = {name: seconds + half.wall_s[name] + quarter.wall_s[name] for name, seconds in full.wall_s.items()}
    wall["routing"], wall["total"] = workload.routing_s, wall["total"] - 2 * workload.routing_s
    return dataclasses.replace(
        full,
        window=window,
        wall_s=wall,
        compile_s=full.compile_s + half.compile_s + quarter.compile_s,
        warnings=(*full.warnings, *unsettled),
        header=(*header_of(workload), *settings_of(full.system, full.form, full.options, workload.request)),
    )


def _check_rates(system: str, rate: float, early_rate: float, window: Mapping[str, float]) -> None:
    """Raise NoEstimate unless the leading tokens tell the time of the whole layer."""
    size, where = window["tokens"], f"window: {window['tokens']} leading tokens of {system} give no estimate"
    if min(rate, early_rate) <= 0:
        raise NoEstimate(f"{where}: found {min(rate, early_rate):.4f} us per further token, expected above 0; simulate more tokens")
    late, early = window["time_us"], window["half_window_time_us"]
    if abs(early / late - 1) > REFUSED:
        found = f"found {late:.1f} us from {size} and {early:.1f} us from {size // 2} tokens"
        raise NoEstimate(f"{where}: {found}, expected at most {REFUSED:.0%} apart; simulate more tokens".replace("%", " %"))


def leading_workload(workload: Workload, tokens: int) -> Workload:
    """The first `tokens` tokens of each GPU; the Request has this number too, because warnings read it there."""
    request = dataclasses.replace(workload.request, tokens=tokens)
    return dataclasses.replace(workload, request=request, routing=first_tokens(workload.routing, tokens))
