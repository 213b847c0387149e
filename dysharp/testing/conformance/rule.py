"""Rules: named functions in one list. A rule yields the faults of a system; `Report` has the result of all."""

from collections.abc import Callable, Iterable
from typing import Any

from dysharp.base import Tally, frozen

Lines = Iterable[str]
Check = Callable[..., Lines]
SCOPES = ("pass", "layer", "system", "collective")
"""The case of a rule: one pass of a layer, both passes of a layer, the system on tensors that the rule makes, or one collective."""


class NotRun(Exception):
    """A rule cannot judge this case; the text is the reason."""


@frozen
class Rule:
    """`check(case)` yields one line per fault: found, expected. With `over`, `check(case, value)` runs per value.

    `case`: a `Pass`, `Passes`, `SystemCase` or `CollectiveCase`, by `scope`. `direction`: a pass rule about one direction only; "" =
    both. `slow`: the rule runs only if it is named.
    """

    name: str
    scope: str
    check: Check
    over: tuple[Any, ...] = ()
    direction: str = ""
    slow: bool = False

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (self.check.__doc__ or "").strip().splitlines()[0]


RULES: list[Rule] = []
"""All rules. `suite` imports the files with rules, so the list is complete after the import of `suite`."""


def rule(scope: str, over: Iterable[Any] = (), *, direction: str = "", slow: bool = False) -> Callable[[Check], Check]:
    """Decorator: add a function to `RULES` under its name, without the underscore of functions that nobody calls by name."""
    assert scope in SCOPES, scope

    def add(check: Check) -> Check:
        RULES.append(Rule(check.__name__.removeprefix("_"), scope, check, tuple(over), direction, slow))
        return check

    return add


LEGAL = "legal"
"""The rule before all rules: the Program verifies, and its run ends."""
SHOWN = 3
"""Number of places that the report names per rule and reason."""


@frozen
class Finding:
    """One line about one rule. `place`: layer and direction; "" = a rule about the whole system."""

    rule: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.place}): {self.text}" if self.place else f"{self.rule}: {self.text}"


@frozen
class Report:
    """The faults of a system. As a bool: `passed`.

    `ran`: {rule: number of checks}. `failed`: one Finding per fault. `not_run`: rules that did not run, with the reason.
    """

    system: str
    ran: Tally
    failed: tuple[Finding, ...]
    not_run: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether at least one rule besides "legal" ran and no rule failed."""
        return self.judged and not self.failed

    @property
    def judged(self) -> bool:
        """Whether a rule besides "legal" ran, or a rule failed."""
        return bool(self.failed or self.ran.keys() - {LEGAL})

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        verdict = "conforms" if self.passed else "does not conform" if self.judged else "was not judged"
        counts = f"{sum(self.ran.values())} checks of {len(self.ran)} rules, {len(self.failed)} faults"
        lines = [f"{self.system} {verdict}: {counts}"]
        lines += [f"failed: {finding}" for finding in self.failed]
        lines += [f"not run: {text}" for text in sorted(_merged(self.not_run))]  # modules register rules in the order of their imports
        return "\n".join(lines)


def _merged(findings: Iterable[Finding]) -> list[str]:
    """One line per rule and reason, with its first `SHOWN` places."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for finding in findings:
        places.setdefault((finding.rule, finding.text), {})[finding.place] = None
    return [f"{rule} ({reason}){_listed([*where])}" for (rule, reason), where in places.items()]


def _listed(places: list[str]) -> str:
    if not any(places):
        return ""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f": {'; '.join(places[:SHOWN])}{more}"
