"""Rows that somebody stored: their fields are checked against `Row` before a page is made of them."""

import dataclasses
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from dysharp.analysis import Row
from dysharp.analysis.row import DIRECTIONS
from dysharp.errors import ConfigError
from dysharp.specs.fields import show

NEEDED = (
    "system", "model", "cluster", "gpus", "tokens_per_gpu", "routing", "direction", "fidelity", "seed", "options", "time_us", "attribution",
    "phases_us",
)  # fmt: skip
"""Fields that a report cannot do without. An older Row may lack others."""
_Us = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Phase(BaseModel):
    start: _Us
    end: _Us
    busy: _Us


class _Window(BaseModel):
    model_config = ConfigDict(extra="allow")
    time_us: _Us


_NARROWER: dict[str, Any] = {
    "time_us": Annotated[float, Field(gt=0, allow_inf_nan=False)], "bound_us": _Us, "workload_bound_us": _Us, "exposed_comm_us": _Us,
    "phases_us": dict[str, _Phase], "window": _Window | Annotated[dict[str, Any], Field(max_length=0)],
    "gpus": Annotated[int, Field(ge=1, le=1 << 16)],
    "tokens_per_gpu": Annotated[int, Field(ge=0, le=1 << 40)], "seed": Annotated[int, Field(ge=0)], "layer": Annotated[int, Field(ge=0)] | None,
    "dropped_rows": Annotated[int, Field(ge=0)], "direction": typing.Literal[tuple(DIRECTIONS)], "topk": Annotated[int, Field(ge=0)],
}  # fmt: skip
"""Fields that a page computes with, narrower than in `Row`."""


def check_row(row: Mapping[str, Any]) -> None:
    """Raise ConfigError for a Row without a field of `NEEDED`, and for the first field of a wrong type or out of range."""
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise ConfigError(f"report: found a row without {', '.join(missing)}, expected rows of dysharp run --json")
    try:
        _schema().model_validate(dict(row))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        expected = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"report: {place}: found {show(first['input'])}, expected {expected}, as in rows of dysharp run --json") from None


@cache
def _schema() -> type[BaseModel]:
    hints = typing.get_type_hints(Row) | _NARROWER
    fields: dict[str, Any] = {f.name: (hints[f.name], None) for f in dataclasses.fields(Row)}
    config = ConfigDict(allow_inf_nan=False)
    return pydantic.create_model("StoredRow", __config__=config, **fields)
