"""`Fitted`: one constant that is fitted to measurements, with its unit, its meaning and the measurements behind it.

Below it, one count of everything that was fitted to measurements, or chosen with measurements in sight. A fitted constant stands in
`data/fitted.toml`. A counted number stands in the code or in cluster files, and `data/numbers.toml` lists it. Both belong to one
part. Budgets are those that were promised; no later count raises one. The first three parts share `ALL`; operators and training share one, and have
none of their own. Later parts were added by name.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dysharp.base.errors import ConfigError, check_word, nearest, show
from dysharp.base.values import frozen
from dysharp.specs.numbers import BETWEEN, ONE, counted
from dysharp.specs.reading import parse_toml, read_text

FILE = Path(__file__).parent / "data" / "fitted.toml"
BETWEEN_DOMAINS = 8  # most constants of networks between NVLink domains
WITHOUT_SWITCH = 4  # most constants of fabrics without a switch
SERVING = 12  # most constants of serving
LIBRARIES = 8  # most constants of calls that enter a drained GPU, and of NCCL EP's buffers
POSTING = 4  # most constants of hosts that post messages between domains
OPERATORS_AND_TRAINING = 10  # most constants of attention and the operators around it, and of training frameworks, together
KEYS = ("value", "low", "high", "unit", "meaning", "stage", "fitted_on")


@frozen
class Fitted:
    """One fitted constant."""

    name: str
    value: float
    low: float
    """Least value that the meaning allows."""
    high: float
    """Greatest value that the meaning allows."""
    unit: str
    meaning: str
    stage: str
    """Families of measurements on which the constant is fitted, or "given"."""
    fitted_on: str
    """The measurements in words."""


def fitted_from_toml(text: str, where: str) -> dict[str, Fitted]:
    """Constants by name, in file order. Raises `ConfigError` that names file, constant and the value found."""
    table = parse_toml(text, where)
    return {name: _fitted(name, entry, f"{where}: {name}") for name, entry in _flat(table)}


def _flat(table: Mapping[str, Any], prefix: str = "", *, mark: str = "value") -> Iterator[tuple[str, Any]]:
    """Tables `[a.b]` as ("a.b", entry). A table without the key `mark` ("": every table) is a group of entries."""
    for key, entry in table.items():
        if isinstance(entry, dict) and not (mark and mark in entry):
            yield from _flat(entry, f"{prefix}{key}.", mark=mark)
        else:
            yield f"{prefix}{key}", entry


def _fitted(name: str, entry: Any, where: str) -> Fitted:
    if not isinstance(entry, dict) or set(entry) != set(KEYS):
        raise ConfigError(f"{where}: found {show(entry)}, expected a table of {', '.join(KEYS)}")
    numbers = [entry[key] for key in ("value", "low", "high")]
    if not all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise ConfigError(f"{where}: found {show(numbers)}, expected three finite numbers value, low, high")
    value, low, high = (float(n) for n in numbers)
    if not 0 < low <= value <= high:
        raise ConfigError(f"{where}: found value {value:g}, low {low:g}, high {high:g}, expected 0 < low <= value <= high")
    texts = {key: entry[key] for key in ("unit", "meaning", "stage", "fitted_on")}
    if not all(isinstance(text, str) and text for text in texts.values()):
        raise ConfigError(f"{where}: found an empty text, expected unit, meaning, stage and fitted_on")
    return Fitted(name, value, low, high, **texts)


def constants_from_file(path: Path) -> dict[str, Fitted]:
    """Constants by name from a file in the form of `data/fitted.toml`.

    Raises `ConfigError` unless the file has every packaged constant and no other constant.
    """
    constants = fitted_from_toml(read_text(path), str(path))
    for name in constants:
        check_word(name, fitted(), f"{path}: {show(name)}: unknown constant")
    missing = [name for name in fitted() if name not in constants]
    if missing:
        raise ConfigError(f"{path}: found {len(constants)} constants, expected also {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}")
    return constants


@functools.cache
def fitted() -> Mapping[str, Fitted]:
    """The packaged constants by name."""
    return fitted_from_toml(read_text(FILE), FILE.name)


def of_operators(constants: Mapping[str, Fitted]) -> dict[str, Fitted]:
    """The constants of operators outside the experts (`attention.*`)."""
    return {name: constant for name, constant in constants.items() if name.startswith("attention.")}


Overrides = tuple[tuple[str, float], ...]
"""Constants of one machine that replace packaged constants: (name, value), sorted by name."""


def fitted_values(overrides: Overrides = ()) -> dict[str, float]:
    """Value by name, as the formulas of `costs` take it. `overrides` replace packaged values."""
    return _packaged() | dict(overrides)


@functools.cache
def _packaged() -> dict[str, float]:
    return {name: constant.value for name, constant in fitted().items()}


def one_domain(constants: Mapping[str, Fitted]) -> dict[str, Fitted]:
    """The constants of one NVLink domain: those of no other part."""
    others = tuple(prefix for _, prefix, *_ in PARTS if prefix)
    return {name: constant for name, constant in constants.items() if not name.startswith(others)}


def overrides_of(table: Any, where: str) -> Overrides:
    """The `[constants]` table of a cluster file, nested or with dotted keys.

    Raises `ConfigError` for a value that is no number and for a name that occurs twice.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: constants: found {show(table)}, expected a table of name = value")
    values: dict[str, float] = {}
    for name, value in _flat(table, mark=""):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{where}: constants: {show(name)}: found {show(value)}, expected a number")
        if name in values:
            raise ConfigError(f"{where}: constants: {show(name)}: found twice, expected once")
        values[name] = float(value)
    return tuple(sorted(values.items()))


def conflicts_of(overrides: Overrides) -> list[str]:
    """Faults in the constants of a machine: unknown names, repeated names, values outside [`low`, `high`]."""
    known, faults = fitted(), []
    for name, value in overrides:
        if name not in known:
            faults.append(f"constants: {show(name)}: unknown{nearest(name, known)}")
        elif not known[name].low <= value <= known[name].high:
            c = known[name]
            faults.append(f"constants: {name}: found {value:g}, expected {c.low:g} to {c.high:g} {c.unit}")
    if len({name for name, _ in overrides}) < len(overrides):
        faults.append("constants: found a name twice, expected each once")
    return faults


ONE_DOMAIN = 45  # most fitted constants and counted numbers of one NVLink domain
ALL = 60  # most of the parts that are not added later
OF_OPERATORS, OF_TRAINING, EVERYTHING = "operators", "training frameworks", "everything"
PARTS: tuple[tuple[str, str, int | None, bool], ...] = (
    (ONE, "", ONE_DOMAIN, False),
    (BETWEEN, "internode.", BETWEEN_DOMAINS, False),
    ("fabrics without a switch", "mori.", WITHOUT_SWITCH, False),
    ("libraries", "lib.", LIBRARIES, True),
    ("serving", "serving.", SERVING, True),
    (OF_OPERATORS, "attention.", None, True),
    (OF_TRAINING, "training.", None, True),
    ("hosts that post messages", "proxy.", POSTING, True),
)
"""(part, how its constants begin ("": as those of no other part), its budget (None: it shares one), whether it was added later)."""


@frozen
class Share:
    """What one part has, or several together. `later`: added after the budget of all. `budget`: None where it has none of its own."""

    part: str
    fitted: int
    counted: int
    budget: int | None
    later: bool

    @property
    def total(self) -> int:
        return self.fitted + self.counted

    @property
    def holds(self) -> bool | None:
        return None if self.budget is None else self.total <= self.budget


def parts(constants: Mapping[str, Fitted]) -> list[Share]:
    """What each part has. Every fitted constant and every counted number is in one of them."""
    of = {part: sum(n.count for n in counted() if n.of == part) for part, *_ in PARTS}
    own = {part: sum(name.startswith(prefix) for name in constants) for part, prefix, *_ in PARTS} | {ONE: len(one_domain(constants))}
    return [Share(part, own[part], of[part], most, later) for part, _, most, later in PARTS]


def shares(constants: Mapping[str, Fitted]) -> list[Share]:
    """The parts, then sums of them: operators and training together, all but later parts, everything."""
    found = parts(constants)
    return [
        *found,
        _sum("operators and training", [share for share in found if share.part in (OF_OPERATORS, OF_TRAINING)], OPERATORS_AND_TRAINING, later=True),
        _sum("all but later parts", [share for share in found if not share.later], ALL, later=False),
        _sum(EVERYTHING, found, None, later=True),
    ]


def _sum(name: str, of: Sequence[Share], budget: int | None, *, later: bool) -> Share:
    return Share(name, sum(share.fitted for share in of), sum(share.counted for share in of), budget, later)


def lines(constants: Mapping[str, Fitted]) -> list[dict[str, object]]:
    """`shares` as lines of a table."""
    keys = ("part", "fitted", "counted", "total", "budget", "holds", "later")
    return [{key: getattr(share, key) for key in keys} for share in shares(constants)]


def share_of(constants: Mapping[str, Fitted], part: str) -> Share:
    """The share of one part."""
    return next(share for share in shares(constants) if share.part == part)
