"""The blocks by name. Only `load_block` needs the extra "rtl"."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dysharp.base import MissingExtra, check_word, frozen, read_toml

if TYPE_CHECKING:
    from random import Random

BLOCKS: dict[str, str] = read_toml(Path(__file__).with_suffix(".toml"))
"""Name -> what it is. The block itself is `BLOCK` of the module NAME."""


class PortStep(NamedTuple):
    """A step of a port's reduction table in a run: `kind` request or response; `outcome`: "", result, bypass, or "evicts SESSION"."""

    kind: str
    session: int
    targets: int
    outcome: str


class Pin(NamedTuple):
    """A pin of a block beside `clk` and `rst`. `side`: "in" or "out"."""

    name: str
    side: str
    bits: int


@frozen
class Block:
    """A block: `parameters` (a dataclass with `of_cluster`), `component(parameters)`, and `model(parameters, random)` for checks.

    `small`: parameters with which all corners are near: full tables, long waits. `proofs`: of the block and of its order list.
    """

    name: str
    summary: str
    parameters: Any
    component: Callable[[Any], Any]
    model: Callable[[Any, Random], Any]
    small: tuple[Any, ...]
    proofs: tuple[type, ...]


def load_block(name: str) -> Block:
    """The block `name`. Raises ConfigError for an unknown name, MissingExtra without the extra "rtl"."""
    check_word(name, BLOCKS, f"block {name!r}: unknown")
    try:
        block: Block = importlib.import_module(f"dysharp.silicon.rtl.{name.replace('-', '_')}").BLOCK
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "dysharp":
            raise
        raise MissingExtra.needs("dysharp rtl", "rtl") from error
    return block
