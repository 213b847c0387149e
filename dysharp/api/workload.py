"""From the arguments of a call to a checked (model, cluster, routing)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dysharp.analysis.surroundings import host_line
from dysharp.errors import ConfigError, nearest
from dysharp.specs import Cluster, Model, load_cluster, load_model
from dysharp.workload import Routing, make_routing, packaged_traces

DEFAULT_MODEL = "deepseek-v2-lite"
DEFAULT_CLUSTER = "paper-gh200-nvl32"
FIDELITIES = ("burst", "packet")
DIRECTIONS = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments that `run` and `compare` share, after loading and checking."""

    model: Model
    cluster: Cluster
    tokens: int
    routing: str
    layer: int | None
    placement: str
    direction: str
    seed: int
    fidelity: str
    window: int | None = None
    """Tokens per GPU that are run of `tokens`; None = all."""
    fabric: tuple[tuple[str, Any], ...] = ()
    """Sizes of the packet level's blocks that differ from the cluster's: fields of `FabricConfig`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A Request with its Routing, shared by all systems of a comparison; `routing_s` wall seconds it took."""

    request: Request
    routing: Routing
    layer: int | None
    routing_s: float


def make_request(
    *,
    model: str | os.PathLike[str] | Model,
    cluster: str | os.PathLike[str] | Cluster,
    gpus: int | None,
    tokens: int | None,
    layer: int | None,
    routing: str | None,
    placement: str,
    direction: str,
    seed: int,
    fidelity: str,
    window: int | None = None,
    fabric: Mapping[str, Any] | None = None,
) -> Request:
    """Load and check; raises ConfigError for anything unknown, out of range or not available yet."""
    _check_word("direction", direction, tuple(DIRECTIONS))
    _check_word("fidelity", fidelity, FIDELITIES)
    loaded = model if isinstance(model, Model) else load_model(model)
    machine = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    for name, value in (("gpus", gpus), ("tokens", tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}: found {value}, expected at least 1")
    if gpus is not None:
        machine = machine.with_gpus(gpus)
    whole = loaded.tokens_per_gpu if tokens is None else tokens
    if window is not None:
        _check_window(window, whole, fidelity)
    return Request(
        loaded,
        machine,
        whole,
        loaded.routing if routing is None else routing_string(routing),
        layer,
        placement,
        direction,
        seed,
        fidelity,
        window,
        tuple(sorted((fabric or {}).items())),
    )


def _check_window(window: int, tokens: int, fidelity: str) -> None:
    if fidelity != "packet":
        raise ConfigError(f'window: found fidelity "{fidelity}", expected "packet" (the burst level runs whole layers)')
    if not 4 <= window < tokens:
        raise ConfigError(f"window: found {window}, expected 4 to {tokens - 1}, fewer than the {tokens} tokens per GPU it stands for")


def _check_word(what: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ConfigError(f"{what}: found {value!r}{nearest(str(value), words)}")


def routing_string(text: str) -> str:
    """A routing string of `workload`; a bare trace (name or .npz) or counts (.csv) file becomes one."""
    if text in packaged_traces() or (text.endswith(".npz") and not text.startswith("trace:")):
        return f"trace:{text}"
    return f"counts:{text}" if text.endswith(".csv") and not text.startswith("counts:") else text


def make_workload(r: Request) -> Workload:
    """Draw or replay the routing of a Request, once."""
    begin = time.perf_counter()
    routing = make_routing(r.routing, r.model, r.cluster.n_gpus, r.tokens, seed=r.seed, layer=r.layer, placement=r.placement)
    return Workload(r, routing, routing.layer, time.perf_counter() - begin)


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
