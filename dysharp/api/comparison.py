"""`compare`: several systems on one workload, and what limits the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from dysharp.analysis import Row
from dysharp.api.point import simulate
from dysharp.api.request import RequestArgs, make_request, takes
from dysharp.errors import ConfigError
from dysharp.systems import get_system

DEFAULT_SYSTEMS = ("deepep", "nvls", "comet", "dysharp", "ideal")

_SATURATED = 0.8  # a resource busy for this share of the time is called the limit

_CAUSES = {
    "start_us": "late start of a rank",
    "link_up_us": "up links",
    "link_down_us": "down links",
    "sm_us": "expert GEMMs on the SMs",
    "latency_us": "latencies of hops, memory and acknowledgements",
    "window_us": "round trips of full windows",
    "host_us": "launches, barriers and other software",
    "surroundings_us": "permutation, activation, casts and gaps between kernels",
}
_SM_OF_REAL_FORM = "GEMMs and copies of communication kernels on the SMs"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several systems on one workload.

    rows      Rows in the order asked for
    baseline  the system that speed-ups refer to
    speedup   {system: time of the baseline over the time of the system}; with windows, estimates for the whole layer
    header    lines that say what the numbers rest on
    sentence  what limits the fastest system
    """

    rows: tuple[Row, ...]
    baseline: str
    speedup: dict[str, float]
    header: tuple[str, ...]
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "baseline": self.baseline,
            "speedup": self.speedup,
            "header": list(self.header),
            "sentence": self.sentence,
        }


@takes(RequestArgs)
def compare(systems: Iterable[str] | None = None, baseline: str = "deepep", **request: Unpack[RequestArgs]) -> Comparison:
    """Simulate several systems on one workload, drawn once, and say what limits the best.

    `systems`: names, each once; None: deepep, nvls, comet, dysharp, ideal. `baseline`: the system among them that speed-ups refer to.
    Raises TypeError for an unknown argument, ConfigError for wrong input, SimulationError for a deadlock.
    """
    names = list(DEFAULT_SYSTEMS if systems is None else systems)
    chosen = {name: get_system(name) for name in names}
    if not names or len(chosen) < len(names):
        raise ConfigError(f"systems: found {', '.join(names) or 'none'}, expected at least one and each once")
    if baseline not in chosen:
        get_system(baseline)
        raise ConfigError(f"baseline {baseline!r}: not among the systems compared; expected one of {', '.join(names)}")
    rows = simulate(chosen, make_request(request))
    base_us = next(row.layer_us for row in rows if row.system == baseline)
    speedup = {row.system: base_us / row.layer_us for row in rows}
    return Comparison(rows, baseline, speedup, header_lines(rows), limits_sentence(rows, baseline))


def header_lines(rows: Sequence[Row]) -> tuple[str, ...]:
    """The header that Rows of one workload share, and each warning once."""
    warnings = dict.fromkeys(text for row in rows for text in row.warnings)
    return (*rows[0].header, *(f"warning: {text}" for text in warnings))


def cause_names(row: Row) -> dict[str, str]:
    """Causes in `Row.attribution` as they are printed."""
    return _CAUSES | ({"sm_us": _SM_OF_REAL_FORM} if row.form == "real" else {})


def limits_sentence(rows: tuple[Row, ...], baseline: str) -> str:
    """The fastest system that one could build, its busiest resource, its critical path, and the lower bound of the workload."""
    real = [row for row in rows if not get_system(row.system).bound] or list(rows)
    best = min(real, key=lambda row: row.time_us)
    names, causes = cause_names(best), sorted(best.attribution, key=lambda cause: -best.attribution[cause])
    shares = [f"{names[c]} ({best.attribution[c] / best.time_us:.0%})" for c in causes[:2] if best.attribution[c] >= 0.1 * best.time_us]
    base = next(row for row in rows if row.system == baseline)
    versus = f", {base.time_us / best.time_us:.2f}x {baseline}" if best.system != baseline else ""
    share = best.bound_us / best.time_us
    limit = "limited by" if share >= _SATURATED else "limited by no single resource; the busiest is"
    return (
        f"Fastest is {best.system} ({best.time_us:.1f} us{versus}), {limit} {best.bound_resource}, which alone needs "
        f"{best.bound_us:.1f} us ({share:.0%} of the time). Its critical path is {' and '.join(shares)}. "
        f"No system can take less than {best.workload_bound_us:.1f} us on this workload."
    )
