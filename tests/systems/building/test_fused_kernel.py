"""Tiles of fused kernels: block heights and words that are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import load_cluster, load_model
from dysharp.systems.building.paper_layers import _fused_tiling, begun, tile_rows
from dysharp.systems.facts import Costs, Facts, Layer, Moves
from dysharp.workload import make_routing

MODEL = load_model("S-8")
ROUTING = make_routing("uniform", MODEL, 8, 8)
PAPER = load_cluster("paper-dgx-h100")


@pytest.mark.parametrize(
    ("rows", "high"), [(0.5, 16), (8.5, 16), (8.6, 32), (16.5, 32), (17, 64), (33, 96), (64.6, 128), (96.5, 128), (97, 192), (1e6, 192)]
)
def test_tiles_grow_with_the_rows_of_an_expert(rows: float, high: int) -> None:
    assert tile_rows(rows) == high


def test_a_word_that_is_no_format_of_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"toy\.weights: found 'fp3', expected"):
        _fused_tiling("toy", Layer(MODEL, PAPER, ROUTING, "fwd"), "fp3", None)


@pytest.mark.parametrize("one_kernel", [True, False])
@pytest.mark.parametrize("option", ["weights", "dispatch", "combine"])
def test_a_layer_refuses_unknown_formats(one_kernel: bool, option: str) -> None:
    facts = Facts(source="a test", options=SimpleNamespace, moves=Moves("one_copy_per_gpu"), costs=Costs(permutes=0, fused=one_kernel))
    options = SimpleNamespace(**{"weights": "model", option: "fp3"})
    with pytest.raises(ConfigError, match=rf"toy\.{option}: found 'fp3', expected"):
        begun("toy", facts, Layer(MODEL, PAPER, ROUTING, "fwd"), options)
