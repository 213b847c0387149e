"""Tables of a figure's TOML file as typed values. Errors name the file, the key, what was found and what is expected."""

from collections.abc import Collection
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Strict, TypeAdapter, ValidationError

from dysharp.base import ByName, ConfigError, Texts, check_word, show
from dysharp.specs.fields import keys_of

T = TypeVar("T")
Whole = Annotated[int, Strict()]
"""A whole number: not true or false, no text, no fraction of zero."""


def known(table: Any, valid: Collection[str], where: str) -> None:
    """Raise ConfigError for a value that is no table, and for an unknown key."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: found {type(table).__name__}, expected a table")
    for key in table:
        check_word(key, valid, f"{where}.{key}: unknown key")


def word(value: Any, valid: Texts, where: str) -> None:
    """Raise ConfigError for a value that is none of `valid`."""
    check_word(value, valid, f"{where}: found {show(value)}")


def typed(kind: type[T], table: ByName, where: str) -> T:
    """`table` as an instance of the dataclass `kind`. The `Key` of a field says in errors what the key may hold.

    Raises ConfigError for an unknown key, and with the path of the first value of a wrong type.
    """
    fields: type = kind
    words = {name: key.meaning for name, key in keys_of(fields).items()}
    known(table, words, where)
    try:
        found: T = _adapter(fields).validate_python(table)
        return found
    except ValidationError as error:
        first = error.errors()[0]
        place, value = _place(table, first["loc"])
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "missing":
            raise ConfigError(f"{where}.{key}: missing, expected {words.get(key) or 'a value'}") from None
        wanted = words.get(key) or first["msg"].lower().removeprefix("input should be ")
        raise ConfigError(f"{where}.{place}: found {show(value)}, expected {wanted}") from None


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Made once: a figure has tens of tables of one kind."""
    return TypeAdapter(kind)


def _place(table: Any, loc: tuple[int | str, ...]) -> tuple[str, Any]:
    """The path and the value that a validator complains about: parts of its `loc` that are keys of the table."""
    path, value = [], table
    for part in loc:
        inside = (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int) and part < len(value))
        if not inside:
            break
        path.append(str(part))
        value = value[part]
    return ".".join(path) or "table", value
