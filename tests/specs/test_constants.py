"""Constants of a cluster's own, each fault in one line; and which models have gated experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.specs import load_model
from dysharp.specs.fitted import conflicts_of, fitted


def test_faults_of_constants() -> None:
    name, constant = next(iter(fitted().items()))
    assert conflicts_of(((name, constant.low),)) == conflicts_of(((name, constant.high),)) == []
    (unknown,) = conflicts_of(((f"{name}x", constant.low),))
    assert unknown.startswith("constants: ")
    assert f"{name}x: unknown" in unknown.replace("'", "")
    (outside,) = conflicts_of(((name, 2 * constant.high + 1),))
    assert outside == f"constants: {name}: found {2 * constant.high + 1:g}, expected {constant.low:g} to {constant.high:g} {constant.unit}"
    assert conflicts_of(((name, constant.low), (name, constant.high))) == ["constants: found a name twice, expected each once"]


@pytest.mark.parametrize(("n_matrices", "gated"), [(2, False), (3, True)])
def test_experts_of_three_matrices_are_gated(n_matrices: int, gated: bool) -> None:
    assert replace(load_model("S-8"), n_matrices=n_matrices).gated is gated
