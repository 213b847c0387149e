"""Tables of lengths without times, as Vidur's `processed_traces`: CSV of prefill and decode tokens."""

from collections.abc import Iterable, Iterator
from typing import Any

from dysharp.serving.replay.request import Request, whole

NAME = "table of lengths"
BLOCK = 0


def fits(first: Any) -> bool:
    """Whether the first line is of this format."""
    return isinstance(first, list) and first[:2] == ["num_prefill_tokens", "num_decode_tokens"]


def read(lines: Iterable[tuple[str, Any]]) -> Iterator[Request]:
    """The requests, all at 0."""
    for where, row in lines:
        yield Request(0.0, whole(row, "num_prefill_tokens", where, 1), whole(row, "num_decode_tokens", where))
