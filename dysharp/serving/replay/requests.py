"""`Requests`: what comes to the replicas, from a file (`formats/`) or drawn from a text of KEY=VALUE (`drawn.py`)."""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BufferedReader
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from dysharp.base.errors import ConfigError, check_word, show
from dysharp.base.reading import json_of, open_regular, show_path
from dysharp.base.units import MiB
from dysharp.base.values import frozen
from dysharp.serving.replay.drawn import KEYS, drawn
from dysharp.serving.replay.formats import aiperf, azure, lengths, mooncake, servegen, weka
from dysharp.serving.replay.request import Request

FORMATS = (mooncake, aiperf, azure, lengths, weka, servegen)
MOST_LINE = 256 * MiB
MOST = 10_000_000
POSITIVE = ("n", "rate", "users", "speed", "turns", "isl", "osl")
COUNTS = ("n", "users", "turns", "shared", "seed")
SEED = 0
ON_FILES = ("n", "rate", "users", "speed")
"""Keys behind the name of a file: its first N requests, arrivals drawn anew at a rate, users that each send one session after the other, a factor
on all times."""
Lines = Iterator[tuple[str, Any]]


@frozen
class Requests:
    """Requests, in order of arrival where they have times."""

    rows: tuple[Request, ...]
    name: str
    block: int = 0
    """Tokens of a block that a hash names; 0: no hashes."""
    users: int = 0
    """Users who send one session after the other; 0: requests come when they say."""

    @property
    def prompt(self) -> float:
        """Mean tokens in."""
        return sum(row.prompt for row in self.rows) / len(self.rows)

    @property
    def output(self) -> float:
        """Mean tokens out."""
        return sum(row.output for row in self.rows) / len(self.rows)


def requests_of(text: str, isl: float = 4096, osl: float = 1024) -> Requests:
    """Requests of "FILE", "FILE,KEY=VALUE,..." or "KEY=VALUE,...", such as "rate=4,isl=2000" or "users=64". Raises `ConfigError`.

    `isl`, `osl`: mean tokens of drawn requests whose text does not say them.
    """
    name, *rest = text.split(",")
    if "=" in name and not Path(name).exists():
        return Requests(*drawn(_values(text.split(","), KEYS), isl, osl))
    return _with(_file(Path(name)), _values(rest, ON_FILES))


def _values(parts: Iterable[str], known: Collection[str]) -> dict[str, float]:
    """Numbers by key."""
    found = dict[str, float]()
    for part in parts:
        key, _, value = part.strip().partition("=")
        check_word(key, known, f"requests: found {show(part)}")
        try:
            found[key] = float(value)
        except ValueError:
            found[key] = math.nan
        if not 0 <= found[key] < MOST or (key in POSITIVE and not found[key]) or (key in COUNTS and found[key] % 1):
            what = f"{'an integer' if key in COUNTS else 'a number'} {'above 0' if key in POSITIVE else 'from 0 on'}"
            raise ConfigError(f"requests: {key}: found {show(value)}, expected {what} and below {MOST:,}")
    return found


def _file(path: Path) -> Requests:
    """The requests of a file, or of all files of a folder, by name. Raises `ConfigError` for a damaged line or another format."""
    paths = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    lines = chain.from_iterable(map(_lines, paths))
    begun = next(lines, None)
    where, first = begun or (show_path(path), None)
    kind: Any = next((one for one in FORMATS if one.fits(first)), None)
    if kind is None:
        raise ConfigError(f"{where}: found {show(str(first))[:80]}, expected {', '.join(one.NAME for one in FORMATS)}")
    read: Callable[[Lines], Iterable[Request]] = kind.read
    if kind is servegen:
        read = partial(servegen.read, beside=_beside(path))
    every: Lines = chain([(where, first)], lines)
    if isinstance(first, list):
        every = _named(list(servegen.COLUMNS), every) if kind is servegen else _named(first, lines)
    rows = tuple(read(every if isinstance(first, list) else _objects(every)))
    if not rows:
        raise ConfigError(f"{show_path(path)}: found no request, expected at least one")
    if any(a.arrive > b.arrive for a, b in pairwise(rows) if a.after < 0 and b.after < 0):
        raise ConfigError(f"{show_path(path)}: found times that go back, expected requests in order of arrival")
    return Requests(rows, f"{kind.NAME} {path.name}", getattr(kind, "BLOCK", mooncake.BLOCK))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file, unpacked where it is packed. Raises `ConfigError` for one that cannot be read."""
    try:
        with open_regular(path) as raw, gzip.open(raw) if cast(BufferedReader, raw).peek(2)[:2] == b"\x1f\x8b" else raw as file:
            yield file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{show_path(path)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _lines(path: Path) -> Lines:
    """(place, the value of a line): an object of JSON, or the cells of a line of CSV. One line is in memory at a time."""
    with _opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE).decode(), ""), 1):
            place = f"{show_path(path)}: line {number}"
            if line.startswith("{"):
                try:
                    yield place, json.loads(line)
                except (ValueError, RecursionError):
                    yield place, json_of(line, place)  # says what is wrong
            elif line.strip():
                yield place, line.strip().split(",")


def _objects(lines: Lines) -> Lines:
    for where, value in lines:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: found {show(str(value))[:80]}, expected an object of JSON")
        yield where, value


def _named(head: list[str], lines: Lines) -> Lines:
    """Lines of CSV by the names of its columns, numbers as numbers."""
    for where, cells in lines:
        if not isinstance(cells, list) or len(cells) != len(head):
            raise ConfigError(f"{where}: found {show(str(cells))[:80]}, expected {len(head)} columns")
        yield where, {key: int(cell) if cell.isdecimal() else cell for key, cell in zip(head, cells, strict=True)}


def _beside(path: Path) -> dict[str, Any]:
    """The histograms of a ServeGen client. Raises `ConfigError`."""
    other = path.with_name(path.name.replace(*servegen.BESIDE))
    if other == path:
        raise ConfigError(f"{show_path(path)}: found a ServeGen client, expected a name with {' and '.join(servegen.BESIDE)} beside it")
    with _opened(other) as file:
        held: dict[str, Any] = json_of(file.read(MOST_LINE).decode(), show_path(other))
    return held


def _with(found: Requests, asked: dict[str, float]) -> Requests:
    """The requests of a file as the keys behind its name want them."""
    count = max(1, int(asked.get("n", len(found.rows))))
    rows, speed = list(found.rows[:count]), asked.get("speed", 1.0)
    if "rate" in asked:
        if "users" in asked:
            raise ConfigError(f"{found.name}: found both rate and users, expected one of them")
        first = [i for i, row in enumerate(rows) if row.after < 0]
        times = np.cumsum(np.random.default_rng(SEED).exponential(1 / asked["rate"], len(first))).tolist()
        for i, at in zip(first, times, strict=True):
            rows[i] = rows[i]._replace(arrive=at)
    elif found.name.startswith(lengths.NAME) and not asked.get("users"):
        raise ConfigError(f"{found.name}: found no times, expected users=N or rate=R behind the name of the file")
    if speed != 1:
        rows = [row._replace(arrive=row.arrive / speed, pause=row.pause / speed) for row in rows]
    return replace(found, rows=tuple(rows), users=int(asked.get("users", 0)))
