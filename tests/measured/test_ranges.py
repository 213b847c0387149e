"""Measured ranges: a GPU with enough measurements has its own, another one those of its architecture."""

from __future__ import annotations

import pytest

from dysharp.measured import trust
from dysharp.measured.trust import FEWEST, _FamilyErrors, measured_range


def entry(gpu: str, n: int, low: float, high: float) -> _FamilyErrors:
    return _FamilyErrors("deepep-dispatch", gpu, "program", n, 0.0, 0.0, 0.0, {"tokens": (low, high)})


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("h100-sxm", (1.0, 2.0)),  # its own, enough of them
        ("h800", (1.0, 40.0)),  # too few: of all Hopper GPUs
        ("h200-sxm", (1.0, 40.0)),  # none
        ("b200", (500.0, 600.0)),  # another architecture
    ],
)
def test_a_range_is_of_the_gpu_or_of_its_architecture(monkeypatch: pytest.MonkeyPatch, gpu: str, expected: tuple[float, float]) -> None:
    entries = [entry("h100-sxm", FEWEST, 1, 2), entry("h800", FEWEST - 1, 30, 40), entry("b200", FEWEST + 1, 500, 600)]
    monkeypatch.setattr(trust, "family_errors", lambda: {("deepep-dispatch", e.gpu): e for e in entries})
    assert measured_range("deepep", "tokens", gpu) == expected
