"""Bars of a comparison: the axis says what was timed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import dysharp
from dysharp.api import Comparison
from dysharp.show.plots import PALETTE, colour_of, operator_colours, plot_compare
from dysharp.show.timeline import AT_ONCE_BINS, BINS, _at_once


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


VISIONS = {  # linear RGB as people see it who lack one kind of cones: Machado, Oliveira, Fernandes 2009, severity 1
    "all cones": np.eye(3),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
}


def _lab(colour: str, vision: str) -> np.ndarray:
    """CIE L*a*b* (D65) of an sRGB colour as that vision sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.clip(VISIONS[vision] @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]) @ linear
    x, y, z = np.cbrt(xyz / np.array([0.95047, 1, 1.08883]))  # colours below the linear part of L*a*b* are nearly black
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


BESIDE = (  # systems of one picture: the usual comparison and its extensions, papers' figures, systems that run today
    ("deepep", "nvls", "comet", "dysharp", "ideal", "moe-hub", "hub-sharp"),
    ("dysharp", "deepep", "comet", "nvls", "fusion-only", "fastermoe", "tutel", "ccfuser", "ideal"),
    ("deepep", "comet", "dysharp-basic", "dysharp-comet", "fusion-only", "explicit", "dysharp", "nvls"),
    ("mh-base", "mh-pkt", "mh-dep", "moe-hub", "comet", "ideal", "dysharp", "hub-sharp"),
    ("moe-hub", "comet", "comet-flux", "tutel", "megatron-a2a", "fastermoe", "ccfuser", "ideal"),
    ("deepep", "deepep-ll", "hybrid-ep", "megamoe", "trtllm-a2a", "mori", "megatron-a2a", "megatron-ag", "tutel"),
)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("systems", BESIDE, ids=" ".join)
def test_systems_of_one_picture_look_different(systems: tuple[str, ...], vision: str) -> None:
    """A distance of 2 is just visible; bars beside each other need several times as much. The four that architects compare need more."""
    apart = {
        (a, b): float(np.linalg.norm(_lab(colour_of(a), vision) - _lab(colour_of(b), vision))) for a, b in itertools.combinations(sorted(systems), 2)
    }
    assert {pair: round(far, 1) for pair, far in apart.items() if far < 16} == {}
    compared = {"dysharp", "moe-hub", "hub-sharp", "deepep"}
    assert {pair: round(far, 1) for pair, far in apart.items() if far < 30 and {*pair} <= compared} == {}


def test_operators_that_run_at_once_are_a_pair() -> None:
    share = np.zeros((3, BINS))
    share[1, : AT_ONCE_BINS + 5] = 0.5
    share[2, 5:] = 0.5
    assert _at_once({(0, 1): share}) == [(1, 2)]
    share[1, :AT_ONCE_BINS] = 0
    assert _at_once({(0, 1): share}) == []


def test_colours_of_operators_are_fixed_for_a_layer_and_paler_for_later_parts() -> None:
    colours = operator_colours(["dispatch", "A.gemm1", "B.gemm1", "exchange"])
    assert colours["dispatch"] == PALETTE[0]
    assert len(set(colours.values())) == 4
