"""The Program: systems plan it, and every interpreter reads it."""

from dysharp.isa.framing import Framing
from dysharp.program.builder import ProgramBuilder, To, csr_ptr, with_hardware
from dysharp.program.schema import LAYER, Nature, Operator
from dysharp.program.tables import Alloc, Chaining, Declared, Discipline, Hardware, Head, HubTable, Kind, Point, Program, Tail, Template
from dysharp.program.trace import Trace

__all__ = [
    "LAYER",
    "Alloc",
    "Chaining",
    "Declared",
    "Discipline",
    "Framing",
    "Hardware",
    "Head",
    "HubTable",
    "Kind",
    "Nature",
    "Operator",
    "Point",
    "Program",
    "ProgramBuilder",
    "Tail",
    "Template",
    "To",
    "Trace",
    "csr_ptr",
    "with_hardware",
]
