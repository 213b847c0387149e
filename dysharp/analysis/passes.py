"""A forward and a backward pass of one layer as one Row."""

import dataclasses
import hashlib

from dysharp.analysis.row import Row
from dysharp.base import Amounts, ByName

SUMS = ("time_us", "exposed_comm_us", "bound_us", "workload_bound_us", "n_ops", "n_events", "compile_s")
TABLES = ("wire_flits", "attribution", "path_us", "stalls", "bound_terms", "surroundings_us")
Phases = dict[str, Amounts]
Waiting = dict[str, dict[str, list[float]]]


def both_passes(forward: Row, backward: Row) -> Row:
    """The Row of two passes, one after the other: times, bytes, bounds, causes and counts add up.

    phases_us       from the first start to the last end in either pass; busy times add up, each of its pass's last GPU
    waiting_us      spans and their parts add up, rank by rank
    utilization     mean weighted by the simulated times; `_max` is the mean of two maxima, perhaps of different GPUs
    bound_resource  both resources where they differ
    digest          digest of the two digests
    wall_s          sum, with the shared routing counted once
    warnings        warnings of both passes, each once
    """
    sums: ByName = {name: getattr(forward, name) + getattr(backward, name) for name in SUMS}
    sums |= {name: _added(getattr(forward, name), getattr(backward, name)) for name in TABLES}
    traffic = {side: _added(forward.traffic_bytes[side], backward.traffic_bytes[side]) for side in forward.traffic_bytes}
    wall = _added(forward.wall_s, backward.wall_s)
    for name in ("routing", "total"):
        wall[name] -= forward.wall_s["routing"]
    resources = forward.bound_resource, backward.bound_resource
    digests = f"{forward.digest} {backward.digest}".encode()
    return dataclasses.replace(
        forward, direction="both", **sums, traffic_bytes=traffic, waiting_us=_waiting(forward.waiting_us, backward.waiting_us),
        phases_us=_phases(forward.phases_us, backward.phases_us, forward.program_us), utilization=_weighted(forward, backward),
        bound_resource=resources[0] if resources[0] == resources[1] else f"{resources[0]} (forward) and {resources[1]} (backward)",
        wall_s=wall, warnings=tuple(dict.fromkeys((*forward.warnings, *backward.warnings))),
        peak_rss_mb=max(forward.peak_rss_mb, backward.peak_rss_mb), digest=hashlib.blake2b(digests, digest_size=12).hexdigest(),
    )  # fmt: skip


def _added(one: ByName, two: ByName) -> ByName:
    """Sums by key, keys of `one` first. A missing entry counts as 0."""
    out = dict(one)
    for name, value in two.items():
        out[name] = out[name] + value if name in out else value
    return out


def _waiting(one: Waiting, two: Waiting) -> Waiting:
    """Sums by operator, part and rank. An operator without ops in one pass counts as 0 there."""
    out = {}
    for name in dict.fromkeys((*one, *two)):
        held = [table[name] for table in (one, two) if name in table]
        out[name] = {part: [sum(us) for us in zip(*(parts[part] for parts in held), strict=True)] for part in held[0]}
    return out


def _phases(forward: Phases, backward: Phases, begin_us: float) -> Phases:
    """Phases of both passes. `backward` begins at `begin_us`. A phase with end 0 counts in neither start nor end."""
    out = {}
    for name, one in forward.items():
        two = backward[name]
        spans = [(p["start"] + shift, p["end"] + shift) for p, shift in ((one, 0.0), (two, begin_us)) if p["end"] > 0]
        start, end = (min(s for s, _ in spans), max(e for _, e in spans)) if spans else (0.0, 0.0)
        out[name] = {"start": start, "end": end, "busy": one["busy"] + two["busy"]}
    return out


def _weighted(forward: Row, backward: Row) -> Amounts:
    one, two = forward.program_us, backward.program_us
    if one + two == 0:
        return dict(forward.utilization)
    return {name: (share * one + backward.utilization[name] * two) / (one + two) for name, share in forward.utilization.items()}
