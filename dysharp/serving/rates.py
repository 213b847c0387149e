"""`Rates`: how long one GPU of a machine takes for a kernel of a serving step, in microseconds; equal kernels are computed once."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dysharp.base.arrays import F64
from dysharp.base.errors import ConfigError
from dysharp.base.units import MiB
from dysharp.costs.allreduce import kernel_allreduce_us
from dysharp.costs.attention import Attention, attention_us, decode_us
from dysharp.costs.collectives import collective_us
from dysharp.costs.operators import Constants, gemm_us, hbm_us, launch_us, memory_kernel_us
from dysharp.specs import Cluster

Key = tuple[object, ...]


class Reducers(NamedTuple):
    """All-reduce kernels of an engine (`costs.allreduce.KERNELS`) up to `most` bytes, one that sums in the switch up to `most_in_switch`
    bytes, and NCCL, with its form in the switch where `nvls` allows that. The fastest allowed kernel runs."""

    kernels: tuple[str, ...] = ("vllm one-stage", "vllm two-stage")
    most: float = 8 * MiB
    in_switch: str = ""
    most_in_switch: float = 0.0
    nvls: bool = True


NCCL_AND_OWN = Reducers()


class Rates:
    """Kernels of one machine, at the power of a long run or (`steady` false) of a benchmark. Raises `ConfigError` for a cluster without `gpu`, whose
    kernels have no constants."""

    def __init__(self, cluster: Cluster, constants: Constants | None = None, *, steady: bool = True) -> None:
        if not cluster.gpu:
            raise ConfigError(f"cluster {cluster.name}: found no gpu, expected a cluster of real GPUs such as hw-dgx-h200")
        self.cluster, self.gpu, self.constants, self.steady = cluster, cluster.own_gpu, constants or cluster.fitted, steady
        self._kept: dict[Key, float] = {}

    def _once(self, key: Key, time: Callable[[], object]) -> float:
        if key not in self._kept:
            self._kept[key] = float(time())  # type: ignore[arg-type]
        return self._kept[key]

    @property
    def floor(self) -> float:
        """A kernel with nothing to move."""
        return launch_us(self.gpu, self.constants)

    def memory(self, n_bytes: float) -> float:
        """A memory-bound kernel that reads and writes `n_bytes`."""
        return float(memory_kernel_us(self.gpu, self.constants, n_bytes))

    def stream(self, n_bytes: float) -> float:
        """`n_bytes` through memory, without a launch."""
        return float(hbm_us(self.gpu, self.constants, n_bytes))

    def gemm(self, m: float, n: float, k: float, dtype: str, weight_bytes: float) -> float:
        """A dense GEMM [m, k] x [k, n] with weights of `weight_bytes`; weights wider or narrower than the products change its memory alone."""
        return self._once(("gemm", m, n, k, dtype, weight_bytes), lambda: self._gemm(m, n, k, dtype, weight_bytes))

    def _gemm(self, m: float, n: float, k: float, dtype: str, weight_bytes: float) -> float:
        time = float(gemm_us(self.gpu, self.constants, m, n, k, dtype, library="deepgemm", steady=self.steady))
        return max(time, self.floor + self.stream(weight_bytes * n * k))

    def experts(self, m: float, groups: float, n: float, k: float, dtype: str, weight_bytes: float, levels: tuple[float, ...] = (1.0,)) -> float:
        """A grouped GEMM: `groups` experts with `m` rows each on average, times each of `levels`: last tiles are filled unevenly."""
        key = ("experts", m, groups, n, k, dtype, weight_bytes, levels)
        return self._once(key, lambda: self._experts(m * np.array(levels), groups, n, k, dtype, weight_bytes))

    def _experts(self, m: F64, groups: float, n: float, k: float, dtype: str, weight_bytes: float) -> float:
        products = gemm_us(self.gpu, self.constants, m, n, k, dtype, library="deepgemm-masked", groups=groups, steady=self.steady)
        return max(float(np.mean(products)), self.floor + self.stream(weight_bytes * n * k * groups) / self.constants["serving.experts_stream"])

    def all_reduce(self, n: int, n_bytes: float, reducers: Reducers) -> float:
        """An all-reduce of `n_bytes` over `n` GPUs of a domain."""
        if n == 1:
            return 0.0
        return self._once(("all-reduce", n, n_bytes, reducers), lambda: self._all_reduce(n, n_bytes, reducers))

    def _all_reduce(self, n: int, n_bytes: float, reducers: Reducers) -> float:
        return min(self.reducing(n, n_bytes, reducers).values())

    def reducing(self, n: int, n_bytes: float, reducers: Reducers) -> dict[str, float]:
        """Times of the kernels that may sum `n_bytes`, by name; NCCL is "nccl"."""
        names = reducers.kernels if n_bytes <= reducers.most else ()
        names += (reducers.in_switch,) if n_bytes <= reducers.most_in_switch else ()
        own = {name: float(kernel_allreduce_us(self.gpu, self.constants, name, n, n_bytes, 0)) for name in names}
        nvls = None if reducers.nvls else False
        return own | {"nccl": float(collective_us(self.gpu, self.constants, "all_reduce", n, n_bytes, nvls=nvls, in_place=True))}

    def collective(self, kind: str, n: int, n_bytes: float) -> float:
        """An all-gather or reduce-scatter of NCCL over `n` GPUs; `n_bytes` as in `costs.collectives`."""
        return self._once((kind, n, n_bytes), lambda: collective_us(self.gpu, self.constants, kind, n, n_bytes, in_place=True)) if n > 1 else 0.0

    def decode(self, call: Attention) -> float:
        """Attention of a few queries per request over a cache."""
        return self._once(("decode", call), lambda: decode_us(self.gpu, self.constants, call))

    def prefill(self, call: Attention) -> float:
        """Attention of prompts."""
        return self._once(("prefill", call), lambda: attention_us(self.gpu, self.constants, call))


@lru_cache(maxsize=32)
def rates_of(cluster: Cluster) -> Rates:
    """The rates of a machine, shared by all who ask."""
    return Rates(cluster)
