"""What a step would gain: the same step replayed with one part changed."""

from collections.abc import Mapping
from dataclasses import replace

from dysharp.steps.graph import replay
from dysharp.steps.schedules import Schedule, make_schedule
from dysharp.steps.step_graph import StepTimes, step_graph

TWICE, NO_EP, NO_SENDS, NO_TRAFFIC, NO_LAUNCHES = (
    "twice the micro-batches", "EP communication that costs nothing", "sends that cost nothing", "gradient and parameter traffic that costs nothing",
    "launches that cost nothing",
)  # fmt: skip


def gains(order: Schedule, times: StepTimes, without: Mapping[str, StepTimes]) -> dict[str, float]:
    """{change: relative gain in tokens per second}. `without`: the times of the same step after other changes."""
    base = _makespan(order, times)
    found: dict[str, float] = {}
    if order.ranks > 1:
        twice = 2 * order.microbatches * order.directions
        found[TWICE] = 2 * base / _makespan(make_schedule(order.name, order.ranks, twice, order.stages // order.ranks), times) - 1
        found[NO_SENDS] = base / _makespan(order, replace(times, send=0, cells=times.cells._replace(hop=0))) - 1
    for change, other in without.items():
        found[change] = base / _makespan(order, other) - 1
    if any(times.reduce) or any(times.gather):
        found[NO_TRAFFIC] = base / _makespan(order, replace(times, reduce=(), gather=())) - 1
    return found


def _makespan(order: Schedule, times: StepTimes) -> float:
    return replay(step_graph(order, times)).makespan
