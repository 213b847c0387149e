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
BOUNDS = ("ideal",)  # no system one could build

_SATURATED = 0.8  # a resource busy for this share of the time is called the limit

_LIMITS = {
    "link_up_us": "waiting for and sending on up links",
    "link_down_us": "waiting for down links",
    "sm_us": "the expert GEMMs on the SMs",
    "latency_us": "fixed latencies of hops, memory and acknowledgements",
    "window_us": "round trips that full windows expose",
    "host_us": "software costs",
    "surroundings_us": "permutation, activation, casts and gaps between kernels",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows in the order asked for, `header` lines, and `sentence`: what limits the best.

    `speedup[system]` = time of `baseline` over its time (of windows: over the whole layer).
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


def limits_sentence(rows: tuple[Row, ...], baseline: str) -> str:
    """One sentence: the fastest system that one could build, where its time goes, and how far it is from what is possible."""
    real = [row for row in rows if row.system not in BOUNDS] or list(rows)
    best = min(real, key=lambda row: row.time_us)
    causes = sorted(best.attribution, key=lambda cause: -best.attribution[cause])
    limits = _LIMITS | ({"sm_us": "work of the SMs, GEMMs and copies of communication kernels"} if best.form == "real" else {})
    shares = [f"{limits[c]} ({best.attribution[c] / best.time_us:.0%})" for c in causes[:2] if best.attribution[c] >= 0.1 * best.time_us]
    base = next(row for row in rows if row.system == baseline)
    versus = f", {base.time_us / best.time_us:.2f}x {baseline}" if best.system != baseline else ""
    share = best.bound_us / best.time_us
    limit = "limited by" if share >= _SATURATED else "limited by no single resource: busiest is"
    return (
        f"Fastest is {best.system} ({best.time_us:.1f} us{versus}), {limit} {best.bound_resource}, which alone needs "
        f"{best.bound_us:.1f} us ({share:.0%}); its critical path is {' and '.join(shares)}, "
        f"and no system can do this workload in less than {best.workload_bound_us:.1f} us."
    )
