"""One count of everything that was fitted to measurements, or chosen with measurements in sight, and one budget for all of it.

A fitted constant stands in `data/fitted.toml`. A counted number stands in the code or in cluster files, and `data/numbers.toml` lists it. Both
belong to one part; each part has a budget, and the first three share `ALL`. Later parts were added by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dysharp.specs.fitted import (
    BETWEEN_DOMAINS,
    LIBRARIES,
    OF_TRAINING,
    OPERATORS,
    SERVING,
    WITHOUT_SWITCH,
    Fitted,
    between_domains,
    of_libraries,
    of_operators,
    of_serving,
    of_training,
    one_domain,
    without_switch,
)
from dysharp.specs.numbers import BETWEEN, ONE, counted

ONE_DOMAIN = 45  # most fitted constants and counted numbers of one NVLink domain
ALL = 60  # most of the parts that are not added later
_Part = tuple[str, Callable[[Mapping[str, Fitted]], Mapping[str, Fitted]], int, bool]
PARTS: tuple[_Part, ...] = (
    (ONE, one_domain, ONE_DOMAIN, False),
    (BETWEEN, between_domains, BETWEEN_DOMAINS, False),
    ("fabrics without a switch", without_switch, WITHOUT_SWITCH, False),
    ("libraries", of_libraries, LIBRARIES, True),
    ("operators", of_operators, OPERATORS, True),
    ("serving", of_serving, SERVING, True),
    ("training frameworks", of_training, OF_TRAINING, True),
)
"""(part, its constants, its budget, whether it was added later)."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one part has. `later`: added after the budget of all."""

    part: str
    fitted: int
    counted: int
    budget: int
    later: bool

    @property
    def total(self) -> int:
        return self.fitted + self.counted

    @property
    def holds(self) -> bool:
        return self.total <= self.budget


def shares(constants: Mapping[str, Fitted]) -> list[Share]:
    """The parts, then "all but later parts" as one line."""
    numbers = counted()
    found = [Share(name, len(of(constants)), sum(n.count for n in numbers if n.of == name), most, later) for name, of, most, later in PARTS]
    first = [share for share in found if not share.later]
    return [*found, Share("all but later parts", sum(s.fitted for s in first), sum(s.counted for s in first), ALL, later=False)]


def lines(constants: Mapping[str, Fitted]) -> list[dict[str, object]]:
    """`shares` as lines of a table."""
    keys = ("part", "fitted", "counted", "total", "budget", "holds", "later")
    return [{key: getattr(share, key) for key in keys} for share in shares(constants)]


def share_of(constants: Mapping[str, Fitted], part: str) -> Share:
    """The share of one part."""
    return next(share for share in shares(constants) if share.part == part)
