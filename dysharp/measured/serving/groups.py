"""Which measured layout is fastest at a speed per user, and which a prediction would choose.

A group holds runs of equal engine version, model, hardware, precision and lengths with two layouts or more. Speed per user is 1 / TPOT;
throughput of a GPU is the users' tokens over time and GPUs, by measured or predicted TTFT and TPOT alike.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dysharp.measured.serving.predictions import ServingCase

KEYS = ("engine", "engine_version", "model", "hardware", "precision")
CLOSE = 0.95
"""A choice that reaches this part of the best measured throughput counts as right."""
Point = tuple[float, float]
"""(tokens per second of a user, tokens per second of a GPU)."""


def fastest_layouts(cases: Iterable[ServingCase]) -> dict[str, Any]:
    """Groups, and in how many the chosen layout is the best or within 5 % of it, at the speed per user that all layouts reach."""
    groups: dict[tuple[Any, ...], dict[tuple[int, ...], list[ServingCase]]] = {}
    for case in cases:
        if case.scored and case.tpot_ms and case.row.numbers["ttft_ms"]:
            key = (*(case.row.text(name) for name in KEYS), case.row.degrees["isl"], case.row.degrees["osl"], case.row.text("mode"))
            groups.setdefault(key, {}).setdefault(_layout(case), []).append(case)
    judged = [regret for layouts in groups.values() if len(layouts) > 1 and (regret := _regret(list(layouts.values()))) is not None]
    right = sum(regret >= CLOSE for regret in judged)
    return {"groups": len(judged), "right": right, "share": 100 * right / len(judged) if judged else None}


def _layout(case: ServingCase) -> tuple[int, ...]:
    names = ("tp", "attn_dp", "moe_tp", "moe_ep", "p_workers", "p_tp", "p_attn_dp", "d_workers", "d_tp", "d_attn_dp", "d_moe_ep")
    return tuple(case.row.degree(name) for name in names)


def _regret(layouts: Sequence[Sequence[ServingCase]]) -> float | None:
    """Measured throughput of the chosen layout over the best one's, at a speed between those that all layouts reach; None without such a speed."""
    fronts = [([_point(case, measured=True) for case in cases], [_point(case, measured=False) for case in cases]) for cases in layouts]
    low = max(min(user for user, _ in measured) for measured, _ in fronts)
    high = min(max(user for user, _ in measured) for measured, _ in fronts)
    if low > high:
        return None
    speed = math.sqrt(low * high)
    real = [_at(measured, speed) for measured, _ in fronts]
    said = [_at(predicted, speed) for _, predicted in fronts]
    return real[said.index(max(said))] / max(real)


def _point(case: ServingCase, *, measured: bool) -> Point:
    row = case.row
    ttft, tpot = (row.numbers["ttft_ms"], row.numbers["tpot_ms"]) if measured else (case.ttft_ms, case.tpot_ms)
    assert ttft is not None
    assert tpot is not None
    answer = row.degrees["osl"]
    gpus = row.degrees["gpus"] or row.degree("tp") * row.degree("attn_dp")
    return 1e3 / tpot, row.degrees["concurrency"] * answer / ((ttft + answer * tpot) / 1e3) / gpus


def _at(points: Sequence[Point], speed: float) -> float:
    """Throughput at `speed`, on a line through the two nearest points on log axes."""
    ordered = sorted(points)
    if len(ordered) == 1:
        return ordered[0][1]
    at = min(max(1, sum(x < speed for x, _ in ordered)), len(ordered) - 1)
    (x0, y0), (x1, y1) = ordered[at - 1], ordered[at]
    if x0 == x1:
        return max(y0, y1)
    return math.exp(math.log(y0) + math.log(speed / x0) / math.log(x1 / x0) * math.log(y1 / y0))
