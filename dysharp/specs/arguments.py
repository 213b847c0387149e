"""The door of the public functions: an argument of a wrong type is refused by name, before anything uses it."""

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from dysharp.base import ByName, ConfigError, show

F = TypeVar("F", bound=Callable[..., Any])
_NUMBERS: dict[type, tuple[type, str]] = {int: (Integral, "a whole number"), float: (Real, "a number"), bool: (bool, "True or False")}
_WORDS: dict[Any, str] = {str: "text", type(None): "None", os.PathLike: "a path", Callable: "a function"}
_CLASSES = {"WholeModel": "a WholeModel of `dysharp.load_whole`"}
"""Classes that a verb takes, and how one comes by them."""
_NO = object()
"""What `_fitting` returns for a value that does not fit."""


def checked(function: F) -> F:
    """Decorate a public function: its arguments are checked against their annotations. Numbers of NumPy become numbers of Python.

    Raises ConfigError for a wrong type. Parameters without an annotation, and `**names`, are not checked.
    """
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def door(*args: Any, **named: Any) -> Any:
        kinds = _kinds_of(function)
        placed = (fitting(name, value, kinds.get(name, Any)) for name, value in zip(names, args, strict=False))
        rest = {name: fitting(name, value, kinds.get(name, Any)) for name, value in named.items()}
        return function(*placed, *args[len(names) :], **rest)

    return cast(F, door)


@functools.cache
def _kinds_of(function: Callable[..., Any]) -> ByName:
    """{parameter: its type} of the annotated parameters, without `**names`."""
    own = {n for n, p in inspect.signature(function).parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    written = {name: kind for name, kind in function.__annotations__.items() if name in own}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=written), globalns=getattr(function, "__globals__", {}))


def fitting(name: str, value: Any, kind: Any) -> Any:
    """`value`, which fits the annotation `kind`; a number of NumPy as a number of Python. Raises ConfigError for a value of another type."""
    found = _fitting(value, kind)
    if found is _NO:
        raise ConfigError(f"{name}: found {show(value)}, expected {' or '.join(_words(kind))}")
    return found


def _fitting(value: Any, kind: Any) -> Any:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return next((found for each in inner if (found := _fitting(value, each)) is not _NO), _NO)
    if kind in _NUMBERS:
        return _number(value, kind)
    if inner and isinstance(origin, type) and issubclass(origin, Iterable):
        return _pairs(value, *inner) if issubclass(origin, Mapping) else _several(value, inner[0])
    if origin is Callable:
        return value if callable(value) else _NO
    is_class = isinstance(origin, type) and kind is not Any
    fits = isinstance(value, origin) if is_class else True
    return value if fits else _NO


def _number(value: Any, kind: Any) -> Any:
    wide: Any = _NUMBERS[kind][0]
    if not isinstance(value, wide) or (kind is not bool and isinstance(value, bool)):
        return _NO
    try:
        float(value)
    except OverflowError:
        return _NO
    return value if isinstance(value, int | float) else kind(value)


def _pairs(value: Any, key: Any, item: Any) -> Any:
    if not isinstance(value, Mapping) or any(_fitting(each, key) is _NO for each in value):
        return _NO
    pairs = {name: _fitting(each, item) for name, each in value.items()}
    return _NO if any(each is _NO for each in pairs.values()) else pairs


def _several(value: Any, kind: Any) -> Any:
    """A list, a tuple, or what an iterator brings, as a tuple. A text and a mapping are one thing, not several."""
    if isinstance(value, str | bytes | Mapping):
        return _NO
    if isinstance(value, range):  # may be long
        return value if kind is int else _NO
    try:
        items = tuple(_fitting(each, kind) for each in value)
    except TypeError:
        return _NO
    return _NO if any(each is _NO for each in items) else items


def _words(kind: Any) -> list[str]:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return list(dict.fromkeys(word for each in inner for word in _words(each)))
    if kind in _NUMBERS:
        return [_NUMBERS[kind][1]]
    if inner and isinstance(origin, type) and issubclass(origin, Mapping):
        return [f"a mapping from {' or '.join(_words(inner[0]))} to {' or '.join(_words(inner[1]))}"]
    if origin in _WORDS:
        return [_WORDS[origin]]
    if inner and isinstance(origin, type) and issubclass(origin, Iterable):
        return [f"a list of {' or '.join(_words(inner[0]))}"]
    name = getattr(origin, "__name__", str(origin))
    return [_CLASSES.get(name, name)]
