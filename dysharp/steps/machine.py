"""`Machine`: the rates at which one GPU of a step computes and moves bytes, from a cluster. Times are microseconds."""

from dataclasses import dataclass
from typing import Literal

from dysharp.compute.collectives import RING_PART
from dysharp.compute.operators import arch_of, gemm_us, memory_kernel_us, sustained_flops_per_us
from dysharp.specs import Cluster
from dysharp.specs.choices import choice_value
from dysharp.steps.accounting.flops import FLASH_BACKWARD
from dysharp.steps.layout import Layout

ELEMENT_BYTES = {"fp8": 1.0, "bf16": 2.0}


def number(name: str) -> float:
    """A numeric choice."""
    return float(choice_value(name))


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and its fabric. On an hw cluster GEMMs follow `compute.operators`, on a paper cluster tensor and memory peaks."""

    cluster: Cluster

    def gemm(self, m: float, n: float, k: float, dtype: str) -> float:
        """One GEMM [m, k] x [k, n]."""
        if self.cluster.gpu:
            return float(gemm_us(self.cluster.own_gpu, self.cluster.fitted, m, n, k, dtype))
        moved = ELEMENT_BYTES[dtype] * (m * k + n * k) + 2 * m * n
        return max(2 * m * n * k / self.cluster.peak_flops_per_us(dtype), moved / self.cluster.hbm_bytes_per_us)

    def flops(self, count: float, dtype: str) -> float:
        """`count` FLOPs of large GEMMs."""
        if self.cluster.gpu:
            return count / sustained_flops_per_us(self.cluster.own_gpu, self.cluster.fitted, dtype)
        return count / self.cluster.peak_flops_per_us(dtype)

    def memory(self, n_bytes: float) -> float:
        """A kernel that moves `n_bytes` through memory."""
        if self.cluster.gpu:
            return float(memory_kernel_us(self.cluster.own_gpu, self.cluster.fitted, n_bytes))
        return n_bytes / self.cluster.hbm_bytes_per_us

    def attention(self, forward_flops: float, direction: Literal["forward", "backward"]) -> float:
        """A flash kernel whose forward pass has `forward_flops`."""
        part = number(f"step.attention_{direction}_part")
        return (FLASH_BACKWARD if direction == "backward" else 1) * forward_flops / (part * self.cluster.peak_flops_per_us("bf16"))

    @property
    def link(self) -> float:
        """Bytes per microsecond of a ring over the links of a GPU."""
        part = RING_PART[arch_of(self.cluster.own_gpu)] if self.cluster.gpu else 1.0
        return part * self.cluster.link_bytes_per_us

    @property
    def nic(self) -> float:
        """Bytes per microsecond between NVLink domains."""
        return float(self.cluster.scale_out.rate) if self.cluster.scale_out else 1000 * number("step.nic_rate")

    @property
    def domain(self) -> int:
        """GPUs of an NVLink domain."""
        most = self.cluster.max_gpus or self.cluster.n_gpus
        return self.cluster.scale_out.domain_gpus if self.cluster.scale_out else most

    @property
    def hop(self) -> float:
        """Latency of a send between NVLink domains."""
        return self.cluster.scale_out.latency_us if self.cluster.scale_out else number("step.nic_latency_us")

    def group(self, n_bytes: float, size: int, stride: int) -> float:
        """A reduce-scatter or all-gather of `n_bytes` over `size` ranks that are `stride` apart: rates only, no start.

        The members in one domain share the way between domains: each brings its part of the ring's bytes through its own network card.
        """
        if size <= 1:
            return 0.0
        inside = max(1, min(size, self.domain // stride))
        rate = self.link if inside == size else min(self.link, inside * self.nic)
        return n_bytes * (size - 1) / size / rate

    def send(self, n_bytes: float, layout: Layout) -> tuple[float, float]:
        """A send to the next pipeline stage: the time that its link is busy, and the latency beside it."""
        near = layout.gpus <= self.domain
        return n_bytes / (self.link if near else self.nic), self.cluster.link_latency_ps * 2e-6 if near else self.hop
