"""`Routing`: which experts every token needs and where the experts lie. Traffic: the bytes that follow from the Routing."""

from dysharp.workload.closed import UniformTraffic, expected_copies, uniform_p, uniform_traffic
from dysharp.workload.collective import OPERATIONS, Collective, even, parse_collective
from dysharp.workload.describe import GpuRow, LayerRow, NodeRow, describe, describe_routing, describe_trace
from dysharp.workload.levels import LEVELS, Levels, between_rails, by_domain, rail_rings, rail_rows, switch_multicast, two_hop
from dysharp.workload.make import make_routing, routing_from
from dysharp.workload.pairs import Pairs, pairs
from dysharp.workload.placement import auto, eplb, replica_loads, with_shadows, worth_shadows
from dysharp.workload.routing import Placement, Routing, distinct_gpus, first_tokens, imbalance, in_parts, needed_gpus, rows_per_expert, rows_per_slot
from dysharp.workload.spec import RoutingForm, routing_forms
from dysharp.workload.sublayer import SUB_LAYER, SubLayer, Work, norm, parse_sub_layer, shapes
from dysharp.workload.traces import Recording, check_weights, checked_ids, load_trace, packaged_traces, save_trace
from dysharp.workload.traffic import SCHEMES, Direction, Rows, Scheme, Traffic, one_copy_per_gpu, scheme_name, scheme_rows, traffic
