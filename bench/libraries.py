"""Calls of libraries: numbers that rows fixed are fitted anew without one library or one GPU; the order of libraries; names that do not fit a time.

`python bench/libraries.py [coverage] [names] [hold-out]` prints the named tables, all without a name.

Every fold fits the constants `lib.*` and the host steps that were chosen after the rows were seen (`STEPS`) to round trips, from values that no
row moved. Numbers that no row of a fold sees (`unseen`) stay at such a value, steps at those of the library whose kernels are nearest, a Grace
host at its ratio to x86 elsewhere (`HOSTS`); the second ratio takes them from the fit to all rows, as a machine or library measured once.
Rows of the slow pool are in no fit.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from statistics import mean, median

from dysharp.measured.calls import APART, call_errors, doubts, in_pool, order
from dysharp.measured.families.library_calls import GRACE, LIBRARIES, CallCase, Library, call_us, device_us
from dysharp.measured.family import Parsed, classify
from dysharp.measured.measurements import read_calls
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted, fitted_values

CONSTANTS = tuple(name for name in fitted() if name.startswith("lib."))
NCCL, STEPS, MOST = ("nccl-ep", "normal"), "nccl steps", 20
"""NCCL EP's host steps were chosen after the rows were seen: at most `MOST`."""
NEAREST = {STEPS: 16.0}
"""Steps of UCCL-EP's normal kernels."""
X86, ON_GRACE = "lib.host_x86_us", "lib.host_grace_us"
HOSTS = ("gb200.host_call_us", "h100.host_call_us")
"""Times of a launch on a Grace and an x86 host (SGLang's rows): their ratio stands for the hosts of libraries where no row of a fold shows one."""
SLOTS = "lib.slot_bytes"
"""Constant inside the Programs of NCCL EP, whose times are straight lines of it."""
ROUNDS, FACTORS = 4, (0.5, 0.8, 0.92, 1.08, 1.25, 2.0)
Numbers = dict[str, float]


@dataclass(frozen=True)
class Row:
    """A call, its measured time, and Dispatch and Combine on the device: where `SLOTS` is 0, and Dispatch per unit of it."""

    entry: Parsed
    case: CallCase
    us: float
    base: tuple[float, float]
    slope: float

    def predicted(self, numbers: Mapping[str, float]) -> float:
        there, back = self.base
        return call_us(self.case, numbers, library(self.case, numbers), there + self.slope * numbers[SLOTS], back)


def library(case: CallCase, numbers: Mapping[str, float]) -> Library:
    """The kind of a call with the steps of `numbers`."""
    call = case.call
    if (case.library, case.mode) != NCCL:
        return call
    steps = round(numbers[STEPS])
    return call._replace(first=steps, steps=(steps, steps + call.steps[1] - call.steps[0]))


def rows() -> list[Row]:
    """All packaged calls but those of the slow pool, with their times on the device."""
    packaged = fitted_values()
    done = list[Row]()
    for entry in classify(read_calls()).parsed:
        case, m = entry.case, entry.measurement
        assert isinstance(case, CallCase)
        assert m.value is not None
        if in_pool(m):
            continue
        there, back = device_us(case, packaged)
        slope = (device_us(case, packaged | {SLOTS: 2 * packaged[SLOTS]})[0] - there) / packaged[SLOTS] if case.library == NCCL[0] else 0.0
        done.append(Row(entry, case, m.value, (there - slope * packaged[SLOTS], back), slope))
    return done


def packaged() -> Numbers:
    """The packaged numbers."""
    return fitted_values() | {STEPS: float(LIBRARIES[NCCL].first)}


def unseen(fold: list[Row]) -> list[str]:
    """The numbers that no row of `fold` moves."""
    nccl = any(row.case.library == NCCL[0] for row in fold)
    seen = {
        X86: any(row.case.gpu not in GRACE for row in fold),
        ON_GRACE: any(row.case.gpu in GRACE for row in fold),
        "lib.few_sms": any(row.case.call.few and row.case.nodes == 1 for row in fold),
        SLOTS: nccl,
        STEPS: nccl,
    }
    return [name for name, is_seen in seen.items() if not is_seen]


def fit(fold: list[Row], given: Mapping[str, float] | None = None) -> Numbers:
    """Numbers of least mean absolute logarithm of the round trips of `fold`. `given`: starting values."""
    limits = fitted()
    values = packaged() | {name: math.sqrt(limits[name].low * limits[name].high) for name in CONSTANTS} | NEAREST | dict(given or {})
    trips = [row for row in fold if row.case.verb == "roundtrip"]
    hidden = unseen(trips)
    for _ in range(ROUNDS):
        for name in (name for name in (*CONSTANTS, STEPS) if name not in hidden):
            values = _best(trips, values, name)
    if ON_GRACE in hidden and ON_GRACE not in (given or {}):
        values[ON_GRACE] = values[X86] * values[HOSTS[0]] / values[HOSTS[1]]
    return values


def _best(fold: list[Row], values: Numbers, name: str) -> Numbers:
    """`values` with the best tried value of one number; wide steps first."""
    at = values[name]
    if name == STEPS:
        tries = [float(n) for n in range(1, MOST + 1)]
    else:
        limit = fitted()[name]
        tries = [min(limit.high, max(limit.low, at * factor)) for factor in (*FACTORS, 0.97, 1.0, 1.03)]
    return min(({**values, name: value} for value in (at, *tries)), key=lambda tried: _loss(fold, tried))


def _loss(fold: list[Row], numbers: Numbers) -> float:
    return mean(abs(math.log(row.predicted(numbers) / row.us)) for row in fold)


def _error(fold: list[Row], numbers: Numbers) -> float:
    return 100 * median(abs(row.predicted(numbers) / row.us - 1) for row in fold)


def hold_out(everything: list[Row]) -> None:
    """Median errors of round trips with one library or one GPU held out of the fit, beside the fit to all rows."""
    trips = [row for row in everything if row.case.verb == "roundtrip"]
    full = fit(everything)
    print("fitted to all rows:", ", ".join(f"{name} {full[name]:.3g}" for name in (*CONSTANTS, STEPS)))
    by: dict[str, Callable[[Row], str]] = {"library": lambda row: row.case.library, "gpu": lambda row: row.case.gpu}
    for name, label in by.items():
        errors = []
        for held in sorted({label(row) for row in trips}):
            own, fold = ([row for row in everything if (label(row) == held) == mine] for mine in (True, False))
            own = [row for row in own if row.case.verb == "roundtrip"]
            known = {number: full[number] for number in unseen(fold)}
            three = _error(own, full), _error(own, fit(fold)), _error(own, fit(fold, known))
            errors.append(three)
            shown = "all rows {:5.1f} %  held out {:5.1f} %  with unseen numbers given {:5.1f} %".format(*three)
            print(f"{name:8} {held:14} n {len(own):4}  {shown}  unseen: {', '.join(known) or 'none'}", flush=True)
        inside, outside, given = (mean(column) for column in zip(*errors, strict=True))
        print(f"{name:8} mean: ratio {outside / inside:.2f}, with unseen numbers given {given / inside:.2f} (bar 1.5)")


def coverage(everything: list[Row]) -> None:
    """How many packaged calls have a prediction; errors by regime."""
    found = classify(read_calls())
    n = len(found.parsed) + len(found.missing)
    print(f"coverage: {len(found.parsed)} of {n} rows have a prediction ({100 * len(found.parsed) / n:.1f} %, bar 95 %)")
    parsed, values = predict(found, fitted_values())
    for row in call_errors(parsed.parsed, values):
        print("  {regime}: {what}: n {n}, median {median_ape:.1f} %, nine of ten within {p90_ape:.1f} %".format(**row))
    right, pairs = order(parsed.parsed, values)
    print(f"order: {right} of {pairs} pairs of libraries that differ by {APART:g} are in the right order ({100 * right / pairs:.1f} %, bar 85 %)")


def names(everything: list[Row]) -> None:
    """Names given to times of other libraries, and true names, that are doubted."""
    constants, numbers = fitted_values(), packaged()
    cells: dict[CallCase, list[tuple[CallCase, float, float]]] = {}
    for row in everything:
        cells.setdefault(replace(row.case, library="", mode=""), []).append((row.case, row.us, row.predicted(numbers)))
    true = [doubts(case, us, named, constants) is not None for cell in cells.values() for case, us, named in cell]
    lies = [
        doubts(named, us, time, constants) is not None
        for cell in cells.values()
        for (named, own, time), (_, us, _) in permutations(cell, 2)
        if max(own, us) > 1.25 * min(own, us)
    ]
    print(f"names: {sum(lies)} of {len(lies)} false names are noticed ({100 * sum(lies) / len(lies):.1f} %, bar 70 %)")
    print(f"names: {sum(true)} of {len(true)} true names are doubted ({100 * sum(true) / len(true):.1f} %, bar 5 %)")


TABLES: Mapping[str, Callable[[list[Row]], None]] = {"coverage": coverage, "names": names, "hold-out": hold_out}


def main(asked: list[str]) -> None:
    everything = rows()
    for name in asked or TABLES:
        TABLES[name](everything)


if __name__ == "__main__":
    main(sys.argv[1:])
