"""Sorts the measurements of a file: with a typed case, or with the reason for having no prediction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from dysharp.measured.family import Case, Family, Level, family_of
from dysharp.measured.measurements import TIMES, Measurement, Unsupported
from dysharp.measured.scope import NO_DOMAIN, out_of_scope

NO_FAMILY = "not of a family that is predicted"
REPRINTED = "the same number as in an earlier row, from another commit of the same file"
COMMIT = re.compile(r"@[0-9a-f]{7,40}\b")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A measurement with its family and its case."""

    measurement: Measurement
    family: Family
    case: Case

    def in_unit(self, us: float) -> float:
        """A time in us, converted to the unit of the measurement: a time, or work divided by time."""
        return self.case.work / us if self.case.work > 0 else us / self.measurement.us_per_unit


@dataclass(frozen=True, slots=True)
class Missing:
    """A measurement without a prediction. `counted`: whether it counts against coverage."""

    measurement: Measurement
    family: Family | None
    reason: str
    counted: bool


@dataclass(frozen=True, slots=True)
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
    any_domain = family is not None and (family.between or family.level == Level.GPU)  # one GPU alone needs no NVLink
    if reason and not (reason == NO_DOMAIN and any_domain):
        raise Unsupported(reason)
    if family is None:
        raise Unsupported(NO_FAMILY)
    if not m.value:
        raise Unsupported("no value above 0")
    case = family.case(m)
    if case.work == 0 and m.unit not in TIMES:
        raise Unsupported(f"no prediction in {m.unit}, expected {' or '.join(TIMES)} or a rate that the family has")
    return Parsed(m, family, case)


def _same(m: Measurement) -> Hashable:
    """Equal for a number and its reprint. A source that names no commit makes every row a measurement of its own."""
    source, commits = COMMIT.subn("", m.source)
    own = source if commits else m.id
    return own, m.kind, m.system, m.hardware, json.dumps(m.config, sort_keys=True), m.metric, m.value, m.unit
