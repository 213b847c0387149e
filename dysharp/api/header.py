"""The header: lines that say what the numbers of a run rest on."""

from __future__ import annotations

from dysharp.analysis.surroundings import host_line
from dysharp.api.request import DIRECTIONS
from dysharp.api.workload import Workload


def header_of(w: Workload) -> tuple[str, ...]:
    """Lines that say what a result rests on: workload, machine and its assumptions, notes, where it has been validated."""
    r, c = w.request, w.request.cluster
    costs = "software costs are charged" if c.software_costs else "no software cost is charged"
    basis = "the papers' assumptions" if c.family == "paper" else "calibrated, real forms of systems"
    synthetic = ", synthetic routing" if w.routing.synthetic else ", recorded routing"
    lines = [
        f"{r.model.name}: hidden {r.model.hidden}, {r.model.n_experts} experts, top-{r.model.topk}; "
        f"{c.n_gpus} GPUs x {r.tokens} tokens; {DIRECTIONS[r.direction]}",
        f"routing: {w.routing.description.removesuffix(' (synthetic)')}{synthetic}",
        f"cluster {c.name} ({c.family} family: {basis}, {costs})",
        *((host_line(c),) if c.family == "hw" else ()),
        *(f"note: {note}" for note in w.routing.notes),
    ]
    if w.routing.placement.note:
        lines.append(f"placement {w.routing.placement.kind}: {w.routing.placement.note}")
    if r.window is not None:
        lines.append(f"window: only the first {r.window} tokens of each GPU are run; what follows for all {r.tokens} is an estimate")
    if c.family == "paper":
        lines.append("warning: paper clusters are not validated against measured machines; read ratios, not absolute times")
    return tuple(lines)
