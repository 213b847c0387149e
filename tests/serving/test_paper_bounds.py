"""Bounds of a decode step on the paper's NVL32, worked by hand, and of figure 27's answers."""

from dataclasses import replace

import pytest

from dysharp.specs import load_cluster, load_model, load_whole
from tests.serving.paper_bounds import answer_gain, decode_bound


@pytest.mark.parametrize(
    ("batch", "core", "experts", "one_way", "layer", "free", "merged"),
    [(1, 2, 31, 0.2, 75, 1.03, 1.02), (16, 31, 49, 3.6, 129, 1.08, 1.03), (64, 126, 49, 14.4, 244, 1.14, 1.06), (256, 503, 61, 57, 720, 1.19, 1.08)],
)
def test_a_decode_step(batch: int, core: float, experts: float, one_way: float, layer: float, free: float, merged: float) -> None:
    """DeepSeek-V3's attention, experts of L-8, 32 GPUs, 8,192 cached tokens."""
    model = replace(load_whole("deepseek-v3"), layer=load_model("L-8"))
    got = decode_bound(model, load_cluster("paper-gh200-nvl32"), 32, batch, 8192)
    assert got.attention == pytest.approx(39, rel=0.02)
    assert (got.core, got.experts, got.layer) == (pytest.approx(core, rel=0.03), pytest.approx(experts, rel=0.03), pytest.approx(layer, rel=0.02))
    assert got.one_way == pytest.approx(one_way, rel=0.15)
    assert (got.free, got.merged) == (pytest.approx(free, abs=0.011), pytest.approx(merged, abs=0.011))
    assert got.merged < got.free


def test_an_answer_of_512_tokens() -> None:
    """Prompt of 2,048, 32 requests per GPU: prefill 4.3 s, decode 3.8 s; 1.7 and 1.16 times are bounds, so 1.40 in total."""
    assert answer_gain(4.3, 3.8, 1.7, 1.16) == pytest.approx(1.40, abs=0.02)
    assert answer_gain(1.0, 0.0, 2.0, 9.0) == 2.0
