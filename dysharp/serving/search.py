"""Layouts of a model on GPUs, and what each serves at which number of users: points, their front, and layouts that do not fit with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from dysharp.base import by_key, frozen, older_name
from dysharp.model import StepBatch
from dysharp.serving.engine import Engine
from dysharp.serving.exchange import exchange
from dysharp.serving.layout import ServeLayout
from dysharp.serving.loop import Served, closed_loop
from dysharp.serving.memory import ServeMemory, memory_of
from dysharp.serving.step import StepTable, StepTime, decode_batch, step_time
from dysharp.serving.work import Replica, Scenario

MOST_TP = 8
"""GPUs of an attention group that are tried; more only if named."""
EQUAL = 0.01
"""Part of the tokens per second by which layouts differ: an eighth of the median error of predictions."""
BATCHES = 12
"""Numbers of users of a layout that are tried: one attention group with 1, 2, 4, ... requests."""


@frozen
class ServePoint:
    """One layout with so many users."""

    replica: Replica
    scenario: Scenario
    served: Served
    memory: ServeMemory
    system: str
    """EP system; "" without dispatch."""
    replicas: int
    table: StepTable
    load = older_name("scenario")

    def at(self, users: float) -> ServePoint:
        """The same layout with other users."""
        scenario = replace(self.scenario, concurrency=users)
        most = min(self.memory.requests, self.table.engine.most_requests)
        return replace(self, scenario=scenario, served=closed_loop(self.table, scenario, most))

    def on(self, replica: Replica) -> ServePoint | None:
        """The same users on another replica; None if it has no room for a request."""
        scenario, engine = self.scenario, self.table.engine.together(self.replica.layout.dp)
        memory = memory_of(replica, engine.beside(replica.layout.dp), scenario.isl, scenario.osl, spread=scenario.spread)
        table = StepTable(replica, engine, scenario)
        return replace(self, replica=table.replica, table=table, memory=memory).at(scenario.concurrency) if memory.requests else None

    @property
    def tokens_per_gpu(self) -> float:
        """Output tokens per second of a GPU."""
        return self.served.rate * self.scenario.osl / self.replica.layout.gpus

    @property
    def per_user(self) -> float:
        """Output tokens per second of a user, after the first token."""
        return 1e6 / self.served.tpot

    def step(self) -> StepTime:
        """The decode step of the point, part by part."""
        return step_time(self.replica, self.stage_batch)

    @property
    def stage_batch(self) -> StepBatch:
        """The decoding requests of an attention group that a stage works on."""
        layout = self.replica.layout
        return decode_batch(self.scenario, max(1.0, self.served.batch / layout.pp), layout.dp)


@frozen
class Rejected:
    """A layout that does not fit, and why."""

    layout: ServeLayout
    reason: str


def layouts_of(replica: Replica, gpus: int) -> Iterator[ServeLayout]:
    """The layouts that are tried: every replica size that divides `gpus`, tensor parallel attention up to `MOST_TP`, stages beyond it,
    experts cut or shared."""
    moe, domain = replica.model.layer, min(gpus, replica.machine.domain)
    for size in (n for n in range(1, gpus + 1) if gpus % n == 0):
        for tp in (t for t in (1, 2, 4, 8) if t <= min(size, MOST_TP, domain) and size % t == 0):
            dp = size // tp
            if dp == 1 or tp == min(MOST_TP, domain):
                yield from (ServeLayout(tp=tp, ep=ep, pp=dp) for ep in sorted({1, tp if moe is not None else 1}))
            if moe is not None and dp > 1:
                yield ServeLayout(tp=tp, dp=dp, ep=size, slots=-moe.n_experts % size)


def search(
    start: Replica, engine: Engine, scenario: Scenario, gpus: int, layouts: Iterable[ServeLayout] | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> tuple[list[ServePoint], list[Rejected]]:  # fmt: skip
    """All points of all layouts on `gpus` GPUs. `scenario.concurrency` is not used: each layout is tried with several numbers of users."""
    points, rejected = list[ServePoint](), list[Rejected]()
    for layout in layouts if layouts is not None else layouts_of(start, gpus):
        tick(layout.name)
        found = _points(replace(start, layout=layout), engine, scenario, gpus)
        if isinstance(found, str):
            rejected.append(Rejected(layout, found))
        else:
            points += found
    return points, rejected


def _points(replica: Replica, engine: Engine, scenario: Scenario, gpus: int) -> list[ServePoint] | str:
    layout = replica.layout
    if faults := layout.conflicts(replica.model, gpus, replica.machine.domain):
        return faults[0]
    if gpus % layout.gpus:
        return f"{layout.gpus} GPUs do not divide {gpus} GPUs"
    memory = memory_of(replica, engine.beside(layout.dp), scenario.isl, scenario.osl, spread=scenario.spread)
    if not memory.requests:
        used, free, one = (bytes_ / 1e9 for bytes_ in (memory.weights + memory.buffers, memory.free, memory.request))
        part = f"{100 * engine.memory_part:g} % of {replica.machine.gpu.hbm_GB:g} GB"
        return f"weights and buffers take {used:.1f} GB of {part}, {free:.1f} GB are left, and one request needs {one:.1f} GB"
    most, table, system = min(memory.requests, engine.most_requests), StepTable(replica, engine, scenario), ""
    if layout.dp > 1 and layout.ep > 1:
        system = exchange(replica, max(1.0, min(most, 1 << (BATCHES - 1)) / layout.pp / layout.tp)).system
    sizes = sorted({min(1 << i, most) for i in range(BATCHES)})
    users = [replace(scenario, concurrency=float(size * layout.dp)) for size in sizes]
    return [ServePoint(table.replica, one, closed_loop(table, one, most), memory, system, gpus // layout.gpus, table) for one in users]


def front(points: Iterable[ServePoint]) -> list[ServePoint]:
    """Points that no other point beats in tokens per second of a GPU and of a user, fastest user first."""
    kept = list[ServePoint]()
    for point in sorted(points, key=lambda p: (-p.per_user, -p.tokens_per_gpu)):
        if not kept or point.tokens_per_gpu > kept[-1].tokens_per_gpu:
            kept.append(point)
    return kept


def within(points: Iterable[ServePoint], ttft_us: float, tpot_us: float) -> list[ServePoint]:
    """The point of each layout with most users within both limits, `ranked`."""
    by_layout = by_key((point.replica.layout, point) for point in points)
    best = (_most_users(tried, ttft_us, tpot_us) for tried in by_layout.values())
    return ranked([point for point in best if point is not None])


def ranked(points: list[ServePoint]) -> list[ServePoint]:
    """Most tokens per GPU first; of points about equal to the most (`EQUAL`) those with the fewest GPUs of a replica, which one dead GPU stops."""
    most = max((point.tokens_per_gpu for point in points), default=0.0)

    def key(point: ServePoint) -> tuple[float, float]:
        far = point.tokens_per_gpu < (1 - EQUAL) * most
        return (math.inf if far else point.replica.layout.gpus, -point.tokens_per_gpu)

    return sorted(points, key=key)


def _most_users(points: list[ServePoint], ttft_us: float, tpot_us: float) -> ServePoint | None:
    """Between the last of `points` within the limits and the next one, users are halved until one more user breaks a limit."""

    def keeps(point: ServePoint) -> bool:
        return point.served.ttft <= ttft_us and point.served.tpot <= tpot_us

    inside = [point for point in points if keeps(point)]
    if not inside:
        return None
    best = max(inside, key=lambda p: p.tokens_per_gpu)
    least = best.scenario.concurrency
    beyond = next((p.scenario.concurrency for p in points if p.scenario.concurrency > least and not keeps(p)), least)

    def better(users: int) -> bool:
        point = best.at(float(users))
        return keeps(point) and point.tokens_per_gpu >= best.tokens_per_gpu

    return best.at(float(most_that(better, int(least), int(beyond))))


def most_that(keeps: Callable[[int], bool], least: int, beyond: int) -> int:
    """The largest number from `least`, which keeps, below `beyond`, which does not, by halving."""
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if keeps(middle) else (least, middle)
    return least
