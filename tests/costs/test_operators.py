"""Formulas of operator time against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.costs.moe import eager_mlp_us, expert_mlp_us, fused_layer_us, host_us, layer_us, linear_us
from dysharp.costs.operators import (
    gemm_us,
    grouped_gemm_us,
    hbm_us,
    kept_part,
    launch_us,
    light_us,
    memory_kernel_us,
    overlap,
    quantise_us,
    sustained_flops_per_us,
)
from dysharp.specs import load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import Gpu, list_gpus, load_gpu

H100 = load_gpu("h100-sxm")
ROUND = Gpu("round", "hopper", 100, 1000.0, 1000.0, 2000.0, 2000.0, 1000.0, 80.0, 50.0, 100.0, "a machine of round numbers")
"""100 SMs, 1000 TFLOP/s BF16, 1 TB/s, 100 GB/s."""
PLAIN = {
    "hbm.fraction": 1.0,
    "gpu.kernel_us": 3.0,
    "hopper.bf16_sustained": 1.0,
    "hopper.fp8_sustained": 0.5,
    "gemm.tile_us": 0.0,
    "sm.overlap": 1.0,
    "sm.permute_bytes": 1e9,
    "sm.quantise_values": 1e9,
    "link.fraction": 1.0,
    "hopper.sync_us": 4.0,
    "fused.barriers": 2.0,
    "fused.rate": 1.0,
    "fused.tile_us": 0.0,
    "round.host_call_us": 10.0,
    "attention.light_us": 1.0,
}
"""No losses, and costs that simply add up."""


def test_hbm_time_is_bytes_over_the_reached_bandwidth():
    assert hbm_us(ROUND, {"hbm.fraction": 0.5}, 1_000_000) == 2.0  # 1 MB at 0.5 TB/s
    assert memory_kernel_us(ROUND, PLAIN, 5_000_000) == 8.0  # start 3 us


def test_overlap_goes_from_sum_to_maximum():
    assert overlap(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert overlap(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert overlap(3.0, 4.0, 200.0) == pytest.approx(4.0)


LAST_STORES = 2 * 128 * 128 * 100 / 1e6
"""us in which 100 SMs store a tile each at 1 TB/s."""


def test_gemm_of_one_full_wave():
    # 100 tiles of 128 x 128 on 100 SMs. An SM multiplies 5000 pairs per clock: 16384 / 5000 clocks for each of the 1000 steps.
    # Shared memory takes 2 * 256 * 2 B / 128 B = 8 clocks a step, so it sets the time. A, B and C go through HBM.
    # The tiles of the last wave are stored when no product is left beside them.
    compute = 8 * 1000 / 1000.0 + LAST_STORES
    memory = (2 * (12800 * 1000 + 128 * 1000) + 2 * 12800 * 128) / 1e6
    assert float(gemm_us(ROUND, PLAIN, 12800, 128, 1000, "bf16", library="cutlass")) == pytest.approx(3.0 + compute + memory)


def test_a_split_ends_with_a_second_kernel() -> None:
    """16 tiles of 64 x 64 on 100 SMs: six parts of the sum each, whose results a light kernel adds."""
    shape = (64, 1024, 60000)
    split, alone = (float(gemm_us(ROUND, PLAIN | {"attention.light_us": light}, *shape, "bf16")) for light in (1.0, 3.0))
    assert alone - split == pytest.approx(2.0)
    two_dies = replace(ROUND, arch="blackwell")
    assert (light_us(ROUND, PLAIN), light_us(two_dies, PLAIN)) == (1.0, PLAIN["gpu.kernel_us"])


def test_power_limits_a_busy_gpu_but_not_a_small_gemm():
    weak = PLAIN | {"hopper.bf16_sustained": 0.1}
    shape = (12800, 128, 1000)
    powered = 2 * 12800 * 128 * 1000 / 1e8
    strong, limited = (float(gemm_us(ROUND, c, *shape, "bf16", library="cutlass")) for c in (PLAIN, weak))
    assert limited - strong == pytest.approx(powered - 8.0 - LAST_STORES)
    one_tile = [float(gemm_us(ROUND, c, 128, 128, 1000, "bf16", library="cutlass")) for c in (PLAIN, weak)]
    assert one_tile[0] == one_tile[1]


def test_hopper_stores_tiles_between_them_where_one_group_of_warps_works():
    """Two waves: the stores of the last one stand behind all products."""
    c = PLAIN | {"sm.overlap": 300.0, "hbm.fraction": 100.0}
    deep, cut = (float(gemm_us(ROUND, c, 25600, 128, 1 << 14, "bf16", library=name)) for name in ("deepgemm-contiguous", "cutlass"))
    assert deep - cut == pytest.approx(2 * 128 * 128 * 100 / 1e8)


def test_gemm_pays_whole_waves():
    one, more = (float(gemm_us(H100, fitted_values(), m, 4096, 4096, "bf16")) for m in (1024, 1025))
    assert more > one
    assert float(gemm_us(H100, fitted_values(), 1024, 4096, 8192, "bf16")) > one


def test_gemm_broadcasts_and_grows():
    times = gemm_us(H100, fitted_values(), np.array([128, 4096, 32768]), 4096, 7168, "fp8")
    assert times.shape == (3,)
    assert (np.diff(times) > 0).all()


def test_split_k_helps_a_small_output():
    with_split, without = (float(gemm_us(H100, fitted_values(), 128, 2048, 7168, "fp8", library=name)) for name in ("cublas", "cutlass"))
    assert with_split < without


def test_grouped_gemm_pads_each_expert():
    constants = PLAIN | {"sm.overlap": 300.0, "hopper.fp8_sustained": 1.0, "hbm.fraction": 100.0}
    full, ragged = (float(grouped_gemm_us(ROUND, constants, rows, 50, 512, 16384, "fp8")) for rows in (256, 129))
    assert ragged == pytest.approx(full)  # 129 rows need two row tiles like 256, and tensor cores set the time


def test_a_cast_is_limited_by_memory_or_by_the_sm():
    assert float(quantise_us(ROUND, PLAIN, 1e6)) == pytest.approx(3.0 + 3.0)  # 3 B for each of 1e6 values at 1 TB/s
    assert float(quantise_us(ROUND, PLAIN | {"sm.quantise_values": 1.0}, 1e6)) == pytest.approx(3.0 + 10.0)  # 100 SMs, 1 GHz


def test_a_gpu_below_its_power_runs_at_its_peak():
    h20, c = load_gpu("h20"), fitted_values()
    assert sustained_flops_per_us(h20, c, "fp8") == h20.fp8_TFLOPS * 1e6
    assert sustained_flops_per_us(H100, c, "fp8") == pytest.approx(c["hopper.fp8_sustained"] * H100.fp8_TFLOPS * 1e6, rel=1e-3)


def test_the_clock_under_power_goes_as_the_cube_root() -> None:
    """GB300's, beside B200's, with 1400 and 1000 W for 152 and 148 SMs. GB200's known clock is what its 1200 W say within 0.5 %."""
    c = fitted_values()
    b200, gb200, gb300, b300 = (sustained_flops_per_us(load_gpu(name), c, "bf16") for name in ("b200", "gb200", "gb300", "b300"))
    assert gb300 / b200 == pytest.approx(1.4 ** (1 / 3) * (152 / 148) ** (2 / 3))
    assert gb200 / b200 == pytest.approx(1.2 ** (1 / 3) * (152 / 148) ** (2 / 3), rel=0.005)
    assert b300 == b200


def test_another_rate_of_bf16_does_not_change_fp8():
    """The clock follows from the datasheet: a variant's BF16 rate says nothing about FP8."""
    c = fitted_values()
    for dtype, other in (("fp8", "bf16_TFLOPS"), ("bf16", "fp8_TFLOPS")):
        for part in (0.5, 2.0):
            changed = replace(H100, **{other: part * getattr(H100, other)})
            assert sustained_flops_per_us(changed, c, dtype) == sustained_flops_per_us(H100, c, dtype)
    more = replace(H100, n_sms=2 * H100.n_sms)
    assert sustained_flops_per_us(more, c, "fp8") == sustained_flops_per_us(H100, c, "fp8")


def test_host_is_on_the_path_when_it_is_slower():
    assert host_us(ROUND, PLAIN, 3) == 30.0
    assert float(linear_us(ROUND, PLAIN, 1.0, 1, 1)) == 20.0  # two launches
    assert float(linear_us(ROUND, PLAIN, 500.0, 1, 1)) == pytest.approx(503.0, rel=1e-3)
    assert float(layer_us(ROUND, PLAIN, 100.0)) == 280.0  # 10 launches of the MLP and 8 others are not hidden


def test_eager_mlp_is_launch_bound_when_small_and_exposes_the_first_launches_when_large():
    assert float(eager_mlp_us(ROUND, PLAIN, 1, 1, 1, 128, 128)) == 100.0
    device = 2 * 3.0 + float(expert_mlp_us(ROUND, PLAIN, 4096, 8, 4096, 2048, "fp8"))
    large = float(eager_mlp_us(ROUND, PLAIN, 4096, 8, 0, 4096, 2048))
    moved = 4096 * 8 * 4096 * (1 + 4 / 128 + 2) / 1e6
    assert large == pytest.approx(device + moved + 50.0)


def test_fused_layer_by_hand():
    # One rank of two, one expert with 160 rows, H 128, I 64, FP8: compute, weights and link add up at power 1.
    time = fused_layer_us(
        ROUND, PLAIN, rows=160, touched=1, hidden=128, inter=64, gpus=2, dispatch_bytes=128, combine_bytes=256, weight_bytes=1.0, rate_dtype="fp8"
    )
    compute, stream = 2 * 160 * 3 * 128 * 64 / 1e9, 3 * 128 * 64 / 1e6
    link = 80 * (128 + 256) / 1e5
    barriers = 2.0 * 4.0 / 3**0.5  # of two GPUs; the constant is of eight
    assert float(time) == pytest.approx(3.0 + barriers + max(compute, stream) + link)


def test_every_packaged_gpu_loads_and_has_a_source():
    for name in list_gpus():
        gpu = load_gpu(name)
        assert gpu.name == name
        assert gpu.source
        assert launch_us(gpu, fitted_values()) > 0
        assert gpu.peak_TFLOPS("bf16") <= gpu.peak_TFLOPS("fp8") <= gpu.peak_TFLOPS("fp4")


def test_unknown_gpu_and_dtype():
    with pytest.raises(ConfigError, match=r"unknown gpu 'h100-sxm5'; did you mean \"h100-sxm\""):
        load_gpu("h100-sxm5")
    with pytest.raises(ConfigError, match="no peak for dtype 'int8'"):
        H100.peak_TFLOPS("int8")


@pytest.mark.parametrize("library", ["cublas", "cutlass", "deepgemm"])
def test_more_sms_do_not_slow_a_gemm_of_one_tile(library):
    """An SM stores a tile at its share of the datasheet's memory rate; SMs without a tile take none of it."""
    few, many = (replace(H100, n_sms=n * H100.n_sms, bf16_TFLOPS=n * H100.bf16_TFLOPS) for n in (1, 4))
    assert gemm_us(many, fitted_values(), 64, 64, 512, "bf16", library=library) <= gemm_us(few, fitted_values(), 64, 64, 512, "bf16", library=library)


@pytest.mark.parametrize(
    ("cluster", "dtype", "published"),
    [
        ("hw-mi300x", "bf16", 708), ("hw-mi300x", "fp8", 1273), ("hw-mi325x", "bf16", 843), ("hw-mi325x", "fp8", 1519),
        ("hw-mi350x", "bf16", 1445), ("hw-mi350x", "fp8", 3028), ("hw-mi355x", "bf16", 1613), ("hw-mi355x", "fp8", 2905),
    ],
)  # fmt: skip
def test_amd_gpus_reach_what_amd_publishes(cluster: str, dtype: str, published: float) -> None:
    """TFLOPS of large GEMMs under power (AMD, Measuring Max-Achievable FLOPs, part 2; TraceLens, arch/), in long runs too."""
    machine = load_cluster(cluster)
    gpu, n = machine.own_gpu, 16384.0
    rate = sustained_flops_per_us(gpu, machine.fitted, dtype) * kept_part(gpu, machine.fitted, dtype, "cublas") / 1e6
    assert rate == pytest.approx(published, rel=1e-3)
    whole = 2 * n**3 / float(gemm_us(gpu, machine.fitted, n, n, n, dtype)) / 1e6
    assert 0.85 * published < whole < 1.001 * published


def test_a_cluster_has_its_own_constants_before_those_of_its_gpu() -> None:
    own = replace(load_cluster("hw-mi300x"), constants=(("hbm.fraction", 0.9),)).fitted
    assert (own["hbm.fraction"], own["hopper.bf16_sustained"]) == (0.9, 0.5417)
    assert load_cluster("hw-dgx-h100").fitted == fitted_values()
