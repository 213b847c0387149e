"""`Regime`: what differs between kernels of a benchmark, of a training and of a serving step: libraries, fusion, waits (`regimes.toml`)."""

import functools
from pathlib import Path
from typing import Literal

from dysharp.base import frozen, read_toml

FILE = Path(__file__).with_name("regimes.toml")
Name = Literal["benchmark", "training", "serving"]


@frozen
class Regime:
    """One row. `dense`: library of GEMMs narrower than BF16, whose library is cuBLAS everywhere; `grouped`: of grouped ones (`gemm_tiles`)."""

    name: str
    meaning: str
    dense: str
    grouped: str
    source: str
    narrow: str = "cublas"
    """Library of BF16 products with narrower weights."""
    long: bool = True
    """It runs for hours, at the power that a GPU sustains; else a kernel runs a few times."""
    wait: str = ""
    """Constant: the wait for the last rank in a collective on which computing waits."""
    stream: str = ""
    """Constant: memory rate of a grouped GEMM with few rows per expert, over that of a streaming kernel."""
    fused: bool = False
    """Additions to the residual stream are part of a norm, positions of one kernel (`operators.MemoryOp.served`)."""
    transposed: bool = False
    """Casts write a copy by column for the backward pass."""


@functools.cache
def regime_of(name: Name) -> Regime:
    """The regime called `name`."""
    return Regime(name, **read_toml(FILE)[name])
