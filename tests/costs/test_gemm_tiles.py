"""Tiles that GEMM libraries choose, against their sources."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.costs.gemm_tiles import Problem, feed, hides_stores, promoted, tiles_of
from dysharp.costs.operators import ELEMENT_BYTES, gemm_us
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu

H100, B200 = load_gpu("h100-sxm"), load_gpu("b200")


def problem(m: float, n: float, k: float, groups: float = 1.0) -> Problem:
    return Problem(*(np.array([x], np.float64) for x in (m, n, k, groups)))


def only(library: str, gpu: object, *shape: float) -> tuple[float, float]:
    (tiles,) = tiles_of(library, gpu, problem(*shape))
    return float(tiles.rows[0]), float(tiles.columns[0])


def test_deepgemm_on_hopper_takes_the_fewest_waves_and_the_fullest_last_wave():
    assert only("deepgemm", H100, 64, 2112, 7168) == (64, 16)  # 132 tiles fill the 132 SMs
    assert only("deepgemm", H100, 128, 7168, 2048) == (64, 112)  # 128 tiles in one wave
    assert only("deepgemm", H100, 4096, 7168, 2048) == (256, 128)
    assert only("deepgemm-contiguous", H100, 8192, 4096, 7168, 4) == (128, 160)
    assert only("deepgemm-masked", H100, 256, 7168, 2048, 4) == (256, 112)


def test_deepgemm_on_blackwell():
    assert only("deepgemm-contiguous", B200, 8192, 4096, 7168, 4) == (128, 128)
    rows, columns = only("deepgemm", B200, 32768, 7168, 16384)
    assert -(-32768 // rows) % 2 == 0 or -(-7168 // columns) % 2 == 0  # pairs of SMs
    assert rows * columns > 128 * 128


@pytest.mark.parametrize(("m", "tile"), [(16, (16, 64)), (64, (64, 64)), (128, (64, 128)), (129, (128, 128))])
def test_cutlass_tiles_follow_the_rows(m: int, tile: tuple[int, int]):
    assert only("cutlass", H100, m, 4096, 4096) == tile


def test_cutlass_on_blackwell():
    assert [only("cutlass", B200, m, 4096, k) for m, k in ((16, 4096), (64, 2048), (64, 4096), (4096, 4096))] == [
        (32, 128),
        (64, 64),
        (64, 128),
        (128, 128),
    ]


def test_shared_memory_feeds_a_square_tile_of_128_on_hopper():
    def part(rows: float, columns: float) -> float:
        return float(feed(H100, "cublas", 2.0, 989e6, np.array([rows]), np.array([columns]))[0])

    assert part(128, 128) == pytest.approx(1.0, rel=1e-3)
    assert part(64, 128) == pytest.approx(2 / 3, rel=1e-3)
    assert part(256, 128) == 1.0


def test_an_untuned_tile_of_fp4_has_no_pair_and_scales_go_with_their_values():
    """TensorRT-LLM: a cluster of one SM, which takes all 256 columns itself; an SM of a pair takes half. A value is 9 bits."""
    peak, side = 1e6 * B200.peak_TFLOPS("fp4"), (np.array([128.0]), np.array([256.0]))
    alone, paired = (float(feed(B200, library, ELEMENT_BYTES["fp4"], peak, *side)[0]) for library in ("cutlass-untuned", "cutlass"))
    clocks = 128 * 256 / (peak / (2 * B200.n_sms * B200.boost_MHz))
    assert alone == pytest.approx(clocks / (2 * (128 + 256) * 9 / 8 / 2 / 128))
    assert paired / alone == pytest.approx((128 + 256) / (128 + 128))


def test_only_deepgemm_on_hopper_scales_its_fp8_sums_itself():
    assert promoted("deepgemm", H100, "fp8", 1979e6) == pytest.approx(0.8, rel=1e-3)
    assert promoted("deepgemm", H100, "bf16", 989e6) == promoted("cublas", H100, "fp8", 1979e6) == promoted("deepgemm", B200, "fp8", 4500e6) == 1.0


def test_scales_of_blocks_on_blackwell():
    """64 weights an instruction: 3.5 clocks of shared memory for one of tensor cores, and lanes that take half a clock more of each (two thirds).
    One layer of DeepSeek-V3 on GB200, 64 experts of 256 rows to 1024: measured 1,079, 1,722, 3,069 and 6,169 us beside DeepGEMM's layers."""
    assert [only("trtllm-gen-blocks", B200, m, 4096, 7168)[0] for m in (1, 9, 64, 1024)] == [8, 16, 64, 64]
    gpu, constants = load_gpu("gb200"), fitted_values()
    for rows, measured in ((256, 1722), (512, 3069), (1024, 6169)):
        own = [float(gemm_us(gpu, constants, rows, n, k, "fp8", library="trtllm-gen-blocks", groups=64)) for n, k in ((4096, 7168), (7168, 2048))]
        assert sum(own) == pytest.approx(measured, rel=0.1)
    peak = 1e6 * B200.peak_TFLOPS("fp8")
    assert promoted("trtllm-gen-blocks", B200, "fp8", peak) == pytest.approx(2 / 3, rel=0.03)
    assert promoted("trtllm-gen", B200, "fp8", peak) == 1


def test_who_hides_stores():
    assert [hides_stores(*case) for case in (("cutlass", H100), ("deepgemm", H100), ("cublas", H100), ("cublas", B200))] == [True, False, False, True]


def test_an_unknown_library():
    with pytest.raises(ConfigError, match=r"GEMM library 'cublass': unknown; did you mean \"cublas\""):
        tiles_of("cublass", H100, problem(1, 1, 1))


AITER = ((16, 1536, 7168, 19.3), (16, 7168, 2048, 8.4), (64, 512, 7168, 17.9), (256, 1536, 7168, 26.1), (2048, 4608, 7168, 195.6))
"""Rows, columns, summed dimension, and measured microseconds (ROCm/aiter a8w8_blockscale_tuned_gemm.csv, 304 units)."""


@pytest.mark.parametrize(("m", "n", "k", "us"), AITER)
def test_composable_kernel_on_cdna_3(m: int, n: int, k: int, us: float):
    assert gemm_us(load_gpu("mi300x"), fitted_values(), m, n, k, "fp8", library="ck") == pytest.approx(us, rel=0.2)


def test_triton_on_cdna_3_is_slow_where_it_does_not_split() -> None:
    """InferenceX issue #863: 64 rows on MI325X take 123, 122, 30, 34, 39 us, whether the shape has an entry or not."""

    def us(m: int, n: int, k: int, library: str = "aiter-triton") -> float:
        return float(gemm_us(load_gpu("mi300x"), fitted_values(), m, n, k, "fp8", library=library))

    measured = {(2112, 7168): 123, (4608, 7168): 122, (3072, 1536): 30, (7168, 2048): 34, (7168, 2304): 39}
    assert [us(64, *shape) for shape in measured] == pytest.approx(list(measured.values()), rel=0.2)
    assert us(32, 7168, 2048, "ck") < us(32, 7168, 2048) < us(33, 7168, 2048) / 2
    assert us(32, 2112, 7168) == pytest.approx(us(64, 2112, 7168), rel=1e-3)
