"""Closed forms of EP kernels and rate forms of collectives against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.costs.collectives import (
    FLIGHT_US,
    KIB,
    LL,
    LL128,
    MIB,
    NVLS,
    NVLS_PART,
    PROTOCOLS,
    SIMPLE,
    collective_us,
    link_us,
    ring_protocol,
    ring_us,
    round_trip_us,
    start_us,
    sync_us,
)
from dysharp.costs.transfer import (
    CHUNK_TOKENS,
    TRT_LAUNCHES,
    alltoall_one_sided_us,
    alltoall_prepare_us,
    alltoall_two_sided_us,
    deepep_combine_us,
    deepep_dispatch_us,
    fifo_copy_us,
    ll_combine_us,
    ll_dispatch_us,
)
from dysharp.specs import list_clusters, load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import Gpu, load_gpu
from dysharp.workload import expected_copies

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
    "nccl.simple_syncs": 2.0,
    "hbm.fraction": 0.5,
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
    # Combine: 8 SMs copy 128 rows at 50 GB/s each; with 80 experts and as many SMs the link is slower.
    copied, link = 64 * 2 * 8000 / 8 / 50e3, 64 * 2 * 8000 * 7 / 8 / 1e5 / 0.5
    assert copied < link
    assert float(ll_combine_us(ROUND, PLAIN, 64, 2, 8000, 8, 8)) == pytest.approx(floor + link)
    slow = PLAIN | {"sm.copy_GBps": 5.0}
    assert float(ll_combine_us(ROUND, slow, 64, 2, 8000, 8, 8)) == pytest.approx(floor + 10 * copied)


def test_trtllm_by_hand():
    floor = TRT_LAUNCHES * 3.0 + 4.0
    assert float(alltoall_prepare_us(ROUND, PLAIN, 100, 8)) == pytest.approx(floor + 1.0)
    # Four copies of 0.02 us for each of 100 tokens; the link's 3 copies are faster, at 0.005 us a copy they are slower.
    assert float(alltoall_two_sided_us(ROUND, PLAIN, 100, 4, 1000, 8, 0.02)) == pytest.approx(floor + 8.0)
    assert float(alltoall_two_sided_us(ROUND, PLAIN, 100, 4, 1000, 8, 0.005)) == pytest.approx(floor + 3.0)
    # One-sided: the own copy crosses no link, and a small kernel fills in metadata first. Combine reads its rows.
    assert float(alltoall_one_sided_us(ROUND, PLAIN, 100, 4, 1000, 8)) == pytest.approx(3.0 + floor + 3.0)
    assert float(alltoall_one_sided_us(ROUND, PLAIN, 100, 4, 1000, 8, reads=True)) == pytest.approx(3.0 + floor + 3.0 + 1.5)


def test_channels_of_the_two_sided_kernel_by_hand():
    """152 SMs: 38 channels of one block for 2 to 8 GPUs, 4 channels of 8 blocks for 64. Few warps are slow each, many share an SM."""
    gpu = load_gpu("gb200")
    numbers = {"trt.copy_us": 1.0, "trt.field_us": 0.1, "trt.lowprec_us": 2.0, "trt.sm_GBps": 10.0}
    two, eight, more = (float(x) for x in fifo_copy_us(gpu, numbers, 10_000, [2, 8, 64]))
    assert (two, eight, more) == pytest.approx((max(2 / 76, 1.1 / 38), 1.1 / 38, 1.1 / 32))
    assert float(fifo_copy_us(gpu, numbers, 10_000, 2, low_precision=True)) == pytest.approx(4 / 76)
    assert float(fifo_copy_us(gpu, numbers, 10_000, 8, fields=2)) == pytest.approx(1.2 / 38)


def test_more_gpus_wait_longer_for_the_last_one():
    """8 = 2^3, so that 64 GPUs, 2^6, wait sqrt(2) times as long, and one GPU waits for nobody."""
    assert sync_us(ROUND, PLAIN, [1, 2, 8, 64]).tolist() == pytest.approx([0.0, 4.0 / 3**0.5, 4.0, 4.0 * 2**0.5])
    more = alltoall_prepare_us(ROUND, PLAIN, 100, [8, 64])
    assert float(more[1] - more[0]) == pytest.approx(4.0 * (2**0.5 - 1))


def test_ring_by_hand():
    """NCCL takes 20.6 of 25 GB/s per link of Hopper, and half of that with LL, where flags lie beside data."""
    rate = 1e5 * 20.6 / 25
    size = 80e6
    assert PROTOCOLS[int(ring_protocol(ROUND, 1, 8, size))] is SIMPLE
    simple = 8.4 + 7 * 3.4 + (size * 7 / 8 + 0.5 * size / 8) / rate
    assert float(collective_us(ROUND, PLAIN, "all_gather", 8, size)) == pytest.approx(simple)
    small = 1e4
    assert PROTOCOLS[int(ring_protocol(ROUND, 1, 8, small))] is LL
    low = 6.6 + 7 * 0.6 + (small * 7 / 8 + 0.5 * small / 8) / rate / 0.5
    assert float(collective_us(ROUND, PLAIN, "reduce_scatter", 8, small)) == pytest.approx(low)


def test_the_start_of_ll_takes_longer_on_two_dies() -> None:
    v, one, two = fitted_values(), load_gpu("h200-sxm"), load_gpu("b200")
    assert [start_us(gpu, v, LL) / LL.start_us for gpu in (one, two)] == pytest.approx([1.0, v["gpu.kernel_us"] / v["attention.light_us"]])
    assert start_us(two, v, SIMPLE) == SIMPLE.start_us


def test_with_little_data_a_hop_of_simple_is_an_exchange_of_flags_and_half_a_chunk():
    slow = PLAIN | {"hopper.sync_us": 80.0}
    size, exchange = 80e6, 2 * 80.0 * (1 / 3) ** 0.5
    hidden = 8.4 + 7 * exchange + ring_us(ROUND, size * 7 / 8 / 2 + 0.5 * size / 8)
    assert float(collective_us(ROUND, slow, "all_gather", 8, size)) == pytest.approx(float(hidden))


def test_the_tuner_takes_ll_then_ll128_then_simple():
    """On eight H100 as NCCL 2.29 does; on Blackwell it never takes LL128."""
    h100, b200 = load_gpu("h100-sxm"), load_gpu("b200")
    sizes = [4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB]
    assert [PROTOCOLS[i] for i in ring_protocol(h100, 1, 8, sizes)] == [LL, LL128, LL128, SIMPLE]
    assert [PROTOCOLS[i] for i in ring_protocol(b200, 1, 8, sizes)] == [LL, LL, SIMPLE, SIMPLE]
    fast = [collective_us(replace(h100, link_GBps=rate), fitted_values(), "all_gather", 8, 1 << 22).item() for rate in (450, 600, 900, 1800)]
    assert fast == sorted(fast, reverse=True)  # more links have more channels: their caps grow
    in_switch = ring_protocol(h100, 2, 8, [MIB, 2 * MIB], in_switch=True)
    assert in_switch.tolist() == [PROTOCOLS.index(LL), NVLS]


def test_in_switch_all_reduce_by_hand_and_from_five_gpus():
    """800 MB on 16 channels and 8 GPUs: turns of 64 KiB chunks, and two turns to fill the pipeline."""
    size, chunks = 800e6, 16 * 8 * 64 * KIB
    turn = 4.0 + chunks * (1 + 1 / 8) / (1e5 * 20.6 / 25) / NVLS_PART["hopper"]
    nvls = 8.4 + (size / chunks + 2) * turn
    assert float(collective_us(ROUND, PLAIN, "all_reduce", 8, size)) == pytest.approx(nvls)
    assert float(collective_us(ROUND, PLAIN, "all_reduce", 8, size, nvls=False)) > nvls
    ring = collective_us(ROUND, PLAIN, "all_reduce", 4, size, nvls=False)
    assert float(collective_us(ROUND, PLAIN, "all_reduce", 4, size)) == float(ring)


def test_alltoall_by_hand():
    """32 channels make chunks of 512 KiB, the last of which an SM takes out alone; the own chunk is a copy in memory."""
    size = 80e6
    last = 512 * KIB / 50e3
    own = 2 * size / 8 / (0.5 * 1e6)
    assert float(collective_us(ROUND, PLAIN, "alltoall", 8, size)) == pytest.approx(8.4 + 3.4 + size * 7 / 8 / 1e5 + own + last)


def test_flights_are_those_of_the_packaged_clusters():
    """A real form takes the flight off the times that contain it, so these packaged clusters have theirs (CDNA 4 has two)."""
    packaged = [one for one in map(load_cluster, list_clusters()) if one.gpu and one.own_gpu.arch in FLIGHT_US]
    assert {one.own_gpu.arch for one in packaged} == set(FLIGHT_US)
    for cluster in packaged:
        assert FLIGHT_US[cluster.own_gpu.arch] == 2 * cluster.link_latency_ps / 1e6
    assert round_trip_us(load_gpu("gb200")) == pytest.approx(2.4)


def test_in_place_copies_no_own_chunk():
    out, inside = (float(collective_us(ROUND, PLAIN, "all_gather", 2, 1e8, in_place=p)) for p in (False, True))
    assert out - inside == pytest.approx(0.5 * 1e8 / 2 / (1e5 * 20.6 / 25))
    assert float(link_us(ROUND, {"link.fraction": 0.5}, 1e6)) == 20.0
