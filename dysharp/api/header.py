"""The header: lines that say what the numbers of a run rest on."""

from __future__ import annotations

from dysharp.analysis.surroundings import host_line
from dysharp.api.request import DIRECTIONS
from dysharp.api.skew import skew_line
from dysharp.api.workload import Workload
from dysharp.measured.trust import no_rows


def header_of(workload: Workload) -> tuple[str, ...]:
    """Workload, routing, machine and its assumptions, notes, and where the numbers have been validated."""
    request, routing = workload.request, workload.routing
    model, cluster = request.model, request.cluster
    costs = "software costs are charged" if cluster.software_costs else "no software cost is charged"
    unmeasured = no_rows(cluster)
    basis = "the papers' assumptions" if cluster.family == "paper" else "no rows" if unmeasured else "calibrated to measurements"
    sent = "; Dispatch in FP8" if model.dispatch_format == "fp8" else ""
    lines = [
        f"{model.name}: hidden {model.hidden}, {model.n_experts} experts, top-{model.topk}; "
        f"{cluster.n_gpus} GPUs, {request.tokens} tokens per GPU; {DIRECTIONS[request.direction]}{sent}",
        f"{'synthetic' if routing.synthetic else 'recorded'} routing: {routing.description.removesuffix(' (synthetic)')}",
        f"cluster {cluster.name} ({cluster.family} family: {basis}, {costs})",
        *((host_line(cluster),) if cluster.family == "hw" else ()),
        *(f"note: {note}" for note in routing.notes),
    ]
    if routing.placement.note:
        lines.append(f"placement {routing.placement.kind}: {routing.placement.note}")
    if request.skew is not None:
        lines.append(f"skew: {skew_line(request.skew)}")
    if request.window is not None:
        lines.append(
            f"leading tokens: only the first {request.window} tokens of each GPU are simulated; the time of all {request.tokens} is an estimate"
        )
    if unmeasured:
        lines.append(f"warning: {unmeasured}")
    if cluster.family == "paper":
        lines.append("warning: paper clusters are not validated against measured machines; read ratios, not absolute times")
    return tuple(lines)
