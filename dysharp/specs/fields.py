"""Field types of the specs, and the one place that checks values against them.

Specs are plain frozen dataclasses. Their annotations carry the range of each field. Pydantic reads the annotations and reports *all* problems of a
spec at once. One check serves both a file and a call (`__post_init__`), so neither can build a bad spec. The check uses a pydantic model that is made
from the dataclass: a `TypeAdapter` of the dataclass itself would call `__post_init__` again.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dysharp.base import AnyMapping, ByName, ConfigError, frozen, nearest, show

MAX_PROBLEMS = 20  # problems in one message, so that a file of garbage still gives one readable line


def one_of(*words: str, parts: bool = False) -> AfterValidator:
    """A closed set of words. Its static type stays `str`, so that callers can pass computed values. `parts`: more may stand behind a comma."""

    def check(value: str) -> str:
        if (value.partition(",")[0] if parts else value) not in words:
            raise PydanticCustomError("word", "{words}", {"words": " or ".join(words)})
        return value

    return AfterValidator(check)


Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$")]
Text = Annotated[str, Field(strict=True, max_length=1000)]
Width = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]
Experts = Annotated[int, Field(strict=True, ge=1, le=1 << 16)]  # expert ids are 16 bits on the wire
Tokens = Annotated[int, Field(strict=True, ge=1, le=1 << 24)]
Small = Annotated[int, Field(strict=True, ge=1, le=1 << 12)]
SmallOrNone = Annotated[int, Field(strict=True, ge=0, le=1 << 12)]
Entries = Tokens
EntriesOrInfinite = Annotated[int, Field(strict=True, ge=0, le=1 << 24)]
Amount = Annotated[int, Field(strict=True, ge=1, le=1 << 50)]
AmountOrZero = Annotated[int, Field(strict=True, ge=0, le=1 << 50)]
Rate = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
LinkRate = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]
"""GB/s. A link that is faster brings a flit in less than the picosecond in which times are counted."""
Delay = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
Constants = tuple[tuple[Annotated[str, Field(strict=True)], Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]], ...]
DispatchFormat = Annotated[str, Field(strict=True), one_of("rows", "fp8")]
GemmDtype = Annotated[str, Field(strict=True), one_of("fp8", "bf16")]
CHECKPOINTS = ("bf16", "fp8", "fp8-tensor", "mxfp8", "fp4", "fp4-all", "mxfp4", "mxfp4-fp8", "int4", "int4-experts", "int4-all")
Checkpoint = Annotated[str, Field(strict=True), one_of("", *CHECKPOINTS, parts=True)]
Family = Annotated[str, Field(strict=True), one_of("paper", "hw")]


@frozen
class Key:
    """How a field stands in a TOML file, as metadata of its annotation.

    `meaning`: in words, with the unit of the file. Where the file has another unit: `name` and type (`kind`) of the key, and `convert`, a
    multiplication that gives the field's value.
    """

    meaning: str
    name: str = ""
    kind: Any = None
    convert: Callable[[float], int] | None = None


@functools.cache
def keys_of(cls: type) -> dict[str, Key]:
    """{field: its Key} of a dataclass; the name of every Key is filled in."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {f.name: next((m for m in getattr(hints[f.name], "__metadata__", ()) if isinstance(m, Key)), Key("")) for f in dataclasses.fields(cls)}
    return {name: dataclasses.replace(key, name=key.name or name, kind=key.kind or hints[name]) for name, key in found.items()}


@functools.cache
def _schema(cls: type) -> type[BaseModel]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields: ByName = {}
    for f in dataclasses.fields(cls):
        fields[f.name] = (hints[f.name], ... if f.default is dataclasses.MISSING else f.default)
    return pydantic.create_model(cls.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _tables(cls: type) -> dict[str, type]:
    """The fields of a dataclass that are dataclasses themselves, or None: tables of its file."""
    hints = {name: (hint, *typing.get_args(hint)) for name, hint in typing.get_type_hints(cls).items()}
    return {name: kind for name, kinds in hints.items() for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)}


def _describe(error: Any, names: list[str], tables: AnyMapping) -> str:
    parts = [str(p)[:80] for p in error["loc"]]
    path = ".".join(p if p.replace("_", "").replace("-", "").isalnum() else show(p) for p in parts)
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        last = key.rpartition(".")[2]
        inside = [f"{table}.{last}" for table, cls in tables.items() if last in {f.name for f in dataclasses.fields(cls)}]
        return f"{path}: unknown key" + (f'; did you mean "{inside[0]}"?' if inside else nearest(key, names))
    if error["type"] == "missing":
        return f"{path}: missing"
    expected = error["msg"].removeprefix("Input should be ").replace("a valid tuple", "a list").replace("String should match", "text that matches")
    return f"{path}: found {show(error['input'])}, expected {expected}"


def problems(cls: type, values: AnyMapping) -> list[str]:
    """Every fault of `values` as fields of the dataclass `cls`, in field order. Empty: the values are valid."""
    try:
        _schema(cls).model_validate(dict(values))
    except pydantic.ValidationError as error:
        names = [f.name for f in dataclasses.fields(cls)]
        errors = error.errors(include_url=False, include_context=False)
        shown = [_describe(e, names, _tables(cls)) for e in errors[:MAX_PROBLEMS]]
        if len(errors) > MAX_PROBLEMS:
            shown.append(f"and {len(errors) - MAX_PROBLEMS} more")
        return shown
    return []


def raise_if(faults: list[str], where: str) -> None:
    """Raise one `ConfigError` that lists all `faults`, if there are any. `where` names the file or the object."""
    if faults:
        raise ConfigError(f"{where}: " + " | ".join(faults))


def check_fields(spec: Any, where: str) -> None:
    """Raise `ConfigError` unless the fields of a dataclass instance fit its annotations."""
    values = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    raise_if(problems(type(spec), values), where)


def check_value(value: object, annotation: Any, name: str) -> None:
    """Raise `ConfigError` unless `value` fits the annotation of a field; `name` names it in the error."""
    try:
        pydantic.TypeAdapter(annotation).validate_python(value)
    except pydantic.ValidationError as error:
        expected = error.errors(include_url=False)[0]["msg"].removeprefix("Input should be ")
        raise ConfigError(f"{name}: found {show(value)}, expected {expected}") from None
