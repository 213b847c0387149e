"""`dysharp reproduce --finite`: what finite hardware leaves of the claims about ratios of layer times (docs/design/0038)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from dysharp.base import Amounts
from dysharp.figures.check import Check, unclaimed
from dysharp.figures.figure import Figure
from dysharp.figures.metric import Rows
from dysharp.figures.verdict import judge
from dysharp.runs import HOLDS, WITHOUT, Point, Survival, is_workload, of_cluster
from dysharp.runs.packet_time import PACKETS_OF_ROW, estimate_line
from dysharp.specs import PACKET_BYTES, load_cluster, load_model
from dysharp.systems import find_system
from dysharp.workload import SUB_LAYER, expected_copies, parse_sub_layer

RATIOS = ("speedup", "time_over", "best_time_over", "over_software", "gemm1_speedup", "prefill_speedup", "training_speedup")
"""Metrics that are ratios of layer times."""
RunPoints = Callable[[Sequence[Point]], Rows]
"""Rows of the points that a run could make."""


def claims_of(figure: Figure) -> tuple[Check, ...]:
    """The claims of a figure that a finite run may move: bounded ratios of layer times of simulated systems, in a paper."""
    return tuple(c for c in figure.checks if figure.paper and c.bounded and c.metric in RATIOS and c.reduce not in ("growth", "each"))


def _points_of(figure: Figure, points: Iterable[Point], claims: Sequence[Check]) -> list[Point]:
    """The points of `points` that `claims` of `figure` read."""
    systems = {name for claim in claims for name in (claim.system, claim.over)}
    every = any(claim.metric == "over_software" for claim in claims)
    return [p for p in points if p in figure.points and (every or p.system in systems)]


def _finite_point(point: Point, tokens: int | None, way: str) -> Point:
    """`point` with at most `tokens` per GPU: at its own level ("headline"), at packet level ("finite"), or so without a resource (`WITHOUT`)."""
    work = is_workload(point.model)
    if tokens is not None and work:
        one = parse_sub_layer(point.model, gpus := _gpus(point))
        point = replace(point, model=f"{SUB_LAYER}:{min(one.tokens, tokens * gpus)}x{one.hidden}x{one.inner}x{one.outer}:{one.dtype}")
    elif tokens is not None:
        point = replace(point, tokens=min(tokens, point.tokens or load_model(point.model).tokens_per_gpu))
    if way == "headline":
        return point
    options = {**dict(point.options), **WITHOUT.get(way, {})}
    kept = [part for part in point.cluster.split(",") if not part.startswith("reduction_buffer_KiB=")]
    cluster = ",".join([*kept, "reduction_buffer_KiB=0"]) if work and of_cluster(way) else point.cluster
    return replace(point, fidelity="packet", cluster=cluster, options=tuple(sorted(options.items())))


def survivals(figure: Figure, points: Iterable[Point], run: RunPoints, tokens: int | None) -> list[Survival]:
    """What is left of each claim of `figure` on its `points`. Points that do not run at packet level are left out, with the claims that need them.

    First every point runs at its own level and at packet level; then those of claims that do not hold, without one resource at a time.
    """
    claims = claims_of(figure)
    ratio = _ratios(figure, claims, _points_of(figure, points, claims), ("headline", "finite"), run, tokens)
    first = [_survival(claim, {way: found[claim.name] for way, found in ratio.items()}) for claim in claims if claim.name in ratio["finite"]]
    lost = [claim for claim, one in zip((c for c in claims if c.name in ratio["finite"]), first, strict=True) if one.verdict != HOLDS]
    if not lost:
        return first
    more = _ratios(figure, lost, _points_of(figure, points, lost), (*ratio, *WITHOUT), run, tokens)
    again = {c.name: _survival(c, {way: found[c.name] for way, found in more.items() if c.name in found}) for c in lost}
    return [again.get(one.name, one) for one in first]


def _survival(claim: Check, ratio: Mapping[str, float]) -> Survival:
    most = claim.at_most if claim.within is None and claim.at_least is None else None
    bound = (over := find_system(claim.over)) is not None and over.bound
    without = {name: ratio[name] for name in WITHOUT if name in ratio}
    return Survival(claim.name, ratio["headline"], ratio["finite"], without, most, 0.0 if bound else 1.0)


def _ratios(
    figure: Figure, claims: Sequence[Check], points: Sequence[Point], ways: Sequence[str], run: RunPoints, tokens: int | None
) -> dict[str, Amounts]:
    """{way: {claim: its ratio}}, over the points that have Rows in all ways."""
    asked = {way: {p: _finite_point(p, tokens, way) for p in points} for way in ways}
    rows = run([there for of in asked.values() for there in of.values()])
    both = [p for p in points if all(of[p] in rows for of in asked.values())]
    bare = replace(figure, checks=tuple(replace(unclaimed(claim), mark="") for claim in claims), variants=())
    out = {}
    for way, of in asked.items():
        results, _ = judge(bare, {p: rows[of[p]] for p in both})
        out[way] = {result.claim: result.ours for result in results if result.ours is not None}
    return out


def estimate(figures: Iterable[tuple[Figure, Sequence[Point]]], tokens: int | None) -> str:
    """How long the finite runs of the claims take, before the runs without a resource."""
    points = {_finite_point(p, tokens, "finite") for figure, of in figures for p in _points_of(figure, of, claims_of(figure))}
    packets = {p: _packets(p) for p in points}
    gpus = sum(n * _gpus(p) for p, n in packets.items()) / max(1, sum(packets.values()))
    line = estimate_line(sum(packets.values()), round(gpus))
    return f"{len(points)} points; {line}; up to {len(WITHOUT)} times more for claims that do not hold"


def _gpus(point: Point) -> int:
    return point.gpus or load_cluster(point.cluster).n_gpus


def _packets(point: Point) -> float:
    """Packets on links: a row for each distinct GPU of a token, out and back, up and down; of a sub-layer its activations both ways."""
    gpus = _gpus(point)
    if is_workload(point.model):
        return PACKETS_OF_ROW * gpus * parse_sub_layer(point.model, gpus).size / PACKET_BYTES
    model = load_model(point.model)
    copies = expected_copies(min(gpus, model.n_experts), model.n_experts, model.topk)
    return PACKETS_OF_ROW * gpus * (point.tokens or model.tokens_per_gpu) * copies * model.row_bytes / PACKET_BYTES
