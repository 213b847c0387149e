"""Points on the workers of a dask scheduler. Dask does the retries, the lost workers and the cancellation."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

from dysharp.errors import ConfigError, MissingExtra, OverShare, SimulationError
from dysharp.runs.point_runs import Asked, Ended, Result, Runner, result_of

RETRIES = 2
"""How often dask runs a point again that raised something else than an error of dysharp."""
CONNECT_S = 10


@contextmanager
def on_dask(address: str) -> Iterator[Runner]:
    """What runs points on the workers of the dask scheduler at `address`. Points that need more than their part of the memory run last, alone."""
    with _client(address) as client:
        yield lambda todo: _alone_last(client, todo, _sharers(client))


def _alone_last(client: Any, todo: Sequence[Asked], sharers: int) -> Ended:
    late: list[Asked] = []
    with closing(_gathered(client, todo, sharers)) as results:
        for asked, result in results:
            if not isinstance(result, OverShare):
                yield asked, result
            elif sharers > 1:
                late.append(asked)
            else:
                yield asked, str(result)
    for asked in late:
        yield from _alone_last(client, [asked], 1)


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


def _gathered(client: Any, todo: Sequence[Asked], sharers: int) -> Generator[tuple[Asked, Result]]:
    """Rows as dask finishes them. Dask runs the points of a lost worker again, and each point that raises `RETRIES` times more.

    Points that have not ended are cancelled where the caller stops. Raises SimulationError when the scheduler is lost.
    """
    futures = {client.submit(result_of, asked, 1 / sharers, key=f"dysharp-{asked.key}-{sharers}", retries=RETRIES): asked for asked in todo}
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
