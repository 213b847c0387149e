"""Constants of a cluster's own, each fault in one line; and which models have gated experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.api.validation import _constants
from dysharp.specs import load_cluster, load_model
from dysharp.specs.fitted import conflicts_of, fitted, fitted_values
from dysharp.specs.gpu import load_gpu


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


def test_a_machine_has_its_own_constants_before_its_gpus_before_the_given() -> None:
    """`validate` takes this order from `Cluster.over`, as every cost does from `Cluster.fitted`."""
    of_gpu = dict(load_gpu("mi300x").constants)
    first, own = min(of_gpu), fitted()[min(of_gpu)].low
    machine = replace(load_cluster("hw-mi300x"), constants=((first, own),))
    given = dict.fromkeys(fitted_values(), 7.0)
    expected = given | of_gpu | {first: own}
    assert machine.over(given) == expected
    assert machine.fitted == fitted_values() | of_gpu | {first: own}
    asked = _constants({name: replace(one, value=7.0) for name, one in fitted().items()}, machine)
    assert {name: one.value for name, one in asked.items()} == expected
