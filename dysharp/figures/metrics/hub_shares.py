"""Where the rows of Dispatch spend their time until GEMM-1 takes them: at the producer, on the way, at the consumer."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dysharp.figures.metric import calculated
from dysharp.program import Program
from dysharp.program.trace import Trace
from dysharp.runs.point import Point
from dysharp.runs.run import planned
from dysharp.specs.fields import one_of

METRICS = {
    "dispatch_us": "mean time of a row from routing to its GEMM (us)",
    "producer_share": "share at the producer, until a row has left",
    "network_share": "share on the way",
    "consumer_share": "share at the consumer, until a row's GEMM starts",
    "kept_consumer": "consumer's time with readiness in hardware over the time with polls",
}
HARDWARE = {"mh-base": "mh-dep", "mh-pkt": "moe-hub"}
"""A form whose thread blocks poll -> the same with readiness in hardware."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of MoE-Hub whose thread blocks poll."""

    form: Annotated[str, one_of(*HARDWARE)] = "mh-base"


@calculated("hub-shares", options=Form, metrics=METRICS)
def hub_shares(point: Point, options: Form) -> dict[str, float]:
    """Means over all rows of all GPUs; of a tile the thread block that starts first counts."""
    own, hardware = _parts_us(point, options.form), _parts_us(point, HARDWARE[options.form])
    total = own.sum()
    return dict(zip(METRICS, (total, *(own / total), hardware[2] / own[2]), strict=True))


def _parts_us(point: Point, system: str) -> np.ndarray:
    """`[3]` mean us of a row at the producer, on the way, at the consumer."""
    from dysharp.engine.burst.run import run_burst

    asked = {"model": point.model, "cluster": point.cluster, "gpus": point.gpus, "tokens": point.tokens, "seed": point.seed}
    (program,) = planned(system, ["fwd"], routing=point.routing or None, **asked)
    return parts_ps(program, run_burst(program)[0]).mean(1) / 1e6


def parts_ps(p: Program, trace: Trace) -> np.ndarray:
    """`[3, rows that crossed a link]` ps of a row at the producer, on the way, at the consumer."""
    operator, names = p.template_operator()[p.ops.template], p.operator_names
    gemm = np.flatnonzero(operator == names.index("gemm1"))
    taken = np.full(p.n_tiles, np.iinfo(np.int64).max)
    np.minimum.at(taken, p.ops.key[gemm], trace.start[gemm])
    op_of = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    rows = (operator[op_of] == names.index("dispatch")) & (np.diff(p.members.fill_ptr) > 0)
    copies = np.flatnonzero(rows & (p.ops.node[op_of] != p.members.node))
    op = op_of[copies]
    row = p.members.fill_row[p.members.fill_ptr[copies]]
    region = np.searchsorted(p.regions.row_ptr, row, side="right") - 1
    tile = p.regions.tile_ptr[region] + trace.row_slot[row] // p.regions.tile_rows[region]
    left, arrived = trace.end[op], trace.member[copies]
    return np.array([left, arrived - left, taken[tile] - arrived])
