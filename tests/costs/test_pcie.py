"""GPUs without NVLink: what NCCL, engines and EP kernels do over PCIe, and weights that registers widen."""

import numpy as np
import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.costs.collectives import LL, LL128, PROTOCOLS, SIMPLE, in_switch, ring_protocol
from dysharp.costs.machine import NCCL_AND_OWN, Machine
from dysharp.measured.families.dense_gemm import case, closed_us
from dysharp.measured.measurements import Measurement
from dysharp.specs import load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu

MACHINE = Machine(load_cluster("hw-pcie-l40s"))


def test_nccl_sums_by_rings_of_ll_and_simple() -> None:
    gpu = MACHINE.gpu
    for other in (gpu, load_gpu("a100-sxm"), load_gpu("mi300x")):
        assert not in_switch(other, np.array([2, 8]), nvls=None).any()
    taken = {PROTOCOLS[int(ring_protocol(gpu, 2, 8, size))] for size in np.geomspace(1e3, 1e9, 25)}
    assert taken == {LL, SIMPLE}
    assert LL128 in {PROTOCOLS[int(ring_protocol(load_gpu("h100-sxm"), 2, 8, size))] for size in np.geomspace(1e3, 1e9, 25)}


def test_a_large_all_reduce_takes_the_rate_that_nccl_gives_a_slot() -> None:
    size = 1 << 30
    bus = 2 * 7 / 8 * size / MACHINE.all_reduce(8, size) / 1e3
    assert bus == pytest.approx(31.5 * 12 / 15.75, rel=0.02)


def test_an_engines_own_kernel_sums_two_gpus_alone() -> None:
    assert len(MACHINE.reducing(2, 65536, NCCL_AND_OWN)) > 1
    assert [*MACHINE.reducing(4, 65536, NCCL_AND_OWN)] == ["nccl"]


def test_kernels_over_nvlink_are_refused() -> None:
    with pytest.raises(ConfigError, match="found no NVLink in cluster hw-pcie-l40s, expected alltoall or allgather"):
        dysharp.serve("qwen3-30b", cluster="hw-pcie-l40s", ep_system="deepep")
    with pytest.raises(ConfigError, match="found no sums in the switch of cluster"):
        dysharp.compare(workload="all-reduce:1MiB", cluster="hw-pcie-l40s", systems=["nccl-nvls"])


def _gemm_us(dtype: str, m: int) -> float:
    config = {"m": m, "n": 4096, "k": 4096, "dtype": dtype}
    one = case(Measurement("1", "gemm_dense", "TensorRT-LLM 1.0", "H100-SXM", config, "latency", 1.0, "us", ""))
    return float(closed_us(one, load_gpu(one.gpu), fitted_values()))


def test_weights_alone_in_eight_or_four_bits_save_memory_and_no_products() -> None:
    assert _gemm_us("float16", 16) == _gemm_us("bfloat16", 16)
    assert _gemm_us("int4_wo", 16) < _gemm_us("int8_wo", 16) < _gemm_us("bfloat16", 16)
    assert _gemm_us("int4_wo", 8192) >= _gemm_us("bfloat16", 8192)
