"""Digests of recordings: logs of links and hubs, the Timeline under windows and flows, the task graph, its Chakra nodes, and the Perfetto file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dysharp.analysis.timeline import Recording, Timeline, Window, make_timeline, record
from dysharp.analysis.timeline.chakra import _chakra_nodes
from dysharp.analysis.timeline.counters import _slot_words
from dysharp.analysis.timeline.links import link_groups, link_trains
from dysharp.analysis.timeline.task_graph import task_graph
from dysharp.program.nets import NET_KINDS
from dysharp.workload import Routing
from tests.stored_values import Cases, Table, digests
from tests.systems.program_tables import Point, machine, plan, routing

STORED = Table(__file__)
POINTS = {
    "dysharp fwd": Point("dysharp", "small", "paper-gh200-nvl32/4", "fwd", {"al_misses": 3}),
    "dysharp bwd": Point("dysharp", "tall", "paper-dgx-h100/2x2", "bwd"),
    "comet-flux fwd": Point("comet-flux", "small", "paper-gh200-nvl32/3", "fwd", {"mediation": True}),
    "deepep fwd": Point("deepep", "replicas", "hw-dgx-h100/4", "fwd", {"form": "real"}),
    "mori bwd": Point("mori", "small", "hw-mi300x/2x3", "bwd", {"form": "real"}),
    "moe-hub fwd": Point("moe-hub", "small", "paper-gh200-nvl32/4", "fwd"),
    "nccl-ring": Point("nccl-ring", "all-reduce:192000", "hw-dgx-h100/2x2"),
}
"""All of them run on kernels that the other tests of timelines compile."""


def _lines(run: Recording, served: Routing | None) -> dict[str, Timeline]:
    end = run.trace.time_ps
    found = {
        "window": make_timeline(run, served, window=Window(end // 4, 3 * end // 4)),
        "whole": make_timeline(run, served),
        "few": make_timeline(run, served, most_slices=50),
    }
    if served is not None:
        follow = (0, served.tokens_per_gpu - 1, served.tokens_per_gpu + 3)
        found["flows"] = make_timeline(run, served, follow=follow)
        found["few flows"] = make_timeline(run, served, follow=follow[1:], most_slices=300)
        found["tokens"] = make_timeline(run, served, window=Window(tokens=(5, 17)))
    return found


def _perfetto(line: Timeline) -> Any:
    """What the file has of slices and counters; its head needs a library that may be absent."""
    from dysharp.analysis.timeline.perfetto import _counter, _packets

    return [_packets(line, slice(0, len(line.slices))).tobytes(), [_counter(c, 7 + i) for i, c in enumerate(line.counters)]]


def made(name: str) -> dict[str, Any]:
    """All that the timeline's functions make of one run."""
    point = POINTS[name]
    p, served = plan(point), routing(point.work, machine(point.machine).n_gpus) if point.direction else None
    run, _, reads = record(p)
    found: dict[str, Any] = {"up": run.up, "down": run.down, "hubs": run.hubs, "reads": reads, "groups": link_groups(p), "trains": link_trains(run)}
    lines = _lines(run, served)
    for key, line in lines.items():
        found |= {f"{key}.{part}": getattr(line, part) for part in ("tracks", "names", "slices", "flows", "counters", "merged")}
        found[f"{key}.sums"] = line.sums_ps()
    found["perfetto"] = _perfetto(lines["few"])
    for parts in (1, 3):
        graph = task_graph(run, parts)
        found |= {f"graph {parts}.{column}": getattr(graph, column) for column in graph.__slots__}
        found[f"nodes {parts}"] = _chakra_nodes(graph, p)
    return found


def words() -> dict[str, Any]:
    """Texts that depend on no run."""
    kinds = {name: replace(kind, nets=len) for name, kind in NET_KINDS.items()}
    return {"kinds": kinds, "slots": [_slot_words(kind) for kind in ("sm", "host", "", "copy")]}


CASES: Cases = {
    **{name: (lambda name=name: {"digests": digests(made(name))}) for name in POINTS},  # type: ignore[misc]
    "words": lambda: {"digests": digests(words())},
}
