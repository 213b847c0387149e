"""Errors of predicted round trips of libraries: the packaged table, and the errors that a new call takes.

`specs/data/validated_calls.toml` has an entry per library, GPU, network and size. `python bench/libraries.py errors` writes it.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from dysharp.arrays import F64
from dysharp.measured.calls import LARGE
from dysharp.measured.families.library_calls import CallCase
from dysharp.specs.reading import DATA, parse_toml, read_text

FILE = DATA / "validated_calls.toml"
ANY, OTHER = "any", "other"
"""All libraries; GPUs that were left out of the fit."""
FEWEST = 8
"""Fewer rows of one library on one GPU take the errors of all libraries there."""
HEAD = """# Errors of predicted round trips of libraries on drained GPUs, in percent of the measured value: median and 90th percentile.
# library "any": all of them; gpu "other": every row with its GPU left out of the fit. The slow pool is left out. Written by
# python bench/libraries.py errors
"""


class Key(NamedTuple):
    """What an entry is about. `far`: over nodes. `large`: from `LARGE` tokens per GPU."""

    library: str
    gpu: str
    far: bool
    large: bool


class CallErrors(NamedTuple):
    """`n` rows, their median error and the error that nine of ten keep, in percent; `own`: of this library on this GPU."""

    n: int
    median: float
    p90: float
    own: bool = True


def key_of(case: CallCase) -> Key:
    """The entry of a call."""
    return Key(f"{case.library} {case.mode}", case.gpu, case.nodes > 1, case.tokens >= LARGE)


def to_toml(known: Iterable[tuple[Key, float]], held_out: Iterable[tuple[Key, float]]) -> str:
    """The text of the table. Each pair: a key and predicted over measured; `held_out`: with the GPU of the row left out of the fit."""
    groups: dict[Key, list[float]] = {}
    for key, ratio in known:
        for name in (key.library, ANY):
            groups.setdefault(key._replace(library=name), []).append(ratio)
    for key, ratio in held_out:
        groups.setdefault(key._replace(library=ANY, gpu=OTHER), []).append(ratio)
    return HEAD + "".join(_entry(key, np.abs(np.array(ratios) - 1)) for key, ratios in sorted(groups.items()))


def _entry(key: Key, errors: F64) -> str:
    median, p90 = 100 * float(np.median(errors)), 100 * float(np.quantile(errors, 0.9))
    shown = "".join(f"{name} = {json.dumps(value)}\n" for name, value in key._asdict().items())
    return f"\n[[call]]\n{shown}n = {len(errors)}\nmedian = {median:.1f}\np90 = {p90:.1f}\n"


@functools.cache
def table() -> Mapping[Key, CallErrors]:
    """The packaged table."""
    entries = parse_toml(read_text(FILE), FILE.name)["call"]
    return {Key(*(e[name] for name in Key._fields)): CallErrors(e["n"], e["median"], e["p90"]) for e in entries}


def errors_of_call(case: CallCase) -> CallErrors | None:
    """The errors of a call on a drained GPU: of its library on its GPU, else of all libraries there, else of GPUs left out of the fit.

    None in another regime, of which no row is known.
    """
    if case.regime != "drained":
        return None
    key, found = key_of(case), table()
    own = found.get(key)
    if own is not None and own.n >= FEWEST:
        return own
    fallback = found.get(key._replace(library=ANY)) if own is not None else None
    fallback = fallback or found.get(key._replace(library=ANY, gpu=OTHER))
    return None if fallback is None else fallback._replace(own=False)
