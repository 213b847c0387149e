"""`Machine`: the rates at which one GPU of a step computes and moves bytes, from a cluster. Times are microseconds."""

import functools
from dataclasses import dataclass
from typing import Literal

from dysharp.costs.attention import BACKWARD_PRODUCTS, Attention, attention_flops, attention_us
from dysharp.costs.collectives import RING_PART, collective_us
from dysharp.costs.linear_attention import BACKWARD_PASSES, PASSES, DeltaNet, gradient_us, prefill_us
from dysharp.costs.operators import arch_of, gemm_us, launch_us, sustained_flops_per_us
from dysharp.model.layout import Layout
from dysharp.specs import Cluster
from dysharp.specs.choices import choice_value
from dysharp.specs.fitted import Overrides, fitted_values
from dysharp.specs.gpu import Gpu

Direction = Literal["forward", "backward"]
ELEMENT_BYTES = {"fp8": 1.0, "bf16": 2.0}
STREAM, PERMUTE = 0.666, 0.5
"""Parts of the datasheet's memory rate that kernels of a training framework reach, and those that move rows to other places (SimuMax 4dcaae5,
configs/system/b200_bf16_ceperm.json)."""
KEPT = {
    ("hopper", "bf16"): 701 / 798, ("hopper", "fp8"): 701 / 798, ("hopper", "fp4"): 701 / 798, ("blackwell", "bf16"): 0.708,
    ("blackwell", "fp8"): 1.0, ("blackwell", "fp4"): 1.0,
}  # fmt: skip
"""Part of its benchmark rate that a GEMM keeps in long runs, from measured GEMMs. Hopper: 701 TFLOPS at large M (DeepGEMM's table of BF16) over
`hopper.bf16_sustained`, for FP8 too. Blackwell: median of SimuMax's 86 BF16 GEMMs on a B200 over `costs.operators.gemm_us`; FP8 rates of
benchmarks are 0.53 of the peak already, and no row of long FP8 GEMMs is known."""


BLOCK_SCALED = 7.161 / 6.812
"""Time of GEMMs with a scale per 32 elements (MXFP8) over that with a scale per tensor: the 12 products of a layer on a B300, operands quantised
before (Transformer Engine, docs/examples/gemm_profiling)."""


@functools.lru_cache(maxsize=1 << 14)
def _gemm(gpu: Gpu, constants: Overrides, m: float, n: float, k: float, dtype: str, groups: int) -> float:
    return float(gemm_us(gpu, fitted_values(constants), m, n, k, dtype, groups=groups))


def number(name: str) -> float:
    """A numeric choice."""
    return float(choice_value(name))


@functools.lru_cache(maxsize=1 << 12)
def _attention(gpu: Gpu, constants: Overrides, call: Attention, direction: Direction) -> float:
    return float(attention_us(gpu, fitted_values(constants), call, direction))


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and its fabric. On an hw cluster GEMMs follow `costs.operators`, on a paper cluster tensor and memory peaks."""

    cluster: Cluster

    @property
    def arch(self) -> str:
        """Architecture of the GPU; "" on a paper cluster."""
        return arch_of(self.cluster.own_gpu) if self.cluster.gpu else ""

    def gemm(self, m: float, n: float, k: float, dtype: str, groups: int = 1, accumulate: bool = False) -> float:
        """`groups` GEMMs [m, k] x [k, n] at once. `accumulate`: onto FP32 sums in memory (weight gradients)."""
        kind = "fp8" if dtype == "mxfp8" else dtype
        sums = 8.0 * groups * m * n if accumulate else 0.0
        if not self.cluster.gpu:
            moved = groups * (ELEMENT_BYTES[kind] * (m * k + n * k) + 2 * m * n) + sums
            return max(groups * 2 * m * n * k / self.cluster.peak_flops_per_us(kind), moved / self.cluster.hbm_bytes_per_us)
        alone = _gemm(self.cluster.own_gpu, self._operators, m, n, k, kind, groups)
        kept = KEPT[arch_of(self.cluster.own_gpu), kind]
        powered = groups * 2 * m * n * k / (kept * sustained_flops_per_us(self.cluster.own_gpu, self.cluster.fitted, kind))
        return (BLOCK_SCALED if dtype == "mxfp8" else 1.0) * max(alone, powered) + sums / self.cluster.hbm_bytes_per_us

    def flops(self, count: float, dtype: str) -> float:
        """`count` FLOPs of large GEMMs."""
        if self.cluster.gpu:
            return count / sustained_flops_per_us(self.cluster.own_gpu, self.cluster.fitted, dtype)
        return count / self.cluster.peak_flops_per_us(dtype)

    def memory(self, n_bytes: float, part: float = STREAM) -> float:
        """A kernel that moves `n_bytes` through memory; `part`: of the datasheet's rate (hw clusters)."""
        if self.cluster.gpu:
            return self.small(1) + n_bytes / (part * self.cluster.hbm_bytes_per_us)
        return n_bytes / self.cluster.hbm_bytes_per_us

    def attention(self, call: Attention, direction: Direction) -> float:
        """A flash kernel. On a paper cluster it runs at a chosen part of the BF16 peak."""
        if self.cluster.gpu:
            return _attention(self.cluster.own_gpu, self._operators, call, direction)
        part = number(f"step.attention_{direction}_part")
        again = BACKWARD_PRODUCTS if direction == "backward" else 1
        return again * float(attention_flops(call)) / (part * self.cluster.peak_flops_per_us("bf16"))

    def delta_net(self, call: DeltaNet, direction: Direction) -> float:
        """The kernels of a gated delta net. On a paper cluster they pass through memory, and no chunk waits."""
        if self.cluster.gpu:
            return (prefill_us if direction == "forward" else gradient_us)(self.cluster.own_gpu, self.cluster.fitted, call)
        return self.memory((PASSES if direction == "forward" else BACKWARD_PASSES) * call.sequences * call.tokens * call.row_bytes)

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

    def launch(self, calls: float, looped: float, direction: Direction) -> float:
        """Host time of `calls` operations of a training framework and of `looped` kernels that some of them launch; 0 on a paper cluster."""
        fitted = self.cluster.fitted
        once = "training.forward_us" if direction == "forward" else "training.launch_us"
        return calls * fitted[once] + looped * fitted["training.launch_us"] if self.cluster.gpu else 0.0

    def small(self, kernels: float) -> float:
        """Device time of `kernels` that move next to nothing."""
        return kernels * launch_us(self.cluster.own_gpu, self.cluster.fitted) if self.cluster.gpu else 0.0

    @property
    def _operators(self) -> Overrides:
        """Own constants of the cluster that operators depend on."""
        return tuple(one for one in self.cluster.constants if not one[0].startswith("training."))

    @property
    def wait(self) -> float:
        """Wait for the last rank of a collective on which computing waits."""
        return self.cluster.fitted["training.wait_us"] if self.cluster.gpu else 0.0

    def collective(self, kind: Literal["all_gather", "reduce_scatter", "alltoall"], n_bytes: float, size: int, stride: int) -> float:
        """A collective that computing waits for, with the wait for the last rank. `n_bytes`: gathered, scattered, or per rank (alltoall)."""
        if size <= 1:
            return 0.0
        near = size * stride <= self.domain
        if not self.cluster.gpu or not near:
            return self.group(n_bytes, size, stride)
        return self.wait + float(collective_us(self.cluster.own_gpu, self.cluster.fitted, kind, size, n_bytes))

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
