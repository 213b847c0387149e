"""Rules: named functions that say what a system does wrong, in one list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Lines = Iterable[str]
Check = Callable[..., Lines]
SCOPES = ("pass", "layer", "system")
"""What a rule is asked about: one pass of a layer, both passes of a layer, or the system on tensors and layers of the rule's own."""


class NotRun(Exception):
    """A rule cannot judge this case; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`check(case)` yields one line per fault: found, expected. With `over`, `check(case, value)` is asked for each of its values.

    `case` is a `Pass`, `Passes` or `SystemCase`, by `scope`. `slow`: run only when it is asked for by name.
    """

    name: str
    scope: str
    check: Check
    over: tuple[Any, ...] = ()
    slow: bool = False

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (self.check.__doc__ or "").strip().splitlines()[0]


RULES: list[Rule] = []
"""All rules, once `suite` has been imported: it imports the files that hold them."""


def rule(scope: str, over: Iterable[Any] = (), *, slow: bool = False) -> Callable[[Check], Check]:
    """Put a function into `RULES` under its own name."""
    assert scope in SCOPES, scope

    def add(check: Check) -> Check:
        RULES.append(Rule(check.__name__, scope, check, tuple(over), slow))
        return check

    return add
