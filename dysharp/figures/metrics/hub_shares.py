"""Where the rows of Dispatch spend their time until GEMM-1 takes them: at the producer, on the way, at the consumer."""

from typing import Annotated

import numpy as np

from dysharp.base import F64, I64, PS_PER_US, Amounts, frozen
from dysharp.figures.metric import MEASURES, calculated
from dysharp.program import Program, Trace, owners
from dysharp.runs import Point, RequestArgs
from dysharp.runs.run import planned
from dysharp.specs.fields import one_of

HARDWARE = {"mh-base": "mh-dep", "mh-pkt": "moe-hub"}
"""A form whose thread blocks poll -> the same with readiness in hardware."""


@frozen
class _PollingForm:
    """`form`: the form of MoE-Hub whose thread blocks poll."""

    form: Annotated[str, one_of(*HARDWARE)] = "mh-base"


@calculated("hub-shares", options=_PollingForm)
def _hub_shares(point: Point, options: _PollingForm) -> Amounts:
    """Means over all rows of all GPUs; of a tile the thread block that starts first counts."""
    own, hardware = _parts_us(point, options.form), _parts_us(point, HARDWARE[options.form])
    total = own.sum()
    return dict(zip(MEASURES["hub-shares"], (total, *(own / total), hardware[2] / own[2]), strict=True))


def _parts_us(point: Point, system: str) -> F64:
    """`[3]` mean us of a row at the producer, on the way, at the consumer."""
    from dysharp.engine.burst.run import run_burst

    asked: RequestArgs = {"model": point.model, "cluster": point.cluster, "gpus": point.gpus, "tokens": point.tokens, "seed": point.seed}
    if point.routing:
        asked["routing"] = point.routing
    # No GEMM-2 takes an SM before GEMM-1 has ended, as in figure hub-ablations: the window is the paper's, routing to GEMM-1.
    (program,) = planned(system, ["fwd"], {"second_gemm": "kernel"}, **asked)
    mean: F64 = _parts_ps(program, run_burst(program)[0]).mean(1) / PS_PER_US
    return mean


def _parts_ps(p: Program, trace: Trace) -> I64:
    """`[3, rows that crossed a link]` ps of a row at the producer, on the way, at the consumer."""
    operator, names = p.template_operator()[p.ops.template], p.operator_names
    gemm = np.flatnonzero(operator == names.index("gemm1"))
    taken = np.full(p.n_tiles, np.iinfo(np.int64).max)
    np.minimum.at(taken, p.ops.key[gemm], trace.start[gemm])
    op_of = owners(p.members.ptr)
    rows = (operator[op_of] == names.index("dispatch")) & (np.diff(p.members.fill_ptr) > 0)
    copies = np.flatnonzero(rows & (p.ops.node[op_of] != p.members.node))
    op = op_of[copies]
    row = p.members.fill_row[p.members.fill_ptr[copies]]
    region = owners(p.regions.row_ptr)[row]
    tile = p.regions.tile_ptr[region] + trace.row_slot[row] // p.regions.tile_rows[region]
    left, arrived = trace.end[op], trace.member[copies]
    return np.array([left, arrived - left, taken[tile] - arrived])
