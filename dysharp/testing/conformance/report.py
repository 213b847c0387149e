"""`Report`: what `conformance` found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 3
"""Places named per rule and reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line about one rule. `place`: the layer and direction, "" for the system as such."""

    rule: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.place}): {self.text}" if self.place else f"{self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a system does wrong. True in conditions when at least one rule ran and none failed.

    `ran`: how often each rule was asked and answered, by name; `failed`: one Finding per fault; `not_run`: rules that gave no
    answer, with the reason.
    """

    system: str
    ran: dict[str, int]
    failed: tuple[Finding, ...]
    not_run: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether at least one rule ran and none failed."""
        return bool(self.ran) and not self.failed

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        verdict = "conforms" if self.passed else "does not conform"
        counts = f"{sum(self.ran.values())} checks of {len(self.ran)} rules, {len(self.failed)} faults"
        lines = [f"{self.system} {verdict}: {counts}"]
        lines += [f"failed: {finding}" for finding in self.failed]
        lines += [f"not run: {text}" for text in _merged(self.not_run)]
        return "\n".join(lines)


def _merged(findings: Iterable[Finding]) -> list[str]:
    """One line per rule and reason, with its places, of many the first."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for finding in findings:
        places.setdefault((finding.rule, finding.text), {})[finding.place] = None
    return [f"{rule} ({reason}){_listed([*where])}" for (rule, reason), where in places.items()]


def _listed(places: list[str]) -> str:
    if not any(places):
        return ""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f": {'; '.join(places[:SHOWN])}{more}"
