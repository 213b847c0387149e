"""Which measured layout is fastest at a speed per user, and which a prediction would choose.

A group holds runs of equal engine version, model, hardware, precision and lengths with two layouts or more, prefill apart or not. Speed
per user is 1 / TPOT; throughput of a GPU is the users' tokens over time and GPUs, by measured or predicted TTFT and TPOT alike.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dysharp.measured.serving.predictions import ServingCase

KEYS = ("engine", "engine_version", "model", "hardware", "precision")
CLOSE = 0.95
"""A choice that reaches this part of the best measured throughput counts as right."""
FRONT = 3
"""Numbers of users from which the runs of a layout make a front."""
Point = tuple[float, float]
"""(tokens per second of a user, tokens per second of a GPU)."""


def fastest_layouts(cases: Iterable[ServingCase]) -> dict[str, Any]:
    """In how many groups the chosen layout is the best or within 5 % of it.

    | key | counts |
    |---|---|
    | `groups`, `right`, `share` | all judged groups |
    | `fronts`, `fronts_right` | those with two layouts of `FRONT` numbers of users, judged on fronts at a speed that both reach |
    | `ep_groups`, `ep_right` | those with EP beside tensor parallel experts on as many GPUs |
    """
    groups: dict[tuple[Any, ...], dict[tuple[int, ...], list[ServingCase]]] = {}
    for case in cases:
        if case.scored and case.tpot_ms and case.row.numbers["ttft_ms"]:
            key = (*(case.row.text(name) for name in KEYS), case.row.degrees["isl"], case.row.degrees["osl"])
            groups.setdefault(key, {}).setdefault(_layout(case), []).append(case)
    judged = [(_judge(list(layouts.values())), _ep_beside_tp(layouts.values())) for layouts in groups.values() if len(layouts) > 1]
    fronts = [right for (right, front), _ in judged if front]
    shared = [right for (right, _), beside in judged if beside]
    right = sum(one for (one, _), _ in judged)
    return {
        "groups": len(judged), "right": right, "share": 100 * right / len(judged) if judged else None,
        "fronts": len(fronts), "fronts_right": sum(fronts), "ep_groups": len(shared), "ep_right": sum(shared),
    }  # fmt: skip


def _judge(layouts: Sequence[Sequence[ServingCase]]) -> tuple[bool, bool]:
    """(whether the choice is right, whether fronts judged it)."""
    many = [cases for cases in layouts if len({case.row.degrees["concurrency"] for case in cases}) >= FRONT]
    regret = _regret(many) if len(many) > 1 else None
    return (_at_least(layouts) if regret is None else regret) >= CLOSE, regret is not None


def _at_least(layouts: Sequence[Sequence[ServingCase]]) -> float:
    """As `_regret`, of runs at the speed that the slowest layout's fastest run has, or more."""
    pairs = [[(_point(case, measured=True), _point(case, measured=False)) for case in cases] for cases in layouts]
    speed = min(max(real[0] for real, _ in runs) for runs in pairs)
    fast = [[(real[1], said[1]) for real, said in runs if real[0] >= speed] for runs in pairs]
    real, said = ([max(run[n] for run in runs) for runs in fast] for n in (0, 1))
    return real[said.index(max(said))] / max(real)


def _ep_beside_tp(layouts: Iterable[Sequence[ServingCase]]) -> bool:
    kinds: dict[int, set[bool]] = {}
    for cases in layouts:
        row = cases[0].row
        kinds.setdefault(row.degrees["gpus"] or row.degree("tp") * row.degree("attn_dp"), set()).add(row.degree("moe_ep") > 1)
    return any(len(found) > 1 for found in kinds.values())


def _layout(case: ServingCase) -> tuple[int, ...]:
    names = ("tp", "attn_dp", "moe_tp", "moe_ep", "p_workers", "p_tp", "p_attn_dp", "d_workers", "d_tp", "d_attn_dp", "d_moe_ep")
    return tuple(case.row.degree(name) for name in names)


def _regret(layouts: Sequence[Sequence[ServingCase]]) -> float | None:
    """Measured throughput of the chosen layout over the best layout's, at a speed that all layouts reach; None without such a speed."""
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
