"""The table of validated errors that travels with the package (`specs/data/validated.toml`), from measurements.

What `dysharp run` does for a system is judged, not another formula: rows of DeepEP's kernels by their Programs on the engine, whole layers by the
Program of the layer and what surrounds it, the rest by closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dysharp.analysis.families import ASK
from dysharp.analysis.measured import Measurement
from dysharp.analysis.programs import CLUSTERS, EpCase, deepep_us, layer_us
from dysharp.analysis.queries import Query
from dysharp.analysis.surroundings import around
from dysharp.analysis.validation import Case, Sorted, errors_of
from dysharp.specs import Model, load_cluster

HEAD = """Validated errors per family and GPU, in percent of the measured value, and the ranges of the rows behind them. GPU "other": rows of a
GPU while that GPU was held out of the fit. `by`: what predicted the rows. Written by
dysharp validate --data measured.csv --hold-out gpu --summary validated.toml"""
RANGES: Mapping[str, tuple[str, ...]] = {
    "tokens": ("tokens_per_rank",),
    "hidden": ("hidden",),
    "gpus": ("ep", "gpus"),
    "topk": ("topk",),
    "experts": ("experts",),
    "sms": ("sms",),
    "rows_per_expert": ("m_per_group", "rows_per_expert"),
    "bytes": ("bytes",),
}
"""Name of a range -> keys of `config_json` that give it."""
MOST_LAYER_TOKENS = 8192  # per GPU; longer layers are judged by the closed form
GATED_MATRICES = 3
Told = Callable[[int, int], None]


def summarise(found: Sorted, constants: Mapping[str, float], hold_out: Sequence[Mapping[str, Any]] = (), tell: Told | None = None) -> str:
    """The text of `validated.toml`. `hold_out`: rows of `calibration.hold_out` by "gpu", for GPUs without measurements."""
    closed = found.batch().values(constants)
    by_group: dict[tuple[str, str], list[tuple[Case, float, bool]]] = {}
    for at, case in enumerate(found.cases):
        if tell is not None:
            tell(at, len(found.cases))
        ran = run_case(case, constants)
        value = closed[at] if ran is None else case.query.work / ran if case.query.work > 0 else ran / case.query.scale
        by_group.setdefault((case.family, case.query.gpu), []).append((case, float(value), ran is not None))
    lines = [f"# {line}" for line in HEAD.splitlines()]
    for family in ASK:
        mine = {gpu: rows for (name, gpu), rows in by_group.items() if name == family}
        for gpu in sorted(mine):
            lines += _entry(family, gpu, mine[gpu])
        held = next((row for row in hold_out if row["by"] == "gpu" and row["family"] == family and row["ratio"]), None)
        if held is not None:
            lines += _entry(family, "other", [row for rows in mine.values() for row in rows], float(held["ratio"]))
    return "\n".join(lines) + "\n"


def _entry(family: str, gpu: str, rows: Sequence[tuple[Case, float, bool]], grown: float = 1.0) -> list[str]:
    errors = errors_of(np.array([value for _, value, _ in rows]), np.array([case.row.value for case, _, _ in rows], np.float64))
    ran = sum(by_program for _, _, by_program in rows)
    by = "program" if ran == len(rows) else f"program ({ran} of {len(rows)})" if ran else "closed form"
    ranges = {name: _range([case.row for case, _, _ in rows], keys) for name, keys in RANGES.items()} if gpu != "other" else {}
    shown = ", ".join(f"{name} = [{pair[0]:.10g}, {pair[1]:.10g}]" for name, pair in ranges.items() if pair)
    return [
        "",
        f"[{family}.{gpu}]",
        f'by = "{by}"',
        f"n = {len(rows)}",
        f"median = {grown * errors.median_ape:.3g}",
        f"p90 = {grown * errors.p90_ape:.3g}",
        f"bias = {errors.bias:.3g}",
        f"ranges = {{ {shown} }}",
    ]


def _range(rows: Sequence[Measurement], keys: Sequence[str]) -> tuple[float, float] | None:
    found = [row.config[key] for row in rows for key in keys if isinstance(row.config.get(key), (int, float))]
    return (min(found), max(found)) if found else None


def run_case(case: Case, constants: Mapping[str, float]) -> float | None:
    """The time in us of a row's Program on the engine; None for a row that only a closed form predicts."""
    q = case.query
    if q.gpu not in CLUSTERS or q.numbers.get("gpus", 0) > (load_cluster(CLUSTERS[q.gpu]).max_gpus or 1):
        return None
    if case.family in ("deepep-dispatch", "deepep-combine"):
        return _run_deepep(case, constants)
    if case.family == "layer" and q.words[0] == "deepep" and q.numbers["tokens"] <= MOST_LAYER_TOKENS:
        return _run_layer(q, constants)
    return None


def _run_deepep(case: Case, constants: Mapping[str, float]) -> float | None:
    c, n = case.row.config, case.query.numbers
    gpus = round(n["gpus"])
    experts = c["local_experts"] * gpus if "local_experts" in c else c["experts"]
    whole = (experts, c["hidden"], c["topk"], n["tokens"], n["sms"])
    if any(value != math.floor(value) for value in whole) or experts % gpus or n["sms"] % 2:
        return None
    dispatch = case.family == "deepep-dispatch"
    fp8 = not dispatch or n["row_bytes"] < 2 * c["hidden"]
    ep = EpCase(case.query.gpu, gpus, int(c["hidden"]), int(experts), int(c["topk"]), int(n["tokens"]), int(n["sms"]), fp8)
    return deepep_us(ep, constants)[0 if dispatch else 1]


def _run_layer(q: Query, constants: Mapping[str, float]) -> float | None:
    n, (_, wire, dtype) = q.numbers, q.words
    if any(n[name] != math.floor(n[name]) for name in ("hidden", "inter", "experts", "topk", "tokens", "gpus")) or n["experts"] % n["gpus"]:
        return None
    model = Model(
        name="measured",
        hidden=int(n["hidden"]),
        expert_hidden=int(n["inter"]),
        n_experts=int(n["experts"]),
        topk=int(n["topk"]),
        tokens_per_gpu=int(n["tokens"]),
        n_matrices=GATED_MATRICES if n["gates"] > 1 else 2,
        element_bytes=2,
        gemm_dtype=dtype,
    )
    cluster = load_cluster(CLUSTERS[q.gpu]).with_gpus(int(n["gpus"]))
    ran = layer_us(model, cluster, int(n["sms"]), fp8=wire == "fp8", constants=constants)
    # Training quantises rows and weights with their transpose for the backward pass: 4 bytes moved per value.
    weights = n["touched"] * (n["gates"] + 1) * n["hidden"] * n["inter"]
    casts = 4 * (weights + n["rows"] * n["inter"]) + n["rows"] * n["hidden"] if wire == "bf16" and dtype == "fp8" else 0.0
    near = around(cluster, model, n["rows"], n["tokens"] * n["copies"], permutes=1, fp8_rows=wire == "fp8", cast_bytes=casts)
    return ran + near.device_us + near.host_us
