"""One machine that runs points: request, options, leading tokens, memory, key, store, processes."""

from typing import TYPE_CHECKING

from dysharp.base import loader

if TYPE_CHECKING:
    from dysharp.runs.arguments import DEFAULT_CLUSTER, MEASURED_CLUSTER, AdviseArgs, RequestArgs, arguments_of
    from dysharp.runs.causes import STALLS, Cause, answer_of, cause_names, limits_of, resource_words, short_names
    from dysharp.runs.collective import collective_options, run_collective, running
    from dysharp.runs.finite import HOLDS, WITHOUT, Survival, of_cluster, ways
    from dysharp.runs.formats import KNOB, formats_of, rows_sent, weights_of
    from dysharp.runs.header import grouped, header_of, routing_line
    from dysharp.runs.job import Job, Result
    from dysharp.runs.known import PRECISION, WHOLE_ROWS, NoEstimate, extended, layer_rows
    from dysharp.runs.options import EVERYWHERE, FIELDS, Value, option_choices, options_by_system, options_of, parse_set, split_options
    from dysharp.runs.phase import Phase, get_phase, passes_of, replayed
    from dysharp.runs.point import Point, is_workload
    from dysharp.runs.point_runs import Simulate, point_task, why
    from dysharp.runs.precision import default_formats, in_formats, layer_in, row_options, step_formats, with_rows
    from dysharp.runs.progress import Progress, Step, telling
    from dysharp.runs.request import ClusterSource, ModelSource, Request, Workload, make_collective_request, make_request, make_workload, takes
    from dysharp.runs.store import Store, check_of, key_of, point_dict, point_from
    from dysharp.runs.together import Workers, simulate_each, simulate_together

__getattr__ = loader(__name__)
