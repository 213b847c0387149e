"""A check of a figure: a simulated number beside the paper's number, and what is claimed of it. Tables [[check]] of a figure's TOML file."""

import math
import re
from dataclasses import field, replace

from dysharp.base import ByName, ConfigError, Texts, frozen
from dysharp.figures.keys import known, typed, word
from dysharp.figures.metric import all_calculated, all_metrics
from dysharp.runs import Point

REDUCTIONS = ("geomean", "median", "max", "min", "growth", "each")
"""How a check reduces its points to one number. growth: the smallest difference between a point and the next one of its model."""
_COMMIT = re.compile(r"[0-9a-f]{8} \d{4}-\d\d-\d\d \d\d:\d\d")
NUMBERS = ("paper", "within", "at_least", "at_most", "regression", "band")


@frozen
class Check:
    """A simulated number beside the paper's number, with the data from which `verdict` says what became of it (docs/design/0024-verdicts.md).

    A check takes the points of `system` that match `models`, `cluster`, `gpus`, `tokens`, `routing`, `fidelity` and
    `options`. `options` names options and free choices; a value may be a list of alternatives. `over`: the system to
    compare with. `against`: the routing to compare with (metric `kept`). The functions of `figures/metrics` explain the metrics.

    | field | meaning |
    |---|---|
    | `paper`, `within` | the published value, and the tolerance relative to it |
    | `at_least`, `at_most` | bounds that the published text gives, where it gives no value |
    | `bound_set`, `number_seen` | commit and time that set this bound, and that first showed the number; "": not known, so nothing came out |
    | `cannot_fail` | why no run can leave the bound |
    | `fitted` | which input was chosen for this number |
    | `regression`, `band` | this package's own stored value, and how far (relative) it may move unnoticed |
    | `reason`, `ablation` | why the number is outside its bound, and the command that shows why |
    | `mark`, `mark_above` | words beside the number where it is above this value |
    | `variants` | whether the check is also shown for each variant of the figure |

    A known gap has a reason. It needs `regression` and `band`, so that a gap that grows is seen.
    """

    name: str
    metric: str
    system: str
    over: str = ""
    reduce: str = "geomean"
    models: Texts = ()
    cluster: str | None = None
    gpus: int | None = None
    tokens: int | None = None
    routing: str | Texts | None = None  # one, or any of several
    fidelity: str | None = None
    options: ByName = field(default_factory=dict)
    variants: bool = False
    against: str | None = None
    paper: float | None = None
    within: float | None = None  # relative
    at_least: float | None = None
    at_most: float | None = None
    bound_set: str = ""  # "HASH YYYY-MM-DD HH:MM"
    number_seen: str = ""
    cannot_fail: str = ""
    fitted: str = ""
    regression: float | None = None
    band: float | None = None  # relative
    reason: str = ""
    ablation: str = ""
    mark: str = ""
    mark_above: float = math.inf

    @property
    def routings(self) -> Texts:
        """The routings whose points the check takes; () = all."""
        return (self.routing,) if isinstance(self.routing, str) else self.routing or ()

    @property
    def bounded(self) -> bool:
        """Whether a published text bounds the value."""
        return any(v is not None for v in (self.within, self.at_least, self.at_most))

    @property
    def judged(self) -> bool:
        """Whether the number is compared with a bound or with its stored value."""
        return self.bounded or self.regression is not None

    @property
    def before(self) -> bool:
        """Whether the bound was set before the number was first seen."""
        return bool(self.bound_set) and self.bound_set[9:] < self.number_seen[9:]


def unclaimed(check: Check) -> Check:
    """The check without its bound and its stored value."""
    bare = replace(check, bound_set="", number_seen="", cannot_fail="", fitted="", reason="", ablation="", variants=False)
    return replace(bare, within=None, at_least=None, at_most=None, regression=None, band=None)


def check_of(table: ByName, points: tuple[Point, ...], where: str) -> Check:
    """One table [[check]] of a figure with `points`. Raises ConfigError."""
    known(table, set(Check.__dataclass_fields__), where)
    check = typed(Check, table, where)
    word(check.metric, tuple(all_metrics()), f"{where}.metric")
    word(check.reduce, REDUCTIONS, f"{where}.reduce")
    _fits_metric(check, where)
    of_bound = [key for key in ("bound_set", "number_seen", "cannot_fail", "fitted", "reason") if getattr(check, key)]
    for key, wrong, text in (
        ("", bool(check.reason) != bool(check.ablation), "found a reason or an ablation command alone, expected both or none"),
        ("", check.reason and check.regression is None, "found a reason without a stored value, expected regression = VALUE and band = RELATIVE"),
        (
            "",
            (check.regression is None) != (check.band is None),
            f"found regression = {check.regression} and band = {check.band}, expected both or none",
        ),
        (".within", check.within is not None and check.paper is None, "found a tolerance without the paper's value, expected both"),
        (".within", check.within is not None and check.paper == 0, "found a tolerance relative to paper = 0, expected another value, or at_most"),
        *((f".{n}", not math.isfinite(v := getattr(check, n) or 0.0), f"found {v}, expected a finite number") for n in NUMBERS),
        ("", of_bound and not check.bounded, f"found {', '.join(of_bound)} without a bound, expected within, at_least or at_most beside it"),
        *(
            (f".{n}", v and not _COMMIT.fullmatch(v), f"found {v!r}, expected a commit and its time such as 'f455060d 2026-11-22 10:45'")
            for n in ("bound_set", "number_seen")
            for v in (getattr(check, n),)
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
