"""Regression values of everything that is counted from a Program and its Trace, and of bounds and loads of unequal sizes.

Traces are those of the oracle on random Programs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np

from dysharp.analysis import (
    HostCosts,
    Row,
    RunInputs,
    WallTimes,
    attribution,
    bound,
    count,
    load,
    make_row,
    measure,
    merging,
    phases,
    surroundings,
    waiting,
)
from dysharp.analysis.passes import both_passes
from dysharp.oracle import run_oracle
from dysharp.program.skew import Skew
from dysharp.program.tables import Program
from dysharp.program.trace import Trace
from dysharp.specs import Model, load_cluster
from dysharp.workload import make_routing
from dysharp.workload.collective import parse_collective
from dysharp.workload.sublayer import parse_sub_layer
from tests.costs.stored_times import own_constants
from tests.interpreters.varied_programs import varied_programs
from tests.stored_values import Cases, Table, digest, parts_of

STORED = Table(__file__)
PROGRAMS = (
    *("random_program 0", "random_program 2", "random_program 5", "random_program 7", "random_bulk 3", "random_sums 2", "random_sums 3"),
    *("random_loads 1", "random_loads 4", "random_merge 3", "random_shares 3", "points, chains", "points, early", "points, by data", "points, pace"),
)
CLUSTERS = ("paper-gh200-nvl32", "paper-dgx-h100", "paper-dgx-h100-x2", "hw-dgx-h100-x2", "hw-dgx-b200", "hw-mi300x")
MODEL = Model(
    name="odd", hidden=192, expert_hidden=320, n_experts=12, topk=3, tokens_per_gpu=40, n_matrices=3, element_bytes=2, gemm_dtype="fp8"
)  # fmt: skip


@cache
def ran(name: str) -> tuple[Program, Trace]:
    """A Program and its Trace."""
    program = varied_programs()[name]()
    return program, run_oracle(program)


def run_values(program: Program, trace: Trace) -> dict[str, Any]:
    """All measures of one run."""
    causes, operators = attribution.critical_path(program, trace)
    passed = count.sums_that_passed(program, trace)
    groups = count.group_transfers(program, passed=passed, trace=trace)
    wires, busy = count.wire_table(program, groups), bound.pool_busy_ps(program)
    last, known = phases.LastGpu(program, trace), bound.program_bound(program, wires, busy)
    read = np.where(np.arange(program.n_rows) % 3, np.arange(program.n_rows) * 7, -1)
    use, visits = phases.utilization(program, trace, busy), phases.row_visits(program, trace, read)
    out: dict[str, Any] = {
        "causes": causes, "operators": operators, "up": wires.up, "down": wires.down, "flits": wires.flits(program.hardware.flit), "busy": busy,
        "memory": bound._memory_busy_ps(program), "bound": [known.us, known.resource, known.terms], "ends": bound._compute_ends(program),
        "phases": last.phases_us(), "exposed": last.exposed_ps(), "stalls": last.stalls_us(), "last": last.node, "visits": visits, "use": use,
        "traffic": count.traffic_bytes(program, trace, groups), "up use": load.up_use(program, trace),
        "merging": merging.merging_of(program, trace, 3), "passed": passed, "went on": count.loads_that_went_on(program, trace),
        "expected on": count.loads_that_went_on(program, None), "copied": count.copied_members(program),
        "copied here": count.copied_members(program, passed, trace),
    }  # fmt: skip
    member = np.where(np.arange(len(trace.member)) % 4 == 1, -1, trace.member)
    out["partial traffic"] = count.traffic_bytes(program, replace(trace, member=member))
    out["groups"] = [digest(x) for x in asdict(groups).values()]
    out["waiting"] = waiting._waiting_ps(program, trace)
    return out


def workload_values(name: str) -> dict[str, Any]:
    """Bounds, loads and surroundings of unequal sizes on a cluster."""
    cluster = load_cluster(name)
    gpus = cluster.n_gpus if cluster.domains > 1 else 4
    cluster = cluster.with_gpus(gpus)
    model = replace(MODEL, n_experts=3 * gpus)
    routing = make_routing("lognormal:0.8", model, gpus, 40, seed=3)
    out: dict[str, Any] = {}
    for direction in ("fwd", "bwd"):
        for links in (False, True):
            for gemms in (False, True):
                us = bound.workload_bound_us(model, cluster, routing, direction=direction, free_links=links, free_gemms=gemms)
                out[f"bound {direction} {links} {gemms}"] = us
    domain = cluster.domain_gpus if cluster.domains > 1 else 0
    out |= {f"load, {key}": value for key, value in load.load_of(routing, domain).to_dict().items()}
    large = replace(model, hidden=19200, expert_hidden=32000)
    out["memory"] = [load.memory_warning(replace(large, n_layers=layers), cluster, routing) for layers in (1, 4000)]
    uneven = ",".join(str(16 * (1 + gpu**2)) for gpu in range(gpus))
    for operation in ("all-gather", "reduce-scatter", "all-to-all"):
        out[f"{operation} bound"] = bound.collective_bound_us(parse_collective(f"{operation}-v:{uneven}", gpus), cluster)
    for work in ("all-reduce:192KiB", "broadcast:320KiB"):
        out[work] = bound.collective_bound_us(parse_collective(work, gpus), cluster)
    for work in ("sub-layer:40x192x320x96", "sub-layer:40x19x3200x9600"):
        out[work] = bound.collective_bound_us(parse_sub_layer(work, gpus), cluster)
    if cluster.gpu:
        cluster = replace(cluster, constants=tuple(own_constants().items()))
        for fp8 in (False, True):
            for direction in ("fwd", "bwd"):
                parts = surroundings.around(cluster, model, 300, 170, permutes=2, fp8_rows=fp8, direction=direction)
                out[f"around {fp8} {direction}"] = [*parts.to_dict().values(), parts.device_us]
        out["host"] = surroundings.host_line(cluster)
    return out


def row_values() -> dict[str, Any]:
    """A Row of two passes, and what a Row says of itself."""
    cluster = replace(load_cluster("hw-dgx-h100").with_gpus(4), constants=tuple(own_constants().items()))
    routing = make_routing("lognormal:0.8", MODEL, 4, 40, seed=3)
    passes = []
    for k, (name, direction) in enumerate((("random_program 0", "fwd"), ("random_program 2", "bwd"))):
        inputs = RunInputs("deepep", MODEL, cluster, routing, 3, direction, "burst", 5, {"form": "real"}, False, Skew((0, 5000 * k), (1.0, 1.5)))
        costs = HostCosts(WallTimes(0.5, 1.0 + k, 2.0, 3.0, 6.5 + k), 7.0 + k, 80.0 - k)
        around = surroundings.around(cluster, MODEL, 300, 170, permutes=2, fp8_rows=True, direction=direction)
        measured = measure(inputs, *ran(name), waiting=bool(k))
        passes.append(make_row(measured, around, costs, blocks={"a": 1}, dropped_rows=7 * k, warnings=("odd", f"warning {k}"), header=("h",)))
    out: dict[str, Any] = {}
    for label, row in (("fwd", passes[0]), ("bwd", passes[1]), ("both", both_passes(*passes))):
        facts = [
            row.layer_us,
            row.dropped_share,
            row.simulated_us,
            row.program_us,
            row.eager_us,
            row.asked,
            str(row),
            repr(row),
            digest(row._repr_html_()),
        ]
        out |= {f"{label}, {key}": value for key, value in row.to_dict().items() if key != "model_version"} | {
            f"{label}, fact {i}": fact for i, fact in enumerate(facts)
        }
        out[f"{label}, again"] = Row.from_dict(row.to_dict()) == replace(row, header=())
    part = make_row(measured, None, costs, blocks={})
    return out | {"plain": [part.time_us, part.attribution, part.to_dict().keys()], "window": replace(part, window={"time_us": 9.0}).layer_us}


CASES: Cases = {
    **{name: (lambda name=name: run_values(*ran(name))) for name in PROGRAMS},  # type: ignore[misc]
    "row": row_values,
    **{f"workload {name}": partial(workload_values, name) for name in CLUSTERS},
}
PARTS = parts_of(CASES, *(f"random_{kind}" for kind in ("program", "bulk", "sums", "loads", "merge", "shares")), "points", "workload", "row")
