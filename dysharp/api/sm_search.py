"""The number of SMs of communication kernels that `advise` recommends: the fewest that are nearly as fast as any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dysharp.analysis import Row
from dysharp.api.candidates import sms_to_try
from dysharp.api.formats import KNOB
from dysharp.api.jobs import Job
from dysharp.api.options import Value
from dysharp.api.prediction import SEARCH_ROWS, AdviceRuns, does_not_grow, extended, leading_sizes
from dysharp.errors import ConfigError
from dysharp.systems import System

NEAR = 1.01
"""A number of SMs is near the fastest when its layer takes at most this many times as long."""


def fewest_near_best(times: Mapping[int, float]) -> int:
    """The smallest number whose time is within 1 % of the smallest time."""
    return min(n for n, us in times.items() if us <= NEAR * min(times.values()))


def edge_of(chosen: int, tried: Sequence[int]) -> str:
    """Whether the chosen number is the most or the fewest of those tried, which are all that were measured; "" = neither."""
    return "most" if chosen == max(tried) else "fewest" if chosen == min(tried) else ""


def search_sms(runs: AdviceRuns, systems: Mapping[str, System], options: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[int, float]]:
    """{system: {number of SMs: layer time in us}} of the systems whose number is not given.

    Large layers are compared by their leading tokens. A system that is refused is left out, and one whose leading tokens do not tell.
    """
    asked = {name: sms_to_try(system, runs.request) for name, system in systems.items() if KNOB not in options[name]}
    sizes = {name: leading_sizes(systems[name], runs.request, SEARCH_ROWS, SEARCH_ROWS)[1:] for name in asked}
    keys = [(name, n) for name, numbers in asked.items() for n in numbers]
    rows = runs.rows([Job(name, {**options[name], KNOB: n}, runs.workload(), sizes[name]) for name, n in keys])
    times: dict[str, dict[int, float]] = {}
    unknown: set[str] = set()
    for (name, n), found in zip(keys, rows, strict=True):
        if not isinstance(found, ConfigError):
            times.setdefault(name, {})[n] = _time(found, runs.request.tokens)
            unknown |= {name} if len(found) > 1 and does_not_grow(*found[-2:]) else set()
    return {name: by_number for name, by_number in times.items() if name not in unknown}


def with_knob(given: Mapping[str, Value], times: Mapping[int, float] | None) -> dict[str, Value]:
    """The options with the number of SMs that the search recommends."""
    return dict(given) if not times else {**given, KNOB: fewest_near_best(times)}


def _time(rows: tuple[Row, ...], tokens: int) -> float:
    return rows[0].time_us if len(rows) == 1 else extended(rows[-2], rows[-1], tokens, lambda row: row.time_us)
