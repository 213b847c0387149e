"""Which operator of a layer a kernel is: rules as data, one file a library, the first that matches a kernel's name (rules/NN-*.toml)."""

import functools
import itertools
import math
import re
import tomllib
from importlib import resources
from typing import NamedTuple

import numpy as np

from dysharp.base import F64
from dysharp.profiles.reader import Profile

Labels = np.ndarray[tuple[int], np.dtype[np.str_]]
"""A word per event."""
COPY, UNKNOWN, WAITING = "copy", "", "EP wait"
EXCHANGES = ("dispatch", "combine", "all-reduce", "all-gather", "reduce-scatter", "send and receive", "broadcast", WAITING)
"""Operators that wait for other ranks."""
BACKWARD = re.compile(r"[Bb]wd|[Bb]ackward|_bw_|grad(?!e)")


class _Kind(NamedTuple):
    """What a kernel is. `operator`: "" where no rule knows it."""

    operator: str
    library: str
    backward: bool


@functools.cache
def _rules() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    """(pattern, operator, library), first ones first."""
    found = []
    for file in sorted(resources.files(__package__).joinpath("rules").iterdir(), key=lambda one: one.name):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        found += [(re.compile(pattern), operator, table["library"]) for operator, pattern in table["kernels"]]
    return tuple(found)


@functools.lru_cache(maxsize=1 << 16)
def kind_of(name: str) -> _Kind:
    """What the kernel of a name is."""
    for pattern, operator, library in _rules():
        if pattern.search(name):
            return _Kind(operator, library, operator.endswith("backward") or BACKWARD.search(name) is not None)
    return _Kind(UNKNOWN, "", False)


def operators_of(profile: Profile) -> Labels:
    """Operator of every event `[events]`; copies and fills of the driver are copies."""
    kinds: Labels = np.array([kind_of(name).operator for name in profile.names])
    return np.where(profile.what == 0, kinds[profile.name], COPY)


def passes_of(order: str) -> str:
    """What a run does, by its attention calls in order: F forward, B backward."""
    ahead, back = order.count("F"), order.count("B")
    if not back:
        return f"{ahead} attention calls"
    runs = [len(list(own)) for _, own in itertools.groupby(order)]
    if ahead == 2 * back:
        return f"{back} layers, whose attention runs again in the backward pass"
    if (each := math.gcd(*runs)) == 1 and len(runs) > 2:
        return f"{ahead} layers forward beside {back} backward: pairs of two micro-batches"
    if ahead != back:
        return f"{ahead} attention calls forward, {back} backward"
    return f"{ahead // each} micro-batch{'es' if ahead > each else ''} of {each} layers, forward and backward"


def times_by(labels: Labels, us: F64) -> dict[str, tuple[float, int]]:
    """Label -> (microseconds, events), most first."""
    words, at = np.unique(labels, return_inverse=True)
    sums, counts = np.bincount(at, us, len(words)), np.bincount(at, minlength=len(words))
    return {str(words[i]): (float(sums[i]), int(counts[i])) for i in np.argsort(-sums, kind="stable")}


def recognised(labels: Labels, us: F64) -> float:
    """Part of the time whose operator is known."""
    return float(us[labels != UNKNOWN].sum() / us.sum()) if us.any() else 1.0
