"""Runs points of figures and studies: in this process, in several processes, or on the workers of a dask scheduler."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from dysharp.errors import ConfigError, DysharpError, MissingExtra, OverShare, SimulationError
from dysharp.experiments.figure import Point
from dysharp.experiments.inputs import inputs_digest
from dysharp.experiments.store import code_digest
from dysharp.parent import end_pool, end_with

MOST_ATTEMPTS = 2
"""A point whose process ended this often while no other point ran has failed."""
RETRIES = 2
"""How often dask runs a point again that raised something else than an error of dysharp."""
CONNECT_S = 10
Simulate = Callable[[Point, int], dict[str, Any]]
"""The Row of a point, as plain values; called with the point and the number of processes that share the memory."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One point to run. `content`: digests of the code and of the user's files, as the driver sees them."""

    key: str
    point: Point
    simulate: Simulate
    content: tuple[str, str]


Ended = Generator[tuple[Asked, dict[str, Any] | str]]
"""Points as they end, each with its Row or with why it has none. Closed, it runs no further point."""
Result = dict[str, Any] | str | OverShare
"""The Row of a point, why it has none, or that it can run alone only."""
Results = Generator[tuple[Asked, Result]]
Runner = Callable[[Sequence[Asked]], Ended]


def content_of(point: Point) -> tuple[str, str]:
    """Digests of the code and of the files that a point reads."""
    return code_digest(), inputs_digest(point)


def result_of(asked: Asked, sharers: int = 1) -> Result:
    """The Row of a point, or why it has none: also where code or files are not those of the driver. `sharers`: see `Simulate`."""
    try:
        row = asked.simulate(asked.point, sharers)
        found = content_of(asked.point)
    except OverShare as error:
        return error
    except MemoryError:
        return "out of memory; take fewer tokens or GPUs"
    except (DysharpError, ValueError) as error:
        return str(error) or type(error).__name__
    for what, here, there in zip(("sources of dysharp", "files of the point"), found, asked.content, strict=True):
        if here != there:
            return f"the {what} changed during the run, or the worker has others than the driver; start the run again"
    return row


@contextmanager
def runner(jobs: int = 1, scheduler: str = "") -> Iterator[Runner]:
    """What runs points: this process, `jobs` processes, or the workers of the dask scheduler at `scheduler`."""
    if scheduler:
        with _client(scheduler) as client:
            yield lambda todo: _alone_last(partial(_gathered, client), todo, _sharers(client))
    elif jobs == 1:
        yield lambda todo: _alone_last(_here, todo, 1)
    else:
        yield lambda todo: in_processes(todo, jobs)


def in_processes(todo: Sequence[Asked], jobs: int) -> Ended:
    """Run points in `jobs` processes, which run many points each. A point that takes its process down does not touch the others."""
    yield from _alone_last(_pooled, todo, jobs)


def _alone_last(run: Callable[[Sequence[Asked], int], Results], todo: Sequence[Asked], sharers: int) -> Ended:
    """Run points; those that need more than their part of the memory run after the others, one at a time."""
    late: list[Asked] = []
    with closing(run(todo, sharers)) as results:
        for asked, result in results:
            if not isinstance(result, OverShare):
                yield asked, result
            elif sharers > 1:
                late.append(asked)
            else:
                yield asked, str(result)
    for asked in late:
        yield from _alone_last(run, [asked], 1)


def _here(todo: Sequence[Asked], sharers: int) -> Results:
    for asked in todo:
        yield asked, result_of(asked, sharers)


def _pooled(todo: Sequence[Asked], jobs: int) -> Results:
    """As `_here`, in `jobs` processes. A process that ends takes the points beside it with it; each of them runs again, alone."""
    left = list(reversed(todo))
    while left:
        for asked in (yield from _until_a_process_ends(left, jobs)):
            yield asked, _alone(asked)


def _alone(asked: Asked) -> Result:
    """The result of a point in a process of its own."""
    for _ in range(MOST_ATTEMPTS):
        for _, result in list(_until_a_process_ends([asked], 1)):
            return result
    return "its process ended each time, as it does where memory runs out; take fewer tokens or GPUs"


def _until_a_process_ends(left: list[Asked], jobs: int) -> Generator[tuple[Asked, Result], None, list[Asked]]:
    """Run the points at the end of `left` and take them off it. Returns the points that ran when a process ended; [] = none did."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
        running: dict[Future[Result], Asked] = {}
        try:
            while left or running:
                while left and len(running) < 2 * jobs:  # the next point waits at the process
                    running[pool.submit(result_of, left[-1], jobs)] = left[-1]
                    left.pop()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    yield running.pop(future), result
        except BrokenProcessPool:
            ended = [(asked, future) for future, asked in running.items() if future.done() and future.exception() is None]
            yield from ((asked, future.result()) for asked, future in ended)
            return [asked for asked in running.values() if asked not in [done for done, _ in ended]]
        except BaseException:  # also where the caller stops
            end_pool(pool)
            raise
    return []


def _begin(parent: int) -> None:
    """The first thing that a process does: end with its parent, and say which code it runs before it imports the rest."""
    end_with(parent)
    code_digest()


def _distributed() -> Any:
    """The module distributed, which is typed in part. Raises MissingExtra where it is not installed."""
    try:
        return import_module("distributed")
    except ImportError:
        raise MissingExtra.needs("--scheduler", "dask") from None


def _client(address: str) -> Any:
    """A client of the scheduler at `address`, or of the one that wrote the file `address`.json. Raises ConfigError where none answers."""
    distributed = _distributed()
    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        if address.endswith(".json"):
            open(address).close()  # a client would wait for the file
        return distributed.Client(**where, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"--scheduler: found no dask scheduler at {address[:80]!r} ({error or type(error).__name__})") from None


def _gathered(client: Any, todo: Sequence[Asked], sharers: int) -> Results:
    """Rows as dask finishes them. Dask runs the points of a lost worker again, and each point that raises `RETRIES` times more.

    Points that have not ended are cancelled where the caller stops. Raises SimulationError when the scheduler is lost.
    """
    futures = {client.submit(result_of, asked, sharers, key=f"dysharp-{asked.key}-{sharers}", retries=RETRIES): asked for asked in todo}
    try:
        for future, result in _distributed().as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False):
            if future.status in ("cancelled", "lost"):
                raise SimulationError("the dask scheduler is gone; finished points are kept, and the same command goes on from there")
            asked = futures.pop(future)
            yield asked, result if future.status == "finished" else _why(future.exception())
    finally:
        client.cancel(list(futures))


def _sharers(client: Any) -> int:
    """The most threads of workers that share the memory of one computer."""
    threads: dict[str, int] = {}
    for worker in client.scheduler_info(n_workers=-1)["workers"].values():
        threads[worker["host"]] = threads.get(worker["host"], 0) + worker["nthreads"]
    return max(threads.values(), default=1)


def _why(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
