"""Operators: what the ops of a Program are for. The Program declares them; every reader loops over the declaration."""

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a Program: its name in every output, and its nature."""

    name: str
    nature: Nature


LAYER = (
    Operator("dispatch", Nature.COMMUNICATION),
    Operator("gemm1", Nature.COMPUTE),
    Operator("gemm2", Nature.COMPUTE),
    Operator("combine", Nature.COMMUNICATION),
    Operator("other", Nature.HOST),
)
"""Operators of a MoE layer. A gradient counts as its forward GEMM."""
