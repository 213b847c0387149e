"""A check of a figure: a simulated number beside the paper's number, and what is claimed of it. Tables [[check]] of a figure's TOML file."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from dysharp.errors import ConfigError
from dysharp.figures.keys import known, typed, word
from dysharp.figures.metric import all_calculated, all_metrics
from dysharp.runs.point import Point

REDUCTIONS = ("geomean", "median", "max", "min", "growth", "each")
"""How a check makes one number of its points; growth: the smallest step from a point to the next one of its model."""
STATUSES = ("reproduced", "fitted", "gap", "no_published_value")
"""The claim of a check.

| status | claim |
|---|---|
| reproduced | the value is within the published bounds |
| fitted | as reproduced; but an input was chosen for this value, so it supports nothing |
| gap | the value is outside the published bounds, where `expected` says |
| no_published_value | none, or only that the value is where `expected` says |
"""
NUMBERS = ("paper", "within", "at_least", "at_most", "expected", "band")


@dataclass(frozen=True, slots=True)
class Check:
    """A simulated number beside the paper's number. `status` is the claim of this package; `verdict` tests the claim.

    A check takes the points of `system` that match `models`, `cluster`, `gpus`, `tokens`, `routing`, `fidelity` and
    `options`. `options` names options and free choices; a value may be a list of alternatives. `over`: the system to
    compare with. `against`: the routing to compare with (metric `kept`). The functions of `figures/metrics` explain the metrics.

    | field | meaning |
    |---|---|
    | `paper`, `within` | the published value, and the tolerance relative to it |
    | `at_least`, `at_most` | bounds that the published text gives, where it gives no value |
    | `expected`, `band` | the value of this model version, and how far (relative) it may move unnoticed |
    | `variants` | whether the check is also shown for each variant of the figure |

    A gap lies outside the published bounds. A gap needs `expected` and `band`, so that a gap that grows is seen.
    """

    name: str
    metric: str
    system: str
    over: str = ""
    reduce: str = "geomean"
    models: tuple[str, ...] = ()
    cluster: str | None = None
    gpus: int | None = None
    tokens: int | None = None
    routing: str | tuple[str, ...] | None = None  # one, or any of several
    fidelity: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    variants: bool = False
    against: str | None = None
    paper: float | None = None
    within: float | None = None  # relative
    at_least: float | None = None
    at_most: float | None = None
    expected: float | None = None
    band: float | None = None  # relative
    status: str = "no_published_value"
    reason: str = ""
    ablation: str = ""

    @property
    def routings(self) -> tuple[str, ...]:
        """The routings whose points the check takes; () = all."""
        return (self.routing,) if isinstance(self.routing, str) else self.routing or ()

    @property
    def bounded(self) -> bool:
        """Whether a published text bounds the value."""
        return any(v is not None for v in (self.within, self.at_least, self.at_most))

    @property
    def claimed(self) -> bool:
        """Whether the check can fail."""
        return self.bounded or self.expected is not None


def unclaimed(check: Check) -> Check:
    """The check without its claim."""
    bare = replace(check, status="no_published_value", reason="", ablation="", within=None, at_least=None, at_most=None)
    return replace(bare, expected=None, band=None, variants=False)


def check_of(table: dict[str, Any], points: tuple[Point, ...], where: str) -> Check:
    """One table [[check]] of a figure with `points`. Raises ConfigError."""
    known(table, set(Check.__slots__), where)
    check = typed(Check, table, where)
    word(check.metric, tuple(all_metrics()), f"{where}.metric")
    word(check.reduce, REDUCTIONS, f"{where}.reduce")
    word(check.status, STATUSES, f"{where}.status")
    _fits_metric(check, where)
    is_gap = check.status == "gap"
    for key, wrong, text in (
        ("", is_gap and not (check.reason and check.ablation), "found a gap without a reason or without an ablation command, expected both"),
        ("", is_gap and check.expected is None, "found a gap without an expected value, expected expected = VALUE and band = RELATIVE"),
        ("", (check.expected is None) != (check.band is None), f"found expected = {check.expected} and band = {check.band}, expected both or none"),
        (".within", check.within is not None and check.paper is None, "found a tolerance without the paper's value, expected both"),
        (".within", check.within is not None and check.paper == 0, "found a tolerance relative to paper = 0, expected another value, or at_most"),
        *((f".{n}", not math.isfinite(v := getattr(check, n) or 0.0), f"found {v}, expected a finite number") for n in NUMBERS),
        (
            "",
            (check.status != "no_published_value") != check.bounded,
            f"found status {check.status!r}, expected a bound (within, at_least, at_most) if the status is a claim, else none",
        ),
    ):
        if wrong:
            raise ConfigError(f"{where}{key}: {text}")
    _has_points(check, points, where)
    return check


def _fits_metric(check: Check, where: str) -> None:
    """Raise ConfigError for a metric of another system, and where `over` or `against` is missing or too much."""
    metric, owner = all_metrics()[check.metric], check.system if check.system in all_calculated() else ""
    for key, value, needed, what in (("over", check.over, metric.compares, "a system"), ("against", check.against, metric.against, "a routing")):
        if bool(value) != needed:
            raise ConfigError(f"{where}.{key}: found {value!r}, expected {what if needed else 'none'} with the metric {check.metric}")
    if metric.system != owner:
        names = " or ".join(m.name for m in all_metrics().values() if m.system == (owner or metric.system))
        raise ConfigError(f"{where}.metric: found {check.metric!r} of {check.system!r}, expected {names} of {owner or metric.system} only")


def _has_points(check: Check, points: tuple[Point, ...], where: str) -> None:
    """Raise ConfigError for a check without points, because it would always hold."""
    systems = dict.fromkeys(p.system for p in points)
    for key, words, valid in (
        ("system", (check.system,), systems),
        ("over", (check.over,) if check.over else (), systems),
        ("models", check.models, dict.fromkeys(p.model for p in points)),
        ("cluster", () if check.cluster is None else (check.cluster,), dict.fromkeys(p.cluster for p in points)),
        ("fidelity", () if check.fidelity is None else (check.fidelity,), dict.fromkeys(p.fidelity for p in points)),
        ("routing", check.routings, dict.fromkeys(p.routing for p in points)),
        ("against", () if check.against is None else (check.against,), dict.fromkeys(p.routing for p in points)),
        ("options", tuple(check.options), dict.fromkeys(option for p in points for option, _ in p.options + p.choices)),
    ):
        for name in words:
            word(name, tuple(valid), f"{where}.{key}")
    _has_size(check.gpus, {p.gpus for p in points}, f"{where}.gpus")
    _has_size(check.tokens, {p.tokens for p in points}, f"{where}.tokens")


def _has_size(wanted: int | None, sizes: set[int | None], where: str) -> None:
    if wanted is not None and wanted not in sizes:
        listed = ", ".join(str(n) for n in sorted(n for n in sizes if n is not None))
        raise ConfigError(f"{where}: found {wanted}, expected one of the points: {listed or 'none names it'}")
