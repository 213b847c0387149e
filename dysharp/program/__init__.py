"""The Program: systems plan it, every interpreter reads it. What a plan is made of: tables, builder, groups of rows, classes, networks."""

from dysharp.base import F64, I32, I64, Array, Bools, Ints, frozen
from dysharp.isa.framing import Framing
from dysharp.program.builder import PULLS, PUSHES, ProgramBuilder, To
from dysharp.program.constants import CLASSES, OTHER, REQUESTS, RESPONSES, hardware_of, sessions_of_table
from dysharp.program.csr import csr_ptr, group, owners, place_in, runs, spans, stable_order, starts
from dysharp.program.names import edge_name, op_name
from dysharp.program.nets import BETWEEN_NET, NET_KINDS, NIC, nets_of
from dysharp.program.payload import link_name, moved_bytes, sides_of
from dysharp.program.relayout import with_hardware
from dysharp.program.schema import BESIDE, LATE, LAYER, Buffer, Function, Nature, Operator, Schema
from dysharp.program.skew import START, Skew, skewed
from dysharp.program.tables import Alloc, Chaining, Declared, Discipline, Hardware, Head, HubTable, Kind, Net, Point, Program, Tail, Template
from dysharp.program.trace import Trace
