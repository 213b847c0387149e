"""`Regime`: what differs between kernels of a benchmark, a training step and a serving step on one GPU: libraries and waits (`regimes.toml`)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dysharp.specs.reading import parse_toml, read_text

FILE = Path(__file__).with_name("regimes.toml")
Name = Literal["benchmark", "training", "serving"]


@dataclass(frozen=True, slots=True)
class Regime:
    """One row. `dense`, `grouped`: libraries of GEMMs (`gemm_tiles.LIBRARIES`)."""

    name: str
    meaning: str
    dense: str
    grouped: str
    source: str
    long: bool = True
    """It runs for hours, at the power that a GPU sustains; else a kernel runs a few times."""
    wait: str = ""
    """Constant: the wait for the last rank in a collective on which computing waits."""
    stream: str = ""
    """Constant: memory rate of a grouped GEMM with few rows per expert, over that of a streaming kernel."""
    memory: float = 0.0
    permute: float = 0.0
    """Parts of the datasheet's memory rate; 0: `hbm.fraction`, and what SMs load and store."""
    kept: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Part of its benchmark rate that a GEMM keeps in a long run, by architecture and type."""
    bounded: bool = False
    """The kept rate bounds the whole kernel, not its products beside memory."""
    fused: bool = False
    """Additions to the residual stream are part of a norm, positions of one kernel (`operators.Moved.served`)."""
    transposed: bool = False
    """Casts write a copy by column for the backward pass."""
    in_place: bool = False
    started: bool = True
    wide: bool = False


@functools.cache
def regime_of(name: Name) -> Regime:
    """The regime called `name`."""
    return Regime(name, **parse_toml(read_text(FILE), FILE.name)[name])
