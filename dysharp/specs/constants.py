"""`Constant`: a number or word that no datasheet states. All kinds have one form, and their files one reader.

| kind | file in `data/` | what fixes the value |
|---|---|---|
| `choices.Choice` | `choices.toml` | a paper, or a judgement where the papers are silent (`source`) |
| `fitted.Fitted` | `fitted.toml` | measurements: the families of `stage` |
| `numbers.Number` | `numbers.toml`; the value stands in the code or in a cluster file | `kind` |
"""

from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import Field

from dysharp.base import AnyMapping, ByName, frozen_keywords, parse_toml, show
from dysharp.specs.fields import Text, problems, raise_if

C = TypeVar("C", bound="Constant")
Words = Annotated[str, Field(strict=True, min_length=1)]
Value = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)] | Words


@frozen_keywords
class Constant:
    """One constant. The value of a number lies in [`low`, `high`], what its meaning allows."""

    name: Words
    value: Value | None
    low: Value | None = None
    high: Value | None = None
    unit: Text
    meaning: Words

    @classmethod
    def row(cls, entry: ByName) -> ByName:
        """The fields of an entry of the file, which writes the same fields."""
        return entry

    def conflicts(self) -> list[str]:
        """Faults between the fields."""
        if isinstance(self.value, (str, type(None))):
            return []
        if not isinstance(self.low, (int, float)) or not isinstance(self.high, (int, float)):
            return ["low, high: missing, expected the plausible range of a number"]
        inside = self.low <= self.value <= self.high
        return [] if inside else [f"value: found {show(self.value)}, expected {show(self.low)} to {show(self.high)}"]


def constants_of(kind: type[C], text: str, where: str) -> dict[str, C]:
    """Constants by name, in file order: each table without tables inside is one, and has the fields of `kind` except `name`.

    Raises `ConfigError` that begins with `where`, the name of the file, and lists the faults of all constants.
    """
    faults, found = [], dict[str, C]()
    for name, entry in flat(parse_toml(text, where), entries=True):
        if not isinstance(entry, dict):
            faults.append(f"{name}: found {show(entry)}, expected a table")
            continue
        row: ByName = {"name": name}
        row |= {key: tuple(value) if isinstance(value, list) else value for key, value in kind.row(entry).items()}
        own = problems(kind, row)
        if not own:
            found[name] = kind(**row)
            own = found[name].conflicts()
        faults += [f"{name}.{fault}" for fault in own]
    raise_if(faults, where)
    return found


def flat(table: AnyMapping, prefix: str = "", *, entries: bool = False) -> Iterator[tuple[str, Any]]:
    """Values of nested tables by dotted key. `entries`: a table without tables inside is a value."""
    for key, entry in table.items():
        if isinstance(entry, dict) and not (entries and not any(isinstance(inner, dict) for inner in entry.values())):
            yield from flat(entry, f"{prefix}{key}.", entries=entries)
        else:
            yield f"{prefix}{key}", entry
