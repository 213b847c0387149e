"""AIPerf sessions: the first turn has a `timestamp`, later ones a `delay`, in ms. A later turn's `input_length` and hashes are its new tokens."""

from collections.abc import Iterable, Iterator
from typing import Any

from dysharp.base.errors import ConfigError, show
from dysharp.serving.replay.formats.mooncake import BLOCK
from dysharp.serving.replay.request import Request, names, number, whole

NAME = "AIPerf sessions"


def fits(first: Any) -> bool:
    """Whether the first line is of this format."""
    return isinstance(first, dict) and "session_id" in first


def read(lines: Iterable[tuple[str, Any]]) -> Iterator[Request]:
    """The requests, turns with their history. Blocks behind the first turn's whole ones are the session's own: an output stands between."""
    last: dict[Any, tuple[int, int, tuple[Any, ...]]] = {}
    for count, (where, row) in enumerate(lines):
        session = row.get("session_id")
        if not isinstance(session, str | int):
            raise ConfigError(f"{where}: session_id: found {show(session)}, expected a name")
        new, output = whole(row, "input_length", where, 1), whole(row, "output_length", where)
        after, history, shared = last.get(session, (-1, 0, tuple(names(row, where)[: new // BLOCK])))
        prompt = history + new
        blocks = (*shared, *((session, i) for i in range(len(shared), (prompt + output) // BLOCK)))
        if after < 0:
            yield Request(number(row, "timestamp", where, 0.0) / 1e3, prompt, output, blocks)
        else:
            yield Request(0.0, prompt, output, blocks, after, number(row, "delay", where, 0.0) / 1e3)
        last[session] = count, prompt + output, shared
