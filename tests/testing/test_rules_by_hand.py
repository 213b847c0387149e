"""Rules of the conformance suite on cases made by hand: what counts as no bound, and which members a broken Program is made from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.program import Kind
from dysharp.testing.conformance import broken, runs
from dysharp.testing.conformance.rule import NotRun


@pytest.mark.parametrize(
    ("kinds", "bound", "faults"),
    [
        ([Kind.PUT, Kind.JOIN], 0.0, 0),
        ([Kind.COMPUTE], 0.0, 2),
        ([Kind.PUT, Kind.COMPUTE], 0.0, 2),
        ([Kind.PUT, Kind.COMPUTE], 3.0, 0),
        ([Kind.PUT], 9.0, 2),
    ],
)
def test_only_a_program_without_computing_may_have_no_bound(kinds: list[Kind], bound: float, faults: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "busy_floor_ps", lambda program: 0)
    monkeypatch.setattr(runs, "program_bound", lambda program: SimpleNamespace(us=0.0))
    case: Any = SimpleNamespace(
        program=SimpleNamespace(kinds=lambda: np.array(kinds)),
        trace=SimpleNamespace(time_ps=5_000_000),
        measured=SimpleNamespace(bound_us=bound, workload_bound_us=bound, time_us=5.0),
    )
    assert len(list(runs._time_above_bounds(case))) == faults


def test_rows_are_changed_of_members_that_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a whole member takes any."""
    asked: list[bool] = []
    monkeypatch.setattr(broken, "_sample_member", lambda program, rng, needs_rows: asked.append(needs_rows))
    case: Any = SimpleNamespace(program=SimpleNamespace(n_nodes=2))
    for seed in range(len(broken.CHANGES)):
        with pytest.raises(NotRun):
            list(broken._broken_members_are_noticed(case, seed))
    assert dict(zip((change.__name__ for change in broken.CHANGES), asked, strict=True)) == {
        change.__name__: change.__name__.endswith("_fill") for change in broken.CHANGES
    }
