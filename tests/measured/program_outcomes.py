"""What every family makes of Programs, for the measurements of `outcomes`.

Times of Programs are made up from their ops and bytes (`made_up`), so that a Program is built and read and nothing is simulated: the table says which
Programs a family runs, and how it reads their marks.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.base.errors import DysharpError
from dysharp.measured.family import Family, Level, Parsed, all_families
from dysharp.measured.measurements import Measurement
from dysharp.program import Program
from dysharp.specs.fitted import fitted_values
from tests.measured.outcomes import MOST, anew, known, outcome, size, with_programs
from tests.stored_values import Cases, Table, checksum

STORED = Table(__file__, close=1e-8, zero=1e-8)
SMALL, LARGE = 1 << 15, 2
"""Token rows of a Program up to which it is made as it is, and how many larger ones of a family are."""


def made_up(program: Program, *_: Any, **__: Any) -> tuple[Any, None]:
    """In place of `run_burst`: an op ends later than those before it, by its template; the whole counts bytes and members."""
    ops = program.ops
    done = 1000 * np.arange(1, len(ops.template) + 1, dtype=np.int64) + 77 * ops.template
    return SimpleNamespace(done=done, time_ps=int(done.max()) + int(checksum_of(program))), None


def checksum_of(program: Program) -> int:
    """A number that depends on ops, members, wires, durations, issuers, semaphores and links."""
    parts = (program.ops, program.members, program.wires, program.issuers, program.semaphores)
    arrays = [getattr(part, field.name) for part in parts for field in fields(part)]
    total = int(checksum((program.hardware, program.nets))) + 13 * int(np.asarray(program.durations).sum() % 1000003)
    for n, array in enumerate(array for array in arrays if isinstance(array, np.ndarray)):
        turn = (1 + np.arange(array.size, dtype=np.int64) % 61).reshape(array.shape)
        total += (n + 3) * int((array.astype(np.int64) % 8191 * turn).sum() % 1000003)
    return total


def without_engine(patch: pytest.MonkeyPatch) -> None:
    """Programs of families get times of `made_up`; what is kept of other runs stays as it is."""
    all_families()
    for name, module in list(sys.modules.items()):
        if name.startswith("dysharp.measured") and hasattr(module, "run_burst"):
            patch.setattr(module, "run_burst", made_up)
            for kept in ("_run", "_slow_run"):
                if hasattr(getattr(module, kept, None), "__wrapped__"):
                    patch.setattr(module, kept, functools.lru_cache(getattr(module, kept).__wrapped__))


def program_number(family: Family, entry: Parsed) -> float:
    """A checksum of the made-up time."""
    assert family.program_us is not None
    try:
        return checksum(entry.in_unit(family.program_us(entry.case, fitted_values())))
    except DysharpError as reason:
        return checksum(str(reason))


def programs_of(name: str, measurements: list[Measurement]) -> dict[str, float]:
    """Checksums of the made-up times of a family."""
    family, found, large = all_families()[name], dict[str, float](), 0
    with pytest.MonkeyPatch.context() as patch:
        without_engine(patch)
        for m in measurements[: 3 if family.level is Level.CALL else MOST]:
            entry = outcome(m)
            if isinstance(entry, Parsed):
                large += size(m, entry) > SMALL
                if size(m, entry) <= SMALL or large <= LARGE:
                    found[f"{m.id} Program"] = program_number(family, entry)
                if hasattr(entry.case, "tokens"):
                    one: Any = entry.case
                    found[f"{m.id} Program of 1"] = program_number(family, replace(entry, case=replace(one, tokens=1)))
    return found


CASES: Cases = {name: (lambda name=name: programs_of(name, known()[name])) for name in with_programs()}  # type: ignore[misc]
ANEW: Cases = {name: (lambda name=name: programs_of(name, anew()[name])) for name in with_programs()}  # type: ignore[misc]
