"""The header: lines that say what the numbers of a run rest on. Warnings of several predictions as few lines."""

import re
from collections.abc import Container, Iterable, Mapping

from dysharp.analysis.row import DIRECTIONS
from dysharp.base import AnyMapping, Texts
from dysharp.costs import narrow_bytes
from dysharp.measured.trust import no_rows
from dysharp.runs.formats import formats_of
from dysharp.runs.phase import Phase
from dysharp.runs.request import Request, Workload
from dysharp.runs.skew import skew_line
from dysharp.specs import Cluster

DRAWN = " (synthetic)"
"""End of the description of a Routing that was drawn; but for uniform routing."""


def settings_of(system: str, form: str, options: AnyMapping, request: Request) -> Texts:
    """A line with the settings of a system on an hw cluster."""
    return (f"{system}: {form} form, {formats_of(system, options, request.model)}",) if request.cluster.family == "hw" else ()


def domain_lines(cluster: Cluster) -> Texts:
    """Lines with the links of a fabric without a switch, and with the domains and NICs of a cluster of several domains."""
    pairs = f"no switch: every pair of GPUs has a link, {cluster.pair_bytes_per_us / 1000:g} GB/s of payload each way"
    alone = () if cluster.n_switches else (pairs if cluster.domains == 1 else f"{pairs}, inside a node",)
    out = cluster.scale_out
    if out is None or cluster.domains == 1:
        return alone
    slow = f"; slow NICs: {', '.join(f'GPU {gpu} at {100 * part:.0f} %' for gpu, part in out.slow_nics)}" if out.slow_nics else ""
    slow += f"; lost NICs: {', '.join(f'one of GPU {gpu}' for gpu in out.lost_nics)}" if out.lost_nics else ""
    slow += f"; spine oversubscribed {out.oversubscription:g} to 1" if out.oversubscription > 1 else ""
    nics = f"{out.nics_per_gpu} NIC{'s' if out.nics_per_gpu > 1 else ''} per GPU, {out.rate / 1000:g} GB/s of payload each way"
    parts = "NVLink domains" if cluster.n_switches else "nodes"
    return (*alone, f"{cluster.domains} {parts} of {cluster.domain_gpus} GPUs; {nics}, {out.latency_us:g} us one way{slow}")


def routing_line(description: str, layer: int | None = None) -> str:
    """Whether experts were recorded or drawn. `description`: of a Routing of `make_routing`, as in the field `routing` of a Row. `layer`: asked."""
    said = description.removesuffix(DRAWN)
    if description.startswith("trace ") and said == description:
        return f"routing: recorded from a model: {said}"
    draw = "" if layer is None or f" layer {layer}" in said else f", draw {layer}"
    return f"routing: drawn at random, not recorded: {said}{draw}; recorded ones: dysharp list routings"


def header_of(workload: Workload, phase: Phase | None = None) -> Texts:
    """Workload, routing, machine and its assumptions, notes, and where the numbers have been validated."""
    request, routing = workload.request, workload.routing
    model, cluster = request.model, request.cluster
    costs = "software costs are charged" if cluster.software_costs else "no software cost is charged"
    unmeasured = no_rows(cluster)
    basis = "the papers' assumptions" if cluster.family == "paper" else unmeasured.partition(":")[0] if unmeasured else "calibrated to measurements"
    sent = "; Dispatch in FP8" if model.dispatch_format == "fp8" else ""
    lines = [
        f"{model.name}: hidden {model.hidden}, {model.n_experts} experts, top-{model.topk}; "
        f"{cluster.n_gpus} GPUs, {request.tokens} tokens per GPU; {phase.words if phase else DIRECTIONS[request.direction]}{sent}",
        routing_line(routing.description, request.layer),
        f"cluster {cluster.name} ({cluster.family} family: {basis}, {costs})",
        *domain_lines(cluster),
        *(note if note.startswith("warning: ") else f"note: {note}" for note in routing.notes),
    ]
    if routing.placement.note:
        lines.append(f"placement {routing.placement.kind}: {routing.placement.note}")
    if request.skew is not None:
        lines.append(f"skew: {skew_line(request.skew)}")
    if request.window is not None:
        few = f"only the first {request.window} tokens of each GPU are simulated"
        lines.append(f"leading tokens: {few}; the time of all {request.tokens} is an estimate")
    elif request.precision is not None:
        lines.append(f"precision of time: {100 * request.precision:g} %, and all tokens where fewer do not tell; --exact simulates all")
    if narrow_bytes(model, request.direction):
        lines.append(f"weights: {model.checkpoint} in memory, widened as they are read; products {model.gemm_dtype}")
    elif model.checkpoint.partition("-")[0] not in ("", model.gemm_dtype):
        lines.append(f"warning: the checkpoint holds {model.checkpoint} weights; this layer reads and multiplies {model.gemm_dtype} ones")
    if unmeasured:
        lines.append(f"warning: {unmeasured}")
    if cluster.family == "paper":
        lines.append("warning: paper clusters are not validated against measured machines; read ratios, not absolute times")
    return tuple(lines)


def grouped(warnings: Mapping[str, Iterable[str]], known: Container[str] = ()) -> list[str]:
    """Each warning once, after the names that it is about: "deepep, nccl: text". `warnings`: {name: its warnings}.

    A warning may begin with a name of its own ("deepep-dispatch: ..."). A warning of all names has no names before it.
    """
    names: dict[str, dict[str, None]] = {}
    for name, texts in warnings.items():
        for text in texts:
            if text not in known:
                who, colon, rest = text.partition(": ")
                own = bool(colon) and bool(re.fullmatch(r"[a-z0-9-]+", who)) and who != "memory"
                names.setdefault(rest if own else text, {})[who if own else name] = None
    every = list(warnings)
    return [_line(text, list(who), every) for text, who in names.items()]


def _line(text: str, who: list[str], every: list[str]) -> str:
    if len(every) > 1 and who == every:
        return text
    return text if len(who) == 1 and text.startswith(f"{who[0]} ") else f"{', '.join(who)}: {text}"
