"""Bars of a comparison: the axis says what was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dysharp
from dysharp.api import Comparison
from dysharp.reports.plots import PALETTE, operator_colours, plot_compare


@pytest.fixture(scope="module")
def done() -> Comparison:
    return dysharp.compare(["deepep", "ideal"], gpus=4, tokens=16)


@pytest.mark.parametrize(
    ("direction", "label"),
    [
        ("fwd", "time of one MoE layer, forward (us)"),
        ("bwd", "time of one MoE layer, backward (us)"),
        ("both", "time of one MoE layer, forward and backward (us)"),
    ],
)
def test_the_axis_names_the_direction(done: Comparison, direction: str, label: str) -> None:
    assert plot_compare([replace(row, direction=direction) for row in done.rows]).get_xlabel() == label


def test_no_rows_have_no_direction() -> None:
    assert plot_compare([]).get_xlabel() == "time of one MoE layer (us)"


def test_colours_of_operators_are_fixed_for_a_layer_and_paler_for_later_parts() -> None:
    colours = operator_colours(["dispatch", "A.gemm1", "B.gemm1", "exchange"])
    assert colours["dispatch"] == PALETTE[0]
    assert len(set(colours.values())) == 4
