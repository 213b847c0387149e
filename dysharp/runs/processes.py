"""Points in several processes of this computer. Together, running points may never take more than its memory."""

from __future__ import annotations

import multiprocessing
import os
from bisect import insort
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from dysharp.errors import OverShare
from dysharp.parent import end_pool, end_with, without_main
from dysharp.runs.point_runs import Asked, Ended, Result, result_or_defect
from dysharp.sources import code_digest

MOST_ATTEMPTS = 2
"""A point whose process ended this often while no other point ran has failed."""
LEAST_PART = 0.05
"""A point that would leave less of the memory to each other process runs when no other does."""
_ROUNDING = 1e-9


@dataclass(slots=True)
class Queue:
    """Which point begins next, and the part of the memory that it may take.

    `left`: points in reverse order. `large`: points that need more than their part, with the part that they need, rising.
    """

    jobs: int
    left: list[Asked]
    large: list[tuple[float, Asked]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.left or self.large)

    def put_back(self, asked: Asked, part: float) -> None:
        """`asked` needs `part` of the memory."""
        insort(self.large, (part, asked), key=lambda entry: entry[0])

    def take(self, taken: Sequence[float]) -> tuple[Asked, float] | None:
        """A point to run beside others that may take the parts `taken`, and its part; None: none fits. The largest one first."""
        free = 1.0 - sum(taken)
        for i in reversed(range(len(self.large))):
            if self.large[i][0] <= free + _ROUNDING:
                part, asked = self.large.pop(i)
                return asked, part
        part = min(free / (self.jobs - len(taken)), self._beside_the_largest())
        return (self.left.pop(), part) if self.left and part >= min(LEAST_PART, 1.0 / self.jobs) - _ROUNDING else None

    def _beside_the_largest(self) -> float:
        """An equal share of what the largest waiting point leaves, but for one that leaves too little; 1 where none waits."""
        shares = ((1.0 - need) / max(1, self.jobs - 1) for need, _ in reversed(self.large))
        return next((share for share in shares if share >= LEAST_PART), 1.0)


def in_processes(todo: Sequence[Asked], jobs: int) -> Ended:
    """Run points in `jobs` processes, which run many points each.

    A point that needs more than its share of the memory runs beside points that fit into the rest, or alone.
    A process that ends takes the points beside it with it; each of them runs again, alone.
    """
    queue = Queue(jobs, list(reversed(todo)))
    while queue:
        for asked in (yield from _until_a_process_ends(queue)):
            yield asked, _alone(asked)


def _alone(asked: Asked) -> dict[str, object] | str:
    """The result of a point in a process of its own."""
    for _ in range(MOST_ATTEMPTS):
        for _, result in list(_until_a_process_ends(Queue(1, [asked]))):
            return result
    return "its process ended each time, as it does where memory runs out; take fewer tokens or GPUs"


def _until_a_process_ends(queue: Queue) -> Generator[tuple[Asked, dict[str, object] | str], None, list[Asked]]:
    """Run the points of a queue. Returns the points that ran when a process ended; [] = none did, and the queue is empty."""
    context, running = multiprocessing.get_context("spawn"), dict[Future[Result], tuple[Asked, float]]()
    with ProcessPoolExecutor(queue.jobs, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
        try:
            while True:
                while len(running) < queue.jobs and (next_one := queue.take([part for _, part in running.values()])):
                    running[_submitted(pool, queue, *next_one)] = next_one
                if not running:
                    return []
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    asked, part = running.pop(future)
                    if not isinstance(result, OverShare):
                        yield asked, result
                    elif part < result.part:
                        queue.put_back(asked, result.part)
                    else:
                        yield asked, str(result)
        except BrokenProcessPool:
            return [asked for asked, _ in running.values()]
        except BaseException:  # also where the caller stops
            end_pool(pool)
            raise


def _submitted(pool: ProcessPoolExecutor, queue: Queue, asked: Asked, part: float) -> Future[Result]:
    """The future of a point. A pool whose process has ended takes no more: the point goes back."""
    try:
        with without_main():
            return pool.submit(result_or_defect, asked, part)
    except BrokenProcessPool:
        queue.put_back(asked, part)
        raise


def _begin(parent: int) -> None:
    """The first thing that a process does: end with its parent, and see which code it runs before it imports the rest."""
    end_with(parent)
    code_digest()
