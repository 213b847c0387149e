"""Mooncake (FAST25-release) and AIPerf's `mooncake_trace`: a request a line, `timestamp` in ms; hashes of 512 tokens, also of the last part."""

from collections.abc import Iterable, Iterator
from typing import Any

from dysharp.serving.replay.request import Request, names, number, whole

NAME = "Mooncake trace"
BLOCK = 512


def fits(first: Any) -> bool:
    """Whether the first line is of this format."""
    return isinstance(first, dict) and "input_length" in first and "session_id" not in first


def read(lines: Iterable[tuple[str, Any]]) -> Iterator[Request]:
    """The requests. Raises `ConfigError` for a damaged line."""
    for where, row in lines:
        seconds = number(row, "timestamp", where) / 1e3
        yield Request(seconds, whole(row, "input_length", where, 1), whole(row, "output_length", where), tuple(names(row, where)))
