"""A measured family: which measurements are its own, their typed case, and the two answers to that case; and all measurements of a file, sorted.

A family is one file of `measured/families`, found by scanning the folder; packages outside the tree use the entry point
group `dysharp.families`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from enum import IntEnum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar

from dysharp.base import F64, AnyMapping, ByName, ConfigError, Texts, entry_of, frozen, frozen_keywords, import_all, read_toml
from dysharp.measured.measurements import NO_DOMAIN, NO_SWITCH, TABLES, TIMES, Measurement, Unsupported, out_of_scope
from dysharp.measured.regime import UNKNOWN
from dysharp.specs import Gpu, Model
from dysharp.specs.fitted import Overrides

Constants = Mapping[str, float]
Part = Literal["dispatch", "combine", "gemm1", "gemm2", "layer", "sum"]
Between = Literal["", "bars", "beyond"]
"""Families of several NVLink domains: with bars of their own, or without. "": a family of one domain."""
GEMMS: tuple[Part, ...] = ("gemm1", "gemm2")
EVERY_SYSTEM = "every system"
LAST = 1000


class Level(IntEnum):
    """The parts of a machine that a measurement exercises. Constants of lower levels are fitted first."""

    GPU = 0
    """One GPU alone."""
    LINK = 1
    """Collectives: links and switches."""
    KERNEL = 2
    """Communication kernels, which use a GPU and its links."""
    LAYER = 3
    """Whole layers."""
    CALL = 4
    """Calls of a library: its kernels and its host. A row of such a call is of no other family."""


@frozen_keywords
class Case:
    """What a family reads from one measurement; each family adds its own fields.

    A closed form gets many cases at once: fields that hold numbers become float64 arrays `[n]`, fields that hold
    anything else are equal in all of them. Fields with `compare=False` describe the measurement and are in no answer.
    """

    gpu: str
    """Name of the packaged GPU."""
    work: float = field(default=0.0, compare=False)
    """Work of one call in units of rate x us, so that the rate is `work` / time. 0: the measurement is a time."""
    dtypes: Texts = field(default=(), compare=False)
    """Data types that are moved or multiplied, such as "dispatch fp8"."""
    launches: float = field(default=0.0, compare=False)
    """Host launches of an eager call; 0 where the host is not in the time."""
    shape: str = field(default="", compare=False)
    """Measurements of one shape are held out together: the model and layout without tokens, rows or bytes."""

    def run_key(self) -> Hashable:
        """Cases with equal keys share runs of Programs, so one process runs them."""
        return self

    def effort(self) -> int:
        """Rough size of the Program runs. Cases with most effort run first."""
        return 1


C = TypeVar("C", bound=Case)
DtypesOf = Callable[[Model, AnyMapping], Texts]


@frozen
class Family:
    """A family for `validate`, `calibrate` and error bars. The decorator `family` describes the fields."""

    name: str
    belongs: Callable[[Measurement], bool]
    case: Callable[[Measurement], Case]
    closed_us: Callable[[Any, Gpu, Constants], F64] | None = None
    program_us: Callable[[Any, Constants], float] | None = None
    predictor: str = "rate form"
    in_bars: bool = True
    level: Level = Level.LAYER
    order: int = LAST
    systems: Texts = ()
    parts: tuple[Part, ...] = ()
    dtypes_of: DtypesOf = lambda model, options: ()
    skewed: bool = False
    between: Between = ""
    regime: str = UNKNOWN

    def __post_init__(self) -> None:
        if self.between and self.in_bars:
            raise ConfigError(f"family {self.name!r}: found between={self.between!r} and in_bars=True, expected in_bars=False over several domains")
        if self.closed_us is None and (self.in_bars or self.program_us is None):
            expected = "closed_us: the fit moves closed forms" if self.in_bars else "closed_us or program_us"
            raise ConfigError(f"family {self.name!r}: found no closed_us, expected {expected}")


_REGISTRY: dict[str, Family] = {}


@cache
def _packaged() -> dict[str, ByName]:
    """Facts of the packaged families, by name."""

    def value(key: str, given: Any) -> Any:
        return Level[given] if key == "level" else tuple(given) if isinstance(given, list) else given

    facts = read_toml(Path(__file__).parent / "families" / "facts.toml")
    return {name: {key: value(key, given) for key, given in one.items()} for name, one in facts.items()}


def family(
    name: str,
    *,
    belongs: Callable[[Measurement], bool],
    closed_us: Callable[[C, Gpu, Constants], F64] | None = None,
    program_us: Callable[[C, Constants], float] | None = None,
    **facts: Any,
) -> Callable[[Callable[[Measurement], C]], Callable[[Measurement], C]]:
    """Register a function from a measurement to its case; it raises `Unsupported` with the reason where there is none.

    | argument | meaning |
    |---|---|
    | `belongs` | whether a measurement is of this family; no measurement may be of two |
    | `closed_us` | time in us by a closed form; called with numbers as arrays (`Case`) |
    | `program_us` | time in us by running the system's Program; it predicts the family where it exists |
    | `predictor` | name of the predictor in tables; default: "program" or "rate form" |
    | `in_bars` | whether the family counts in means, coverage and bars and in the fit; else it has a table of its own |
    | `level` | what is measured; orders the fit |
    | `order` | place in tables |
    | `systems`, `parts` | of which systems' layers the errors judge which part, for error bars |
    | `dtypes_of` | data types of a prediction by model and options, named as in `Case.dtypes`; default: not compared |
    | `skewed` | whether the family has measurements under skewed routing |
    | `between` | a family of several NVLink domains: "bars" or "beyond"; it has `in_bars=False` |
    | `regime` | the regime that its predictions describe (`measured.regime`) |

    Parts: "dispatch", "combine", "gemm1", "gemm2" of a layer's critical path; "layer": one kernel is the whole layer;
    "sum": whole layers, against which the sum of all parts is checked. `families/facts.toml` holds these facts of the packaged families.
    """
    known = {"predictor": "rate form" if program_us is None else "program"} | _packaged().get(name, {}) | facts

    def register(case: Callable[[Measurement], C]) -> Callable[[Measurement], C]:
        _REGISTRY[name] = Family(name, belongs, case, closed_us, program_us, **known)
        return case

    return register


@cache
def _scan() -> None:
    import_all("dysharp.measured.families")
    for entry in entry_points(group="dysharp.families"):
        entry.load()


def all_families() -> dict[str, Family]:
    """Every registered family by name, in the order of tables."""
    _scan()
    return {entry.name: entry for entry in sorted(_REGISTRY.values(), key=lambda entry: (entry.order, entry.name))}


def families_in_bars() -> list[str]:
    """Names of the families that count in means, coverage and bars, in the order of tables."""
    return [name for name, entry in all_families().items() if entry.in_bars]


def get_family(name: str) -> Family:
    """The family called `name`. Raises ConfigError with the nearest valid name."""
    families = all_families()
    return entry_of(name, families, f"family {name!r}: unknown")


def family_of(m: Measurement) -> Family | None:
    """The family of a measurement, None where it is of none. Raises ConfigError where two families claim it.

    A family of calls goes before others, and a family of several domains before families of one.
    """
    claims = [entry for entry in all_families().values() if entry.belongs(m)]
    claims = [entry for entry in claims if entry.level is Level.CALL] or claims
    claims = [entry for entry in claims if entry.between] or claims
    if len(claims) > 1:
        names = " and ".join(entry.name for entry in claims)
        raise ConfigError(f"measurement {m.id!r}: found families {names}, expected one")
    return claims[0] if claims else None


def families_with_errors() -> list[str]:
    """Names of the families in the packaged table of errors: families with bars, and families beyond the bars that have parts of a system."""
    return [name for name, entry in all_families().items() if entry.in_bars or entry.between == "bars" or entry.systems]


def judges_of(system: str, domains: int = 1) -> dict[Part, Family]:
    """Which family judges which part of `system` over `domains` NVLink domains. Raises ConfigError where two judge the same part."""
    judges: dict[Part, Family] = {}
    for entry in all_families().values():
        if system in entry.systems or EVERY_SYSTEM in entry.systems:
            for part in _judged_parts(entry, domains):
                if part in judges:
                    names = f"{judges[part].name} and {entry.name}"
                    raise ConfigError(f"system {system!r}: found families {names} for its {part}, expected one")
                judges[part] = entry
    return judges


def judges_outside_bars(system: str, domains: int) -> list[Family]:
    """The families beyond the bars with parts of `system`: `validate` prints their errors, which make no error bar."""
    families = [entry for entry in all_families().values() if system in entry.systems and not entry.in_bars and entry.between != "bars"]
    return [entry for entry in families if bool(entry.between) == (domains > 1)]


def _judged_parts(entry: Family, domains: int) -> tuple[Part, ...]:
    """Parts that a family judges: kernels of one domain say nothing about several, but for GEMMs, which stay on their GPU."""
    if domains == 1:
        return entry.parts if entry.in_bars else ()
    if entry.between == "bars":
        return entry.parts
    return tuple(part for part in entry.parts if entry.in_bars and part in GEMMS)


NO_FAMILY = "not of a family that is predicted"
REPRINTED = "the same number as in an earlier row, from another commit of the same file"
COMMIT = re.compile(r"@[0-9a-f]{7,40}\b")


@frozen
class Parsed:
    """A measurement with its family and its case. `own`: constants of its GPU that stand before those asked."""

    measurement: Measurement
    family: Family
    case: Case
    own: Overrides = ()

    def in_unit(self, us: float) -> float:
        """A time in us, converted to the unit of the measurement: a time, or work divided by time."""
        return self.case.work / us if self.case.work > 0 else us / self.measurement.us_per_unit

    @property
    def measured_us(self) -> float:
        """The measured value as a time in us."""
        value = float(self.measurement.value or 0.0)
        return self.case.work / value if self.case.work > 0 else value * self.measurement.us_per_unit


@frozen
class Missing:
    """A measurement without a prediction. `counted`: whether it counts against coverage."""

    measurement: Measurement
    family: Family | None
    reason: str
    counted: bool


@frozen
class Classified:
    """All measurements of a file, with a case or without one."""

    parsed: tuple[Parsed, ...]
    missing: tuple[Missing, ...]

    @property
    def entries(self) -> list[Parsed | Missing]:
        """All measurements."""
        return [*self.parsed, *self.missing]

    def in_bars(self) -> Classified:
        """Without the measurements of families beyond the bars."""
        return self._keep(lambda family: family is None or family.in_bars)

    def beyond_bars(self) -> Classified:
        """Only the measurements of families beyond the bars."""
        return self._keep(lambda family: family is not None and not family.in_bars)

    def _keep(self, wanted: Callable[[Family | None], bool]) -> Classified:
        parsed = tuple(entry for entry in self.parsed if wanted(entry.family))
        return Classified(parsed, tuple(entry for entry in self.missing if wanted(entry.family)))


def classify(measurements: Iterable[Measurement]) -> Classified:
    """Classify each measurement: with its case, or with the reason for having no case.

    A number that another commit of the same file repeats is one measurement: its first row counts.
    """
    parsed, missing, printed = list[Parsed](), list[Missing](), set[Hashable]()
    for m in measurements:
        family, again = family_of(m), _same(m) in printed
        printed.add(_same(m))
        try:
            if again:
                raise Unsupported(REPRINTED)
            parsed.append(parse(m, family))
        except Unsupported as reason:
            counted = family is not None and family.in_bars and not again and not out_of_scope(m)
            missing.append(Missing(m, family, str(reason), counted))
    return Classified(tuple(parsed), tuple(missing))


def parse(m: Measurement, family: Family | None) -> Parsed:
    """A measurement of `family` with its case. Raises `Unsupported` with the reason. Scope is checked first."""
    reason = out_of_scope(m)
    alone, between = (False, False) if family is None else (family.level == Level.GPU, family.between)  # one GPU alone needs no fabric
    if reason and not ((alone and reason == NO_SWITCH) or ((alone or between) and reason == NO_DOMAIN)):
        raise Unsupported(reason)
    if family is None:
        raise Unsupported(NO_FAMILY)
    if not m.value:
        raise Unsupported("no value above 0")
    for rule in TABLES["refused"]:
        if family.name in rule["families"] and m.says(rule["where"]):
            raise Unsupported(rule["why"])
    case = family.case(m)
    if case.work == 0 and m.unit not in TIMES:
        raise Unsupported(f"no prediction in {m.unit}, expected {' or '.join(TIMES)} or a rate that the family has")
    return Parsed(m, family, case)


def _same(m: Measurement) -> Hashable:
    """Equal for a number and its reprint. A source that names no commit makes every row a measurement of its own."""
    source, commits = COMMIT.subn("", m.source)
    own = source if commits else m.id
    return own, m.kind, m.system, m.hardware, json.dumps(m.config, sort_keys=True), m.metric, m.value, m.unit
