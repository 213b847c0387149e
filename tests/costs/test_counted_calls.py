"""Numbers that count a list: the list, item by item, beside the number."""

from __future__ import annotations

import pytest

from dysharp.costs import moe
from dysharp.protocol.reduction import REDUCTION_BUFFER
from dysharp.silicon.cluster_area import published
from dysharp.specs import load_cluster

MLP = ("copy of the counts", "scatter: offsets", "scatter: rows", "GEMM", "activation", "quantise", "GEMM", "gather")
LAYER = ("router GEMM", "top-k", "layout", "notify", "dispatch", "notify of combine", "combine", "weighting")


@pytest.mark.parametrize(
    ("found", "calls"),
    [
        (moe.MLP_CALLS["hopper"], (*MLP, "alignment of scales", "alignment of scales")),
        (moe.MLP_CALLS["blackwell"], (*MLP, "packed scales cleared")),
        (moe.FIRST_CALLS, (*MLP[:3], "alignment of scales", "GEMM")),
        (moe.LAYER_CALLS, LAYER),
        (moe.LINEAR_CALLS, ("quantise", "GEMM")),
    ],
)
def test_host_calls_are_those_of_a_list(found: float, calls: tuple[str, ...]) -> None:
    assert found == len(calls)


def test_published_areas_stand_beside_the_bits_that_the_papers_give() -> None:
    """CAIS: 40 KiB in each of eight ports. DySHARP: a reduction entry of 128 bytes."""
    by = {row.name: row for row in published(load_cluster("paper-gh200-nvl32"))}
    assert by["CAIS, switch"].more_bits == 8 * 40 * 1024 * 8
    assert REDUCTION_BUFFER.entry.bits == 128 * 8
