"""Agentic sessions of kv-cache-tester (Weka): a session an object, hashes of whole blocks of 64 tokens that only its session and sub-agents share.

`think_time` and `t` are seconds. A sub-agent's requests run beside the parent's, whose next request waits for those that ended before it came.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from dysharp.base.errors import ConfigError, show
from dysharp.serving.replay.request import Request, names, number, whole

NAME = "Weka sessions"
BLOCK = 64


def fits(first: Any) -> bool:
    """Whether the first line is of this format."""
    return isinstance(first, dict) and "requests" in first and "block_size" in first


def read(lines: Iterable[tuple[str, Any]]) -> Iterator[Request]:
    """The requests of all sessions, each of which begins at 0. Raises `ConfigError` for a damaged one."""
    numbers = count()
    for session, (where, whole_session) in enumerate(lines):
        if whole_session.get("block_size") != BLOCK:
            raise ConfigError(f"{where}: block_size: found {show(whole_session.get('block_size'))}, expected {BLOCK}")
        yield from _session(whole_session.get("requests"), session, where, numbers)


def _session(rows: Any, session: int, where: str, numbers: Iterator[int]) -> Iterator[Request]:
    after, ended, agents = -1, 0.0, list[tuple[float, int]]()
    for row in _objects(rows, where):
        at = number(row, "t", where)
        if row.get("type") == "subagent":
            last, end = after, ended
            for one in _objects(row.get("requests"), where):
                begin = at + number(one, "t", where)
                yield _request(one, session, last, begin - end if last == after else number(one, "think_time", where, 0.0), where)
                last, end = next(numbers), begin + number(one, "api_time", where, 0.0)
            agents.append((at + number(row, "duration_ms", where, 0.0) / 1e3, last))
            continue
        waited = max(((end, last) for end, last in agents if ended < end <= at), default=None)
        pause = number(row, "think_time", where, 0.0) if waited is None else at - waited[0]
        yield _request(row, session, after if waited is None else waited[1], pause, where)
        after, ended, agents = next(numbers), at + number(row, "api_time", where, 0.0), []


def _request(row: Any, session: int, after: int, pause: float, where: str) -> Request:
    blocks = tuple((session, name) for name in names(row, where))
    return Request(0.0, whole(row, "in", where, 1), whole(row, "out", where), blocks, after, max(0.0, pause))


def _objects(rows: Any, where: str) -> Iterator[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{where}: requests: found {show(rows)}, expected a list of objects")
    yield from rows
