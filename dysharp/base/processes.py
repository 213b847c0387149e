"""Tasks in several processes of this computer: how processes begin, share the memory, are replaced when they end, and end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from bisect import insort
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dysharp.base.errors import OverShare, SimulationError
from dysharp.base.sources import code_digest
from dysharp.base.values import frozen

MOST_ATTEMPTS = 2
"""A task whose process ended this often while no other task ran has failed."""
LEAST_PART = 0.05
"""A task that would leave less of the memory to each other process runs when no other does."""
_ROUNDING = 1e-9
_SIGNAL_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ProcessEnded(SimulationError):
    """A task that ended its process each time it ran. Exit code 1."""


@frozen
class Task(Generic[T_co]):
    """Work that any process can do: `work(part)`, with the part of the computer's memory that it may take (OverShare: it needs more).

    `key`: equal for equal work.
    """

    key: str
    work: Callable[[float], T_co]


Ended = Generator[tuple[int, T | Exception], None, None]
"""(number of a task, its result or the error that it raised) as tasks end. Closed, it ends what runs and begins no further task."""
Runner = Callable[[Sequence[Task[T]]], Ended[T]]
Waiting = Callable[[], None]


def here(tasks: Sequence[Task[T]]) -> Ended[T]:
    """Run tasks in this process."""
    for i, task in enumerate(tasks):
        try:
            result: T | Exception = task.work(1.0)
        except Exception as error:
            result = error
        yield i, result


def in_processes(tasks: Sequence[Task[T]], most: int) -> Ended[T]:
    """Run tasks in `most` processes that begin anew."""
    with Processes(most) as processes, closing(processes.run(tasks)) as ended:
        yield from ended


@dataclass(slots=True)
class Queue:
    """Which task begins next, and the part of the memory that it may take.

    `most`: tasks that run at a time. `left`: numbers of tasks in reverse order. `large`: tasks that need more than their part, with the part that
    they need, rising.
    """

    most: int
    left: list[int]
    large: list[tuple[float, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.left or self.large)

    def put_back(self, task: int, part: float) -> None:
        """`task` needs `part` of the memory."""
        insort(self.large, (part, task), key=lambda entry: entry[0])

    def take(self, taken: Sequence[float]) -> tuple[int, float] | None:
        """A task to run beside others that may take the parts `taken`, and its part; None: none fits. The largest one first."""
        free = 1.0 - sum(taken)
        for i in reversed(range(len(self.large))):
            if self.large[i][0] <= free + _ROUNDING:
                part, task = self.large.pop(i)
                return task, part
        part = min(free / (self.most - len(taken)), self._beside_the_largest())
        return (self.left.pop(), part) if self.left and part >= min(LEAST_PART, 1.0 / self.most) - _ROUNDING else None

    def _beside_the_largest(self) -> float:
        """An equal share of what the largest waiting task leaves, unless that task leaves too little; 1 where none waits."""
        shares = ((1.0 - need) / max(1, self.most - 1) for need, _ in reversed(self.large))
        return next((share for share in shares if share >= LEAST_PART), 1.0)


class Processes:
    """Up to `most` processes. They begin with the first tasks, serve many calls of `run`, and end with the `with` block.

    `copies`: whether a process may begin as a copy of this one. A copy knows what a user's script has registered, and begins at once.
    """

    def __init__(self, most: int, copies: bool = False) -> None:
        self._most, self._copies = most, copies
        self._pool: ProcessPoolExecutor | None = None
        self._anew = True

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._end(at_once=error is not None)

    @property
    def begun(self) -> bool:
        """Whether processes have begun."""
        return self._pool is not None

    def run(self, tasks: Sequence[Task[T]], most: int = 0, waiting: Waiting | None = None, every_s: float = 1.0) -> Ended[T]:
        """Run tasks, at most `most` at a time (0: one in each process).

        A process that ends takes the tasks beside it with it; each of them runs again, alone. `waiting` is called while no task ends.
        """
        queue = Queue(min(most or self._most, self._most), list(reversed(range(len(tasks)))))
        pause = every_s if waiting else None
        while queue:
            for i in (yield from self._until_a_process_ends(queue, tasks, waiting, pause)):
                yield from self._alone(i, tasks, waiting, pause)

    def _alone(self, task: int, tasks: Sequence[Task[T]], waiting: Waiting | None, pause: float | None) -> Ended[T]:
        """Run one task while no other runs."""
        for _ in range(MOST_ATTEMPTS):
            if not (yield from self._until_a_process_ends(Queue(1, [task]), tasks, waiting, pause)):
                return
        yield task, ProcessEnded("its process ended each time, as it does where memory runs out; take fewer tokens, bytes or GPUs")

    def _until_a_process_ends(
        self, queue: Queue, tasks: Sequence[Task[T]], waiting: Waiting | None, pause: float | None
    ) -> Generator[tuple[int, T | Exception], None, list[int]]:
        """Run the tasks of a queue. Returns the tasks that ran when a process ended; [] = none did, and the queue is empty."""
        running: dict[Future[T], tuple[int, float]] = {}
        try:
            while True:
                while len(running) < queue.most and (next_one := queue.take([part for _, part in running.values()])):
                    running[self._submitted(queue, tasks, *next_one)] = next_one
                if not running:
                    return []
                ended = wait(running, timeout=pause, return_when=FIRST_COMPLETED).done
                if not ended and waiting:
                    waiting()
                for future in ended:
                    error = future.exception()
                    if error is not None and (isinstance(error, BrokenProcessPool) or not isinstance(error, Exception)):
                        raise error
                    task, part = running.pop(future)
                    if isinstance(error, OverShare) and part < error.part:
                        queue.put_back(task, error.part)
                    else:
                        yield task, error if isinstance(error, Exception) else future.result()
        except BrokenProcessPool:
            self._end()
            return [task for task, _ in running.values()]
        except BaseException:  # also where the caller stops
            self._end(at_once=True)
            raise

    def _submitted(self, queue: Queue, tasks: Sequence[Task[T]], task: int, part: float) -> Future[T]:
        """The future of a task. Processes may begin here. A pool whose process has ended takes no more: the task goes back."""
        if self._pool is None:
            self._anew = not (self._copies and may_copy())
            context = multiprocessing.get_context("spawn" if self._anew else "fork")
            self._pool = ProcessPoolExecutor(self._most, mp_context=context, initializer=_begin, initargs=(os.getpid(), self._anew))
        try:
            with _without_main() if self._anew else nullcontext():
                return self._pool.submit(tasks[task].work, part)
        except BrokenProcessPool:
            queue.put_back(task, part)
            raise

    def _end(self, at_once: bool = False) -> None:
        """End the processes. `at_once`: kill them; `shutdown` would wait for their tasks."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if at_once:
            for process in list((pool._processes or {}).values()):
                process.kill()  # one that begins may lose SIGTERM
        with suppress(RuntimeError):  # interrupted while its thread began, which then ends by itself
            pool.shutdown(cancel_futures=True)


def may_copy() -> bool:
    """Whether processes may begin as copies of this one: where copies are safe (Linux, one thread). Imports of one that begins anew take 2 s."""
    return sys.platform == "linux" and threading.active_count() == 1


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Do `work` in a copy of this process meanwhile, if there is a core for it. What `work` leaves on disk stays, and nothing else."""
    if not may_copy() or cores() < 2:
        yield
        return
    copy = multiprocessing.get_context("fork").Process(target=_alone, args=(work, os.getpid()))
    copy.start()
    try:
        yield
    except BaseException:
        copy.kill()
        raise
    finally:
        copy.join()


def _alone(work: Callable[[], object], parent: int) -> None:
    _end_with(parent)
    with suppress(Exception):
        work()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_bytes() -> int:
    """Physical memory of this computer; a huge number where the operating system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def _end_with(parent: int) -> None:
    """End this process when the process with the id `parent`, which started it, has ended, also when that one was killed.

    It ends at once when it is told to, whatever its parent does on signals: a copy of the parent has the parent's handlers. Ctrl-C, which a terminal
    sends to all processes, is for the parent.
    """
    for name, answer in (("SIGTERM", signal.SIG_DFL), ("SIGHUP", signal.SIG_DFL), ("SIGINT", signal.SIG_IGN)):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), answer)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SIGNAL_WITH_PARENT, signal.SIGTERM)  # also while a kernel runs, when no thread of Python does
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


@contextmanager
def _without_main() -> Iterator[None]:
    """A process that begins anew here (method "spawn") does not run the caller's script again, which may have no `__main__` guard."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _begin(parent: int, anew: bool) -> None:
    """The first acts of a process: it ends with its parent, and where it begins anew it sees which code it runs before it imports the rest."""
    _end_with(parent)
    if anew:
        code_digest()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
