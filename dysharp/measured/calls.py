"""Calls of libraries: errors by regime, marginal times, the order of libraries, and whether a time fits the library that its row names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from dysharp.base import F64, DysharpError, Rows
from dysharp.measured.families.library_calls import LIBRARIES, CallCase, program_us
from dysharp.measured.family import Constants, Parsed
from dysharp.measured.intervals import Asked, Interval, interval_of
from dysharp.measured.measurements import Measurement
from dysharp.measured.predictions import bar, errors_by
from dysharp.measured.regime import regime_of

LARGE = 512
"""Tokens per GPU from which a round trip is judged as large."""
MARGINAL = {"normal": (2048, 8192), "LL": (128, 256)}
"""Tokens per GPU of the two calls whose difference is a marginal time."""
APART = 1.1
"""Calls of two libraries are in an order if their times differ by this factor."""
DOUBT, NEARER = 0.25, 0.7
"""A name is doubted where the logarithm of measured over predicted is larger than `DOUBT`, and another library's at most `NEARER` times it."""
POOL = {"sku": "h100-dgxc", "date": "2026-08-31", "nodes": 2}
"""Rows of this pool of machines were half as fast as other sources and slower than another library there later: the network, not a kernel."""
BARS: Mapping[str, tuple[float, ...]] = {"from": (10.0, 25.0), "below": (15.0, 35.0), "marginal": (8.0,), "order": (85.0,)}
"""Limits in percent: median and 90th percentile of round trips by size, median of marginal times, share of pairs in the right order."""
Cell = tuple[Any, ...]


def in_pool(m: Measurement) -> bool:
    """Whether a row is of `POOL`."""
    return all(m.config.get(key) == value for key, value in POOL.items())


def call_errors(parsed: Sequence[Parsed], predicted: F64) -> Rows:
    """Errors of calls by regime and operator, `what`; () without calls. Rows of `POOL` are an entry of their own."""
    calls = [(entry, float(value)) for entry, value in zip(parsed, predicted, strict=True) if isinstance(entry.case, CallCase)]
    keys, pairs = list[tuple[str, str]](), list[tuple[float, float]]()
    for entry, value in calls:
        case, m = entry.case, entry.measurement
        assert isinstance(case, CallCase)
        assert m.value is not None
        what = case.verb if case.verb != "roundtrip" else f"round trip {'from' if case.tokens >= LARGE else 'below'} {LARGE} tokens"
        what = "pool of slow networks" if in_pool(m) else what
        keys.append((regime_of(m), what))
        pairs.append((value, m.value))
    for regime, pair in _marginal(calls):
        keys.append((regime, "marginal time of round trips"))
        pairs.append(pair)
    errors = errors_by(keys, *np.array(pairs).reshape(-1, 2).T)
    return [{"regime": regime, "what": what} | own.without_mape() for (regime, what), own in sorted(errors.items())]


def _cells(calls: Sequence[tuple[Parsed, float]]) -> dict[Cell, dict[Cell, tuple[float, float]]]:
    """Round trips of equal work: cell -> (library, mode) -> (predicted, measured)."""
    cells: dict[Cell, dict[Cell, tuple[float, float]]] = {}
    for entry, value in calls:
        case, m = entry.case, entry.measurement
        if isinstance(case, CallCase) and case.verb == "roundtrip" and m.value is not None and not in_pool(m):
            cell = (regime_of(m), case.gpu, case.gpus, case.nodes, case.fp8, case.tokens, case.experts, case.topk, case.hidden)
            cells.setdefault(cell, {})[case.library, case.mode] = value, m.value
    return cells


def _marginal(calls: Sequence[tuple[Parsed, float]]) -> list[tuple[str, tuple[float, float]]]:
    """(regime, (predicted, measured)) time per token between two sizes of round trips of one library."""
    series: dict[Cell, dict[int, tuple[float, float]]] = {}
    for cell, values in _cells(calls).items():
        for name, pair in values.items():
            series.setdefault((*cell[:5], *name), {})[cell[5]] = pair
    done = []
    for key, sizes in series.items():
        few, many = MARGINAL[key[-1]]
        if few in sizes and many in sizes and sizes[many][1] > sizes[few][1]:
            done.append((str(key[0]), (sizes[many][0] - sizes[few][0], sizes[many][1] - sizes[few][1])))
    return done


def order(parsed: Sequence[Parsed], predicted: F64) -> tuple[int, int]:
    """(pairs of libraries in the right order, pairs whose round trips differ by `APART` on one cell)."""
    calls = list(zip(parsed, predicted.tolist(), strict=True))
    right = n = 0
    for values in _cells(calls).values():
        for (p, m), (q, k) in combinations(values.values(), 2):
            if max(m, k) > APART * min(m, k):
                n, right = n + 1, right + ((p < q) == (m < k))
    return right, n


def bars(parsed: Sequence[Parsed], predicted: F64) -> Rows:
    """The bars of round trips that enter a drained GPU; none without them."""
    done = []
    for row in call_errors(parsed, predicted):
        for word in ("from", "below"):
            if row["what"].startswith(f"round trip {word}"):
                for name, key, limit in zip(("median", "90th percentile"), ("median_ape", "p90_ape"), BARS[word], strict=True):
                    done.append(bar(f"{row['regime']}: {row['what']}, {name}, %", row[key], limit))
        if row["what"].startswith("marginal"):
            done.append(bar(f"{row['regime']}: {row['what']}, median, %", row["median_ape"], BARS["marginal"][0]))
    right, n = order(parsed, predicted)
    if n:
        done.append(bar("round trips: pairs of libraries in the right order, %", 100 * right / n, BARS["order"][0], at_most=False))
    return done


def doubts(case: CallCase, measured_us: float, named_us: float, constants: Constants) -> tuple[str, float] | None:
    """(another library and mode, its time in us) if it fits a measured time far better than the named one; None: the name fits."""
    off = abs(math.log(measured_us / named_us))
    if off <= DOUBT:
        return None
    name, time = min(_alternatives(case, constants).items(), key=lambda other: abs(math.log(measured_us / other[1])), default=("", named_us))
    return (name, time) if abs(math.log(measured_us / time)) <= NEARER * off else None


def _alternatives(case: CallCase, constants: Constants) -> Mapping[str, float]:
    """Times in us of the same call by the other libraries, by "library mode"."""
    times = {}
    for (library, mode), call in LIBRARIES.items():
        if (library, mode) != (case.library, case.mode) and (call.fp8 or not case.fp8):
            try:
                times[f"{library} {mode}"] = program_us(replace(case, library=library, mode=mode), constants)
            except DysharpError:  # no kernel there
                continue
    return times


def interval_of_call(case: CallCase, us: float) -> Interval | None:
    """The interval of a round trip of `us` on a drained GPU; None in another regime, of which no row is known."""
    far = case.nodes > 1
    asked = Asked("between nodes" if far else "calls", "library-calls-internode" if far else "library-calls", case.gpu, us, case.shape)
    return interval_of(asked) if case.regime == "drained" else None
