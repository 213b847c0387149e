"""Rules: named functions in one list. A rule yields the faults of a system."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Lines = Iterable[str]
Check = Callable[..., Lines]
SCOPES = ("pass", "layer", "system", "collective")
"""The case of a rule: one pass of a layer, both passes of a layer, the system on tensors that the rule makes, or one collective."""


class NotRun(Exception):
    """A rule cannot judge this case; the text is the reason."""


@dataclass(frozen=True, slots=True)
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
    """Decorator: add a function to `RULES` under its name."""
    assert scope in SCOPES, scope

    def add(check: Check) -> Check:
        RULES.append(Rule(check.__name__, scope, check, tuple(over), direction, slow))
        return check

    return add
