"""Numbers in the code: where each of them comes from; and one count of everything that was fitted to measurements, or chosen with them in sight.

`data/numbers.toml` lists every number at the top level of a module in each folder whose numbers can move a prediction (`costs`, `model`, `serving`
and others), and the numbers inside functions and classes of its formulas. Other folders have one entry each in the section `rooms`, which says why
their numbers move no prediction; their constants that are floats are listed nevertheless. Each entry has one of these kinds:

| kind | the number |
|---|---|
| source | stands in a public file or document, which the text names |
| definition | follows from the words: bytes of a data type, a unit, a choice that the measured program states |
| numerics | belongs to a computation or to printed text; it stands for nothing measured |
| rule | decides which measurements count; it moves no prediction |
| counted | none of these: it counts beside the fitted constants (`of`: of which part) |

Numbers of cluster files that were fitted or chosen with measurements in sight stand in the section `clusters`, with their value.

Budgets of the count are those that were promised; no later count raises one. The first three parts share `ALL`; operators and training share one, and
have none of their own. Later parts were added by name.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from dysharp.base import ByName, frozen, frozen_keywords, read_text
from dysharp.specs.constants import Constant, Words, constants_of
from dysharp.specs.fields import one_of
from dysharp.specs.fitted import Fitted
from dysharp.specs.reading import DATA

FILE = DATA / "numbers.toml"
CLUSTERS = "clusters"
"""The section of numbers in cluster files: KEY = the key of the file, `value` = the number."""
ROOMS = "rooms"
"""The section of folders whose numbers move no prediction: KEY = the folder."""
KINDS = ("source", "definition", "numerics", "rule", "counted")
ONE, BETWEEN, OF_OPERATORS, OF_TRAINING, EVERYTHING = "one NVLink domain", "between domains", "operators", "training frameworks", "everything"
ONE_DOMAIN = 45  # most fitted constants and counted numbers of one NVLink domain
BETWEEN_DOMAINS = 8  # most constants of networks between NVLink domains
POSTING = 4  # most constants of hosts that post messages between domains
OPERATORS_AND_TRAINING = 10  # most constants of attention and the operators around it, and of training frameworks, together
ALL = 60  # most of the parts that are not added later


@frozen_keywords
class _ListedNumber(Constant):
    """One name with one or more numbers. `MODULE.NAME()` stands for the numbers inside the function or class `NAME`.

    `meaning`: the source, or the meaning and the reason for the kind. `value`: the number in cluster files; None in code.
    """

    kind: Annotated[str, one_of(*KINDS)]
    count: Annotated[int, Field(strict=True, ge=0)] = 0
    """How many numbers it adds to the fitted ones; 0 unless `kind` is "counted"."""
    of: Words = ONE
    """The part that a counted number belongs to."""

    @classmethod
    def row(cls, entry: ByName) -> ByName:
        """An entry is `KIND = "meaning"`, with `count`, `of` and `value`."""
        kind = next((key for key in KINDS if key in entry), "")
        rest = {key: value for key, value in entry.items() if key != kind}
        return {"value": None, "unit": "", "kind": kind, "meaning": entry.get(kind)} | rest

    @property
    def place(self) -> tuple[str, str]:
        """(module or section, name there)."""
        module, _, name = self.name.rpartition(".")
        return module, name

    def conflicts(self) -> list[str]:
        if (self.kind == "counted", self.place[0] == CLUSTERS) == (self.count > 0, self.value is not None):
            return []
        expected = f"count = 1 or more beside counted and no other kind, a value in [{CLUSTERS}] and nowhere else"
        return [f"{self.kind}: found count {self.count} and value {self.value}, expected {expected}"]

    def to_dict(self) -> ByName:
        """Fields of `--json`."""
        module, name = self.place
        return {"module": module, "name": name, "kind": self.kind, "text": self.meaning, "count": self.count, "of": self.of, "value": self.value}


@functools.cache
def numbers() -> Mapping[str, _ListedNumber]:
    """The packaged table."""
    return constants_of(_ListedNumber, read_text(FILE), FILE.name)


def counted() -> list[_ListedNumber]:
    """The numbers that count beside the fitted constants."""
    return [number for number in numbers().values() if number.kind == "counted"]


@frozen
class _Share:
    """What one part has, or several together."""

    part: str
    budget: int | None = None
    """None where it has none of its own."""
    later: bool = False
    """Whether it was added after the budget of all."""
    prefix: str = ""
    """How the names of its fitted constants begin; "" for the part of all other names."""
    fitted: int = 0
    counted: int = 0

    @property
    def total(self) -> int:
        return self.fitted + self.counted

    @property
    def holds(self) -> bool | None:
        return None if self.budget is None else self.total <= self.budget


PARTS = (
    _Share(ONE, ONE_DOMAIN),
    _Share(BETWEEN, BETWEEN_DOMAINS, prefix="internode."),
    _Share("fabrics without a switch", 4, prefix="mori."),
    _Share("libraries", 8, later=True, prefix="lib."),
    _Share("serving", 12, later=True, prefix="serving."),
    _Share(OF_OPERATORS, later=True, prefix="attention."),
    _Share(OF_TRAINING, later=True, prefix="training."),
    _Share("hosts that post messages", POSTING, later=True, prefix="proxy."),
    _Share("Ascend", 4, later=True),
    _Share("learned machines", later=True, prefix="learned."),
)
"""Libraries: calls that enter a drained GPU, and NCCL EP's buffers. Operators: attention and what stands around it."""


def parts(constants: Mapping[str, Fitted]) -> list[_Share]:
    """What each part has. Every fitted constant and every counted number is in one of them."""
    own = Counter(next((one.part for one in PARTS if one.prefix and name.startswith(one.prefix)), ONE) for name in constants)
    of = {one.part: sum(number.count for number in counted() if number.of == one.part) for one in PARTS}
    return [replace(one, fitted=own[one.part], counted=of[one.part]) for one in PARTS]


def shares(constants: Mapping[str, Fitted]) -> list[_Share]:
    """The parts, then sums of them: operators and training together, all but later parts, everything."""
    found = parts(constants)
    return [
        *found,
        _sum(_Share("operators and training", OPERATORS_AND_TRAINING, later=True), [one for one in found if one.part in (OF_OPERATORS, OF_TRAINING)]),
        _sum(_Share("all but later parts", ALL), [one for one in found if not one.later]),
        _sum(_Share(EVERYTHING, later=True), found),
    ]


def _sum(total: _Share, of: Sequence[_Share]) -> _Share:
    return replace(total, fitted=sum(one.fitted for one in of), counted=sum(one.counted for one in of))


def lines(constants: Mapping[str, Fitted]) -> list[dict[str, object]]:
    """`shares` as lines of a table."""
    keys = ("part", "fitted", "counted", "total", "budget", "holds", "later")
    return [{key: getattr(share, key) for key in keys} for share in shares(constants)]


def share_of(constants: Mapping[str, Fitted], part: str) -> _Share:
    """The share of one part."""
    return next(share for share in parts(constants) if share.part == part)
