"""Azure's LLM traces (AzurePublicDataset): CSV of a wall clock with seven decimals, tokens in and out; no hashes."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from dysharp.base.errors import ConfigError, show
from dysharp.serving.replay.request import Request, whole

NAME = "Azure trace"
BLOCK = 0
HEAD = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def fits(first: Any) -> bool:
    """Whether the first line is of this format."""
    return bool(first == list(HEAD))


def read(lines: Iterable[tuple[str, Any]]) -> Iterator[Request]:
    """The requests; the first comes at 0. Raises `ConfigError` for a damaged line."""
    begin: float | None = None
    for where, row in lines:
        try:
            day, _, part = row["TIMESTAMP"].partition(".")
            at = datetime.fromisoformat(f"{day[:19]}+00:00").timestamp() + float(f"0.{part[:9] or 0}")
        except ValueError:
            raise ConfigError(f"{where}: TIMESTAMP: found {show(row['TIMESTAMP'])}, expected a date and a time of day") from None
        begin = at if begin is None else begin
        yield Request(at - begin, whole(row, HEAD[1], where, 1), whole(row, HEAD[2], where))
