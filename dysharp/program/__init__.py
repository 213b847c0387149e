"""The Program: systems plan it, every interpreter reads it. What a plan is made of: tables, builder, groups of rows, classes, networks."""

from dysharp.base.arrays import F64, I32, I64, Array, Bools, Ints
from dysharp.base.values import frozen
from dysharp.isa.framing import Framing
from dysharp.program.builder import ProgramBuilder, To
from dysharp.program.constants import CLASSES, OTHER, REQUESTS, RESPONSES, hardware_of
from dysharp.program.csr import csr_ptr, place_in, runs, spans, stable_order, starts
from dysharp.program.nets import BETWEEN_NET, NIC, nets_of
from dysharp.program.relayout import with_hardware
from dysharp.program.schema import LAYER, Buffer, Function, Nature, Operator, Schema
from dysharp.program.tables import Alloc, Chaining, Declared, Discipline, Hardware, Head, HubTable, Kind, Net, Point, Program, Tail, Template
from dysharp.program.trace import Trace

__all__ = [
    "BETWEEN_NET", "CLASSES", "F64", "I32", "I64", "LAYER", "NIC", "OTHER", "REQUESTS", "RESPONSES", "Alloc", "Array", "Bools", "Buffer",
    "Chaining", "Declared", "Discipline", "Framing", "Function", "Hardware", "Head", "HubTable", "Ints", "Kind", "Nature", "Net",
    "Operator", "Point", "Program", "ProgramBuilder", "Schema", "Tail", "Template", "To", "Trace", "csr_ptr", "frozen", "hardware_of", "nets_of",
    "place_in", "runs", "spans", "stable_order", "starts", "with_hardware",
]  # fmt: skip
