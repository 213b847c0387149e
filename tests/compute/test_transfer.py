"""Closed forms of EP kernels and rate forms of collectives against values computed by hand."""

from __future__ import annotations

import pytest

from dysharp.compute.collectives import BASE_US, HOP_US, LOW_HOP_US, collective_us, link_us, sync_us
from dysharp.compute.transfer import (
    CHUNK_TOKENS,
    TRT_LAUNCHES,
    alltoall_one_sided_us,
    alltoall_prepare_us,
    alltoall_two_sided_us,
    deepep_combine_us,
    deepep_dispatch_us,
    expected_copies,
    ll_combine_us,
    ll_dispatch_us,
)
from dysharp.specs.gpu import Gpu

ROUND = Gpu("round", "hopper", 100, 1000.0, 1000.0, 2000.0, 2000.0, 1000.0, 80.0, 50.0, 100.0, "a machine of round numbers")
PLAIN = {
    "gpu.kernel_us": 3.0,
    "link.fraction": 1.0,
    "hopper.sync_us": 4.0,
    "sm.overlap": 1.0,
    "sm.copy_GBps": 50.0,
    "deepep.call_us": 10.0,
    "deepep.token_us": 0.2,
    "deepep.copy_us": 0.1,
    "deepep.reduce_token_us": 0.4,
    "deepep.tokens_in_flight": 8.0,
    "ll.expert_part": 0.01,
    "ll.token_us": 2.0,
    "ll.dispatch_link": 0.5,
    "hopper.ll_combine_link": 0.5,
    "trt.token_us": 0.01,
    "nccl.self_copy": 0.5,
    "nccl.ll_part": 0.5,
    "nccl.simple_syncs": 2.0,
    "nccl.nvls_us": 50.0,
}


def test_expected_copies():
    assert expected_copies(8, 256, 8) == pytest.approx(5.295, abs=1e-3)
    assert expected_copies(4, 256, 8) == pytest.approx(3.61, abs=1e-2)
    assert expected_copies(8, 8, 8) == 8
    assert expected_copies(8, 64, 1) == pytest.approx(1.0)


def test_dispatch_by_hand():
    # 1200 tokens, 2 copies of 5 kB, 10 channels: 120 tokens a channel, one chunk twice; 4 of 8 copies... 7/8 cross the link.
    each = 0.2 + 2 * 5000 / 50e3
    work = (120 + CHUNK_TOKENS) * each
    link = 1200 * 2 * 5000 * 7 / 8 / 1e5
    assert float(deepep_dispatch_us(ROUND, PLAIN, 1200, 2, 5000, 20, 8)) == pytest.approx(18.0 + work + link)
    # A group of warps copies 2 / 8 of the tokens: where that is slower than the SM's bytes it is the pace, but for the last chunk.
    slow = PLAIN | {"deepep.copy_us": 4.0}
    work = 120 * (0.2 + 2 / 8 * 4.0) + CHUNK_TOKENS * each
    assert float(deepep_dispatch_us(ROUND, slow, 1200, 2, 5000, 20, 8)) == pytest.approx(18.0 + work + link)


def test_combine_by_hand():
    each = 0.4 + 2 * 5000 / 50e3
    work = (120 + 8) * each
    link = 1200 * 2 * 5000 * 7 / 8 / 1e5
    assert float(deepep_combine_us(ROUND, PLAIN, 1200, 2, 5000, 20, 8)) == pytest.approx(18.0 + work + link)


def test_low_latency_by_hand():
    # 8 experts: a grid of 8 SMs; 64 tokens are 8 per SM at 2 us each; the link is faster.
    floor = 4.0 * (2 + 8 * 0.01)
    assert float(ll_dispatch_us(ROUND, PLAIN, 64, 2, 1000, 8, 8)) == pytest.approx(floor + 8 * 2.0)
    link = 64 * 2 * 1000 * 7 / 8 / 1e5 / 0.5
    assert float(ll_combine_us(ROUND, PLAIN, 64, 2, 1000, 8, 8)) == pytest.approx(floor + link)


def test_trtllm_by_hand():
    floor = TRT_LAUNCHES * 3.0 + 4.0
    assert float(alltoall_prepare_us(ROUND, PLAIN, 100, 8)) == pytest.approx(floor + 1.0)
    assert float(alltoall_two_sided_us(ROUND, PLAIN, 100, 4, 1000, 8, 0.02)) == pytest.approx(floor + 2.0 + 4.0)
    # One-sided: the own copy crosses no link, and a small kernel fills in metadata first.
    assert float(alltoall_one_sided_us(ROUND, PLAIN, 100, 4, 1000, 8)) == pytest.approx(3.0 + floor + 3.0)


def test_more_gpus_wait_longer_for_the_last_one():
    """8 = 2^3, so that 64 GPUs, 2^6, wait sqrt(2) times as long, and one GPU waits for nobody."""
    assert sync_us(ROUND, PLAIN, [1, 2, 8, 64]).tolist() == pytest.approx([0.0, 4.0 / 3**0.5, 4.0, 4.0 * 2**0.5])
    more = alltoall_prepare_us(ROUND, PLAIN, 100, [8, 64])
    assert float(more[1] - more[0]) == pytest.approx(4.0 * (2**0.5 - 1))


def test_ring_by_hand():
    size = 80e6
    moved = (size * 7 / 8 + 0.5 * size / 8) / 1e5
    simple = BASE_US + 2 * 4.0 + 7 * HOP_US + moved
    assert float(collective_us(ROUND, PLAIN, "all_gather", 8, size)) == pytest.approx(simple)
    small = 1e4
    low = BASE_US + 7 * LOW_HOP_US + (small * 7 / 8 + 0.5 * small / 8) / 1e5 / 0.5
    assert float(collective_us(ROUND, PLAIN, "reduce_scatter", 8, small)) == pytest.approx(low)


def test_in_switch_all_reduce_by_hand_and_from_five_gpus():
    size = 800e6
    nvls = 50.0 + size * (1 + 1 / 8) / 1e5 / 0.85
    assert float(collective_us(ROUND, PLAIN, "all_reduce", 8, size)) == pytest.approx(nvls)
    assert float(collective_us(ROUND, PLAIN, "all_reduce", 8, size, nvls=False)) > nvls
    ring = collective_us(ROUND, PLAIN, "all_reduce", 4, size, nvls=False)
    assert float(collective_us(ROUND, PLAIN, "all_reduce", 4, size)) == float(ring)


def test_in_place_copies_no_own_chunk():
    out, inside = (float(collective_us(ROUND, PLAIN, "all_gather", 2, 1e8, in_place=p)) for p in (False, True))
    assert out - inside == pytest.approx(0.5 * 1e8 / 2 / 1e5)
    assert float(link_us(ROUND, {"link.fraction": 0.5}, 1e6)) == 20.0
