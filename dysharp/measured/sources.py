"""How far the sources of one kernel differ: no prediction can be nearer to all of them than they are to each other."""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dysharp.measured.classify import Parsed

Times = dict[str, dict[Any, list[float]]]


def disagreements(parsed: Sequence[Parsed]) -> list[dict[str, Any]]:
    """One entry per family and pair of sources that measured the same cases.

    | field | holds |
    |---|---|
    | `source`, `other` | the source with more cases in the family, and the other one |
    | `n` | cases that both measured |
    | `least`, `median`, `most` | by how much the times of `other` are longer, in percent |
    """
    entries = []
    for family in dict.fromkeys(entry.family.name for entry in parsed):
        times = _times([entry for entry in parsed if entry.family.name == family])
        order = sorted(times, key=lambda source: (-len(times[source]), source))
        for source, other in combinations(order, 2):
            both = [case for case in times[source] if case in times[other]]
            if both:
                longer = [100 * (float(np.median(times[other][case])) / float(np.median(times[source][case])) - 1) for case in both]
                spread = {"least": min(longer), "median": float(np.median(longer)), "most": max(longer)}
                entries.append({"family": family, "source": source, "other": other, "n": len(both)} | spread)
    return entries


def source_of(text: str) -> str:
    """The project that a measurement was found in: the column `source` without version, file and thread."""
    return re.split(r"[@:#\s]", text.removeprefix("https://").removeprefix("github.com/"), maxsplit=1)[0]


def _times(parsed: Sequence[Parsed]) -> Times:
    """Times in us by source and case."""
    times: Times = {}
    for entry in parsed:
        m, work = entry.measurement, entry.case.work
        assert m.value  # `classify.parse` refuses measurements without a value
        us = work / m.value if work else m.value * m.us_per_unit
        times.setdefault(source_of(m.source), {}).setdefault(entry.case, []).append(us)
    return times
