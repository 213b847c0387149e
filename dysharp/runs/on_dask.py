"""Tasks on the workers of a dask scheduler. Dask does the retries, the lost workers and the cancellation."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dysharp.base import ConfigError, DysharpError, MissingExtra, OverShare, SimulationError, parse_json, read_text
from dysharp.base.processes import Ended, Runner, T, Task

RETRIES = 2
"""How often dask runs a point again that raised something else than an error of dysharp."""
CONNECT_S = 10


@contextmanager
def on_dask(address: str) -> Iterator[Runner[Any]]:
    """What runs tasks on the workers of the dask scheduler at `address`. Tasks that need more than their part of the memory run last, alone."""
    with _client(address) as client:
        yield lambda tasks: _alone_last(client, tasks, _sharers(client))


def _alone_last(client: Any, tasks: Sequence[Task[T]], sharers: int) -> Ended[T]:
    late: list[int] = []
    with closing(_gathered(client, tasks, sharers)) as results:
        for i, result in results:
            if isinstance(result, OverShare) and sharers > 1:
                late.append(i)
            else:
                yield i, result
    for i in late:
        for _, result in _alone_last(client, [tasks[i]], 1):
            yield i, result


def _distributed() -> Any:
    """The module distributed, which is typed in part. Raises MissingExtra without dask."""
    try:
        return import_module("distributed")
    except ImportError:
        raise MissingExtra.needs("--scheduler", "dask") from None


def _client(address: str) -> Any:
    """A client of the scheduler at `address`, or of the one that wrote the file `address`.json. Raises ConfigError where none answers."""
    distributed = _distributed()
    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        if address.endswith(".json") and not isinstance(parse_json(read_text(Path(address)), address).get("address"), str):
            raise ValueError("no address in it")  # a client would wait for the file, and end in a traceback without an address
        return distributed.Client(**where, timeout=CONNECT_S, set_as_default=False)
    except (ConfigError, OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"--scheduler: found no dask scheduler at {address[:80]!r} ({error or type(error).__name__})") from None


def _gathered(client: Any, tasks: Sequence[Task[T]], sharers: int) -> Ended[T]:
    """Results as dask finishes them. Dask runs the tasks of a lost worker again, and each task that raises `RETRIES` times more.

    Tasks that have not ended are cancelled where the caller stops. Raises SimulationError when the scheduler is lost.
    """
    futures = {client.submit(_told, task.work, 1 / sharers, key=f"dysharp-{task.key}-{sharers}", retries=RETRIES): i for i, task in enumerate(tasks)}
    try:
        for future, result in _distributed().as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False):
            if future.status in ("cancelled", "lost"):
                raise SimulationError("the dask scheduler is gone; finished points are kept, and the same command goes on from there")
            yield futures.pop(future), result if future.status == "finished" else future.exception()
    finally:
        client.cancel(list(futures))


def _told(work: Callable[[float], T], part: float) -> T | Exception:
    """The result of a task, or the error that a second try would raise again. Any other error is raised, so that dask runs the task again."""
    try:
        return work(part)
    except (DysharpError, ValueError) as error:
        return error


def _sharers(client: Any) -> int:
    """The most threads of workers that share the memory of one computer."""
    threads = Counter[str]()
    for worker in client.scheduler_info(n_workers=-1)["workers"].values():
        threads[worker["host"]] += worker["nthreads"]
    return max(threads.values(), default=1)
