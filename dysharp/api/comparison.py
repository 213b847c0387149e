"""`compare`: several systems on one workload, and what limits the best of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dysharp.analysis import Row
from dysharp.api.memory import check_memory
from dysharp.api.options import Value, options_of, split_fabric, split_options
from dysharp.api.point import run_point
from dysharp.api.progress import Progress, Step
from dysharp.api.workload import DEFAULT_CLUSTER, DEFAULT_MODEL, header_of, make_request, make_workload
from dysharp.errors import ConfigError
from dysharp.specs import Cluster, Model
from dysharp.systems import get_system

DEFAULT_SYSTEMS = ("deepep", "nvls", "comet", "dysharp", "ideal")

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


def compare(
    systems: Iterable[str] | None = None,
    baseline: str = "deepep",
    *,
    model: str | os.PathLike[str] | Model = DEFAULT_MODEL,
    cluster: str | os.PathLike[str] | Cluster = DEFAULT_CLUSTER,
    gpus: int | None = None,
    tokens: int | None = None,
    layer: int | None = None,
    routing: str | None = None,
    direction: str = "fwd",
    seed: int = 0,
    fidelity: str = "burst",
    window: int | None = None,
    options: Mapping[str, Value] | None = None,
    placement: str = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """Run several systems on one workload, drawn once. Arguments as for `run`; keys of `options` are "system.option".

    `systems` None: deepep, nvls, comet, dysharp, ideal. `baseline` must be one of them. Raises ConfigError for wrong input.
    """
    names = list(DEFAULT_SYSTEMS if systems is None else systems)
    chosen = {name: get_system(name) for name in names}
    if not names or len(chosen) < len(names):
        raise ConfigError(f"systems: found {', '.join(names) or 'none'}, expected at least one and each once")
    if baseline not in chosen:
        get_system(baseline)
        raise ConfigError(f"baseline {baseline!r}: not among the systems compared; expected one of {', '.join(names)}")
    fabric, rest = split_fabric(options, fidelity)
    given = split_options(rest, chosen)
    values = {name: options_of(system, given[name]) for name, system in chosen.items()}
    request = make_request(
        model=model,
        cluster=cluster,
        gpus=gpus,
        tokens=tokens,
        layer=layer,
        routing=routing,
        placement=placement,
        direction=direction,
        seed=seed,
        fidelity=fidelity,
        window=window,
        fabric=fabric,
    )
    for system in chosen.values():
        check_memory(system, request)
    if progress:
        progress(Step(names[0], 1, len(names), "routing"))
    workload = make_workload(request)
    rows = tuple(
        run_point(system, values[name], workload, progress, i, len(names)) for i, (name, system) in enumerate(chosen.items(), 1)
    )
    base = next(row.layer_us for row in rows if row.system == baseline)
    speedup = {row.system: base / row.layer_us for row in rows}
    warnings = tuple(f"warning: {text}" for text in dict.fromkeys(text for row in rows for text in row.warnings))
    return Comparison(rows, baseline, speedup, (*header_of(workload), *warnings), limits_sentence(rows, baseline))


def limits_sentence(rows: tuple[Row, ...], baseline: str) -> str:
    """One sentence: the fastest system that one could build, where its time goes, and how far it is from what is possible."""
    real = [row for row in rows if not get_system(row.system).bound] or list(rows)
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
