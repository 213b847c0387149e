"""Error bars of systems from outside the tree: a part without measurements has no bar. Known systems: tests/planning/test_advise.py."""

from __future__ import annotations

from typing import Any

import pytest

from dysharp.measured import family as register
from dysharp.measured.family import Case, Part, all_families, family
from dysharp.measured.measurements import Measurement
from dysharp.measured.trust import PredictionScope, _part_judges, measured_range, trust_of, warnings_of
from dysharp.specs import load_cluster, load_model

SHARES = {"dispatch": 0.3, "gemm1": 0.3, "combine": 0.3, "other": 0.1}


def scope(**changes: Any) -> PredictionScope:
    model, cluster = load_model("deepseek-v3"), load_cluster("hw-dgx-h100")
    return PredictionScope("toy", model, cluster, 128, options={"form": "real"} | changes)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch):
    """`judge(name, *parts)` registers a family of the system "toy" for one test."""
    all_families()
    monkeypatch.setattr(register, "_REGISTRY", dict(register._REGISTRY))

    def add(name: str, *parts: Part) -> None:
        @family(name, belongs=lambda m: False, closed_us=lambda case, gpu, constants: case.work, systems=("toy",), parts=parts)
        def case(m: Measurement) -> Case:
            return Case(gpu="h100-sxm")

    return add


def test_a_system_without_a_family_has_no_bar() -> None:
    trust = trust_of(scope(), SHARES)
    assert (trust.families, trust.interval) == ((), None)
    assert trust.warnings == ("toy: no measurement checks predictions of its layer",)
    assert (_part_judges("toy"), measured_range("toy", "sms", "h100-sxm")) == ({}, None)
    assert "charges no software cost" in warnings_of(scope(form="paper"))[0]


def test_a_system_with_half_a_family_has_no_bar(judge) -> None:
    judge("toy-dispatch", "dispatch")
    trust = trust_of(scope(), SHARES)
    assert trust.interval is None
    assert trust.warnings == ("toy: no measurement checks predictions of its Combine",)


def test_a_family_without_validated_errors_has_no_bar(judge) -> None:
    judge("toy-kernels", "dispatch", "combine")
    trust = trust_of(scope(), SHARES)
    assert trust.families == ("toy-kernels", "grouped-gemm")
    assert trust.interval is None
    assert "toy-kernels was not measured on h100-sxm; no error bar" in trust.warnings


def test_a_family_of_whole_layers_replaces_the_parts(judge) -> None:
    judge("toy-layer", "layer")
    assert {part: entry.name for part, entry in _part_judges("toy").items()} == {"layer": "toy-layer"}
    assert trust_of(scope(), SHARES).families == ("toy-layer",)
