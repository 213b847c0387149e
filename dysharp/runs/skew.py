"""Start times and slow ranks as a user writes them: `--start` and `--slow`."""

import csv
import io
import math
import zlib
from pathlib import Path

import numpy as np

from dysharp.base import F64, ConfigError, nearest, read_text
from dysharp.program import Skew

_MAX_US = 1e6
_FACTORS = (0.1, 100.0)
_LISTED = 4  # ranks that a header names
_MOST_SPREAD, _SLOWEST_CLOCK = 0.3, 0.1


def make_skew(start: str | None, slow: str | None, n_gpus: int, seed: int) -> Skew | None:
    """The Skew of two texts. None: all ranks start together and are equally fast.

    start
        `fixed:US`: the last rank starts US microseconds after all others. `normal:SIGMA`: start times are drawn from a
        normal distribution (stream "start" of `seed`) and shifted so that the first rank starts at 0. `rank=R:US,...`:
        the others start at 0. A CSV file with the columns `rank,start_us`: ranks without a row start at 0.
    slow
        `rank=R:FACTOR,...`, or a CSV file with the columns `rank,factor`. `normal:CV`: clocks are drawn from a normal
        distribution of mean 1 and deviation CV (stream "clock" of `seed`); the fastest rank has factor 1.

    Raises ConfigError that names the text, or the file and row.
    """
    start_us, factor = _start(start, n_gpus, seed), _slow(slow, n_gpus, seed)
    if not any(start_us) and all(f == 1.0 for f in factor):
        return None
    return Skew(tuple(round(us * 1_000_000) for us in start_us), tuple(factor))


def skew_line(skew: Skew) -> str:
    """One line for a header."""
    parts = []
    late = [ps for ps in skew.start_ps if ps]
    if late:
        mean = sum(skew.start_ps) / len(skew.start_ps)
        parts.append(f"{len(late)} of {len(skew.start_ps)} ranks start late, by {max(late) / 1e6:g} us at most, {mean / 1e6:.3g} us on average")
    slow = [(rank, factor) for rank, factor in enumerate(skew.slow) if factor != 1.0]
    if slow:
        shown = ", ".join(f"rank {rank} x{factor:.4g}" for rank, factor in slow)
        most = max(factor for _, factor in slow)
        parts.append(f"GEMM times: {shown if len(slow) <= _LISTED else f'{len(slow)} ranks slower, x{most:.4g} at most'}")
    return "; ".join(parts)


def _start(text: str | None, n_gpus: int, seed: int) -> list[float]:
    start = [0.0] * n_gpus
    if text is None:
        return start
    name, _, value = text.partition(":")
    if name == "fixed":
        start[-1] = _number(value, "start fixed", 0.0, _MAX_US)
    elif name == "normal":
        sigma = _number(value, "start normal", 0.0, _MAX_US)
        drawn = sigma * _drawn("start", n_gpus, seed)
        start = (drawn - drawn.min()).tolist()
    else:
        _by_rank(text, "start", "start_us", (0.0, _MAX_US), start)
    return start


def _slow(text: str | None, n_gpus: int, seed: int) -> list[float]:
    factor = [1.0] * n_gpus
    name, _, value = (text or "").partition(":")
    if name == "normal":
        clock = np.maximum(_SLOWEST_CLOCK, 1.0 + _number(value, "slow normal", 0.0, _MOST_SPREAD) * _drawn("clock", n_gpus, seed))
        factor = (clock.max() / clock).tolist()
    elif text is not None:
        _by_rank(text, "slow", "factor", _FACTORS, factor)
    return factor


def _drawn(stream: str, n_gpus: int, seed: int) -> F64:
    """`[n_gpus]` of a standard normal distribution, from the named stream of `seed`."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(stream.encode()),)))
    return rng.standard_normal(n_gpus)


def _by_rank(text: str, what: str, column: str, limits: tuple[float, float], out: list[float]) -> None:
    """Fill `out` from `rank=R:VALUE,...` or from a CSV file."""
    if text.endswith(".csv"):
        cells = _cells(Path(text), column)
    elif text.startswith("rank="):
        cells = [(f"{what} {part[:40]!r}", *part.partition(":")[::2]) for part in text.replace("rank=", "").split(",")]
    else:
        known = ("rank=R:VALUE", "FILE.csv", *(("fixed:US", "normal:SIGMA_US") if what == "start" else ("normal:CV",)))
        raise ConfigError(f"{what}: found {text[:60]!r}{nearest(text, known)}")
    seen: set[int] = set()
    for where, rank_text, value in cells:
        if not (rank_text.isascii() and rank_text.isdigit() and len(rank_text) < 7 and int(rank_text) < len(out)):
            raise ConfigError(f"{where}: found rank {rank_text[:40]!r}, expected 0 to {len(out) - 1}")
        rank = int(rank_text)
        if rank in seen:
            raise ConfigError(f"{where}: found rank {rank} again, expected each rank once")
        seen.add(rank)
        out[rank] = _number(value, where, *limits)


def _cells(path: Path, column: str) -> list[tuple[str, str, str]]:
    """(where, rank, value) of every row of a CSV file."""
    try:
        rows = list(csv.reader(io.StringIO(read_text(path)), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}: malformed CSV: {error}") from None
    if not rows or rows[0] != ["rank", column]:
        found = ",".join(rows[0])[:80] if rows else ""
        raise ConfigError(f"{path}: found columns {found!r}, expected 'rank,{column}'")
    for line, row in enumerate(rows[1:], 2):
        if len(row) != 2:
            raise ConfigError(f"{path}: row {line}: found {len(row)} columns, expected 2")
    return [(f"{path}: row {line}", row[0], row[1]) for line, row in enumerate(rows[1:], 2)]


def _number(text: str, where: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"{where}: found {text[:40]!r}, expected a number from {low:g} to {high:g}")
    return value
