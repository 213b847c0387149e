"""A Request with its Routing."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dysharp.runs.request import Request
from dysharp.workload import Routing, make_routing


@dataclass(frozen=True, slots=True)
class Workload:
    """A Request with its Routing, shared by all systems of a comparison; `routing_s`: wall seconds of drawing it."""

    request: Request
    routing: Routing
    routing_s: float


def make_workload(r: Request) -> Workload:
    """Draw or replay the routing of a Request, once."""
    begin = time.perf_counter()
    routing = make_routing(r.routing, r.model, r.cluster.n_gpus, r.tokens, seed=r.seed, layer=r.layer, placement=r.placement)
    return Workload(r, routing, time.perf_counter() - begin)
