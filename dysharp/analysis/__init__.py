"""From a Program and its Trace to a Row: counting, bounds, attribution of time. See README.md in this folder."""

from dysharp.analysis.attribution import CAUSES, attribute
from dysharp.analysis.bound import Bound, program_bound, workload_bound_us
from dysharp.analysis.count import WireTable, traffic_bytes, wire_table
from dysharp.analysis.passes import both_passes
from dysharp.analysis.row import HostCosts, Row, RunInputs, WallTimes, make_row, measure
from dysharp.base import MODEL_VERSION
