"""`Routing`: which experts every token needs and where the experts lie. Traffic: the bytes that follow from the Routing."""

from dysharp.workload.closed import UniformTraffic, expected_copies, uniform_p, uniform_R, uniform_traffic
from dysharp.workload.describe import GpuRow, LayerRow, describe, describe_routing, describe_trace
from dysharp.workload.make import make_routing, routing_from
from dysharp.workload.pairs import Pairs, pairs
from dysharp.workload.routing import Placement, Routing, distinct_gpus, first_tokens, imbalance, in_parts, needed_gpus, rows_per_expert, rows_per_slot
from dysharp.workload.spec import RoutingForm, routing_forms
from dysharp.workload.traces import Recording, load_trace, packaged_traces, save_trace
from dysharp.workload.traffic import SCHEMES, Direction, Scheme, Traffic, scheme_name, traffic
