"""The blocks by name. Only `load_block` needs the extra "rtl"."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dysharp.base import MissingExtra, check_word, frozen

if TYPE_CHECKING:
    from random import Random

BLOCKS = {
    "reduction-table": "DySHARP, switch port: sessions, counts, LRU eviction, timeouts",
    "target-logic": "DySHARP, switch: lists of experts to output ports and replicas",
    "replica-choice": "beyond DySHARP, switch: the replica on the GPU with the smallest counter",
    "format-converter": "beyond DySHARP, switch: FP32 to MXFP8 and back, a block of 32 each way",
    "tile-status": "DySHARP, hub: packets and thread blocks per tile (TS)",
    "output-readiness": "DySHARP, hub: notices per token (OR)",
    "al-tlb": "DySHARP, hub: algebraic to layout index, miss registers, waiting packets",
    "row-allocation": "MoE-Hub: a RAT bank and the APT: place of a row, capacity",
    "packet-manager": "MoE-Hub: stores merge to lines for a peer, and the scheduler (RPM)",
    "readiness": "MoE-Hub: bytes and records per tile, announced totals (DAM)",
    "merge-unit": "CAIS, switch port: loads of one line share request and response",
}
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
