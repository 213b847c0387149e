"""Numbers in the code: where each of them comes from.

`data/numbers.toml` lists every number at the top level of a module in each folder whose numbers can move a prediction (`costs`, `model`, `serving`
and others), and the numbers inside functions and classes of its formulas. Other folders have one entry each in the section `rooms`, which says why
their numbers move no prediction; their constants that are floats are listed nevertheless. Each entry has one of these kinds:

| kind | the number |
|---|---|
| source | stands in a public file or document, which the text names |
| definition | follows from the words: bytes of a data type, a unit, a choice that the measured program states |
| numerics | belongs to a computation or to printed text; it stands for nothing measured |
| rule | decides which measurements count; it moves no prediction |
| counted | none of these: it counts beside the fitted constants (`of`: of which part, `specs.fitted`) |

Numbers of cluster files that were fitted or chosen with measurements in sight stand in the section `clusters`, with their value.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dysharp.base.errors import ConfigError, show
from dysharp.base.values import frozen
from dysharp.specs.reading import parse_toml, read_text

FILE = Path(__file__).parent / "data" / "numbers.toml"
ONE, BETWEEN = "one NVLink domain", "between domains"
CLUSTERS = "clusters"
"""The section of numbers in cluster files: KEY = the key of the file, `value` = the number."""
ROOMS = "rooms"
"""The section of folders whose numbers move no prediction: KEY = the folder."""
KINDS = ("source", "definition", "numerics", "rule", "counted")


@frozen
class Number:
    """One name with one or more numbers. `name()` stands for the numbers inside the function or class `name`."""

    module: str
    name: str
    kind: str
    text: str
    """The source, or the meaning and the reason for the kind."""
    count: int = 0
    """How many numbers it adds to the fitted ones; 0 unless `kind` is "counted"."""
    of: str = ONE
    """The part that a counted number belongs to (`specs.fitted`)."""
    value: float | None = None
    """The number in cluster files; None in code."""


def numbers_from_toml(text: str, where: str) -> dict[tuple[str, str], Number]:
    """Numbers by (module, name), in file order. Raises `ConfigError` that names file, entry and the value found."""
    found = dict[tuple[str, str], Number]()
    for module, entries in parse_toml(text, where).items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{where}: {module}: found {show(entries)}, expected a table of numbers")
        for name, entry in entries.items():
            found[module, name] = _number(module, name, entry, f"{where}: {module}: {name}")
    return found


def _number(module: str, name: str, entry: Any, where: str) -> Number:
    kinds = [key for key in entry if key in KINDS] if isinstance(entry, dict) else []
    if len(kinds) != 1 or set(entry) - {*kinds, "count", "of", "value"} or ("count" in entry) != (kinds == ["counted"]):
        expected = f"one of {', '.join(KINDS)}, and count beside counted"
        raise ConfigError(f"{where}: found {show(entry)}, expected {expected}")
    text, count = entry[kinds[0]], entry.get("count", 0)
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{where}: {kinds[0]}: found {show(text)}, expected a text")
    if kinds == ["counted"] and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigError(f"{where}: count: found {show(count)}, expected a whole number of at least 1")
    value, of = entry.get("value"), entry.get("of", ONE)
    if (module == CLUSTERS) != isinstance(value, (int, float)) or not isinstance(of, str):
        raise ConfigError(f"{where}: found {show(entry)}, expected a value in [{CLUSTERS}] and none elsewhere, and a part as text")
    return Number(module, name, kinds[0], text, count, of, value)


@functools.cache
def numbers() -> Mapping[tuple[str, str], Number]:
    """The packaged table."""
    return numbers_from_toml(read_text(FILE), FILE.name)


def counted() -> list[Number]:
    """The numbers that count beside the fitted constants."""
    return [number for number in numbers().values() if number.kind == "counted"]
