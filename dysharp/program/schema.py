"""What the ops of a Program are for, and what its data is: operators, buffers, functions. The Program declares them; every reader loops over them."""

from enum import StrEnum

from dysharp.base import Texts, frozen

LATE = "late"
"""Function of the DELAY that stands for the late start of a rank (`skew.py`). Readers know the DELAY by it, so its name is free for others."""
BESIDE = "beside"
"""Function of the DELAYs that stand for memory kernels around GEMMs and their starts. Attribution knows them by it."""
CARRIES_NOTHING = ("", "control", "delay", "join", LATE, BESIDE)
"""Functions of ops that carry no tensor. Every Program may use them."""


@frozen
class Buffer:
    """Rows of one tensor.

    `rows`: what one row stands for. `width`: elements of a row, in words of the workload. `dtype`: "stored" (of the workload's rows) or
    "work" (of its sums). `region`: name of the regions in whose slots the rows lie; "" = outside regions, one place per row on its node.
    `tiled`: COMPUTE ops run on the tiles of its regions.
    """

    name: str
    rows: str
    width: str
    region: str = ""
    dtype: str = "stored"
    tiled: bool = False


@frozen
class Function:
    """What an op does with data: it reads a row (or tile) of one of the buffers `reads` and writes one of `writes`.

    `cut`: an op may write a range of columns (`Template.columns`).
    """

    name: str
    kinds: Texts
    reads: Texts
    writes: Texts
    meaning: str
    cut: bool = False


@frozen
class Schema:
    """Buffers and functions of a Program. Without any, its ops move bytes that mean nothing."""

    buffers: tuple[Buffer, ...] = ()
    functions: tuple[Function, ...] = ()

    @property
    def tiled(self) -> frozenset[str]:
        """Names of the regions on whose tiles COMPUTE ops run."""
        return frozenset(buffer.region for buffer in self.buffers if buffer.tiled)

    def function(self, name: str) -> Function | None:
        """The function called `name`."""
        return next((function for function in self.functions if function.name == name), None)


NO_DATA = Schema()
"""Of a Program whose ops move bytes that mean nothing."""


class Nature(StrEnum):
    """What an operator does.

    COMMUNICATION: moves data of the workload between nodes. COMPUTE: GEMMs and other arithmetic. MEMORY: copies inside a node.
    HOST: software: launches, flags, waits, counts. The first host operator of a Program also has what software adds to a transfer
    (`Wires.aux`) and the delays of late ranks.
    """

    COMMUNICATION = "communication"
    COMPUTE = "compute"
    MEMORY = "memory"
    HOST = "host"


@frozen
class Operator:
    """An operator of a Program: its name in every output, and its nature."""

    name: str
    nature: Nature


def operators(**nature: Nature) -> tuple[Operator, ...]:
    """Operators by name, in the order of outputs."""
    return tuple(Operator(name, what) for name, what in nature.items())


COMMUNICATION, COMPUTE, HOST = Nature.COMMUNICATION, Nature.COMPUTE, Nature.HOST
LAYER = operators(dispatch=COMMUNICATION, gemm1=COMPUTE, gemm2=COMPUTE, combine=COMMUNICATION, other=HOST)
"""Operators of a MoE layer. A gradient counts as its forward GEMM."""
