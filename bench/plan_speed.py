"""Speed of `dysharp plan`: `python bench/plan_speed.py` prints layouts per second by bounds and per minute by stored Rows, of one process.

CPU time, so other work on the machine does not count. Rows are read, not simulated: equal times stand in for them.
"""

import time
from collections.abc import Callable

from dysharp.planning.cost import Coster, machine_of, row_key
from dysharp.planning.plan import training_recipe_for
from dysharp.planning.search import admitted, kept
from dysharp.planning.space import Task, default_space
from dysharp.specs import load_cluster, load_whole
from dysharp.training.cost import EpTimes

BOUNDS, ROWS = 100_000, 1_000
"""Bars: layouts per second, layouts per minute; on two cores."""
PER_CASE = 1_500


def seconds(work: Callable[[], int]) -> tuple[int, float]:
    """(what `work` counts, CPU seconds)."""
    begin = time.process_time()
    n = work()
    return n, time.process_time() - begin


def coster(model: str, cluster: str, gpus: int, batch: int) -> Coster:
    """A task in its default space."""
    machine, whole = machine_of(load_cluster(cluster)), load_whole(model)
    task = Task(whole, gpus, batch, training_recipe=training_recipe_for(whole, machine))
    return Coster(task, machine, default_space(task, machine))


def by_rows(one: Coster) -> int:
    """Cost candidates with a Row for every EP group, in the order of the space."""
    keys = {row_key(one.space.candidate(number)) for number in range(0, one.space.size, 7)}
    rows = {key: EpTimes(900.0, 1500.0, 200.0, 300.0, 400.0, 500.0) for key in keys}
    own = Coster(one.task, one.machine, one.space, rows)
    n = 0
    for number in (int(number) for numbers, _ in kept(own) for number in numbers):
        n += row_key(own.cost(number).values) in rows
        if n >= PER_CASE:
            break
    return n


def by_bounds(one: Coster) -> int:
    """Walk the space by constraints and first bounds."""
    admitted(one, {})
    return one.space.size


def main() -> None:
    """Both speeds on two machines."""
    for case in (("pangu-ultra-moe", "paper-ascend-910b", 6144, 6144), ("qwen3-235b", "hw-dgx-h100-x8", 256, 8192)):
        one = coster(*case)
        n, s = seconds(lambda one=one: by_bounds(one))  # type: ignore[misc]
        print(f"{case[0]}: {n:,} layouts by bounds in {s:.2f} s: {n / s:,.0f} a second and core (bar {BOUNDS:,} on two cores)")
        n, s = seconds(lambda one=one: by_rows(one))  # type: ignore[misc]
        print(f"{case[0]}: {n:,} layouts by stored Rows in {s:.1f} s: {60 * n / s:,.0f} a minute and core (bar {ROWS:,} on two cores)")


if __name__ == "__main__":
    main()
