"""`Machine`: how long one GPU of a cluster takes for an operator, in microseconds. The one clock of training, serving and plans.

On an hw cluster times are the closed forms of this folder, which measurements judge; on a paper cluster they are tensor and memory peaks.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from dysharp.base import Amounts, MiB, Texts
from dysharp.costs.allreduce import kernel_allreduce_us
from dysharp.costs.attention import AttentionCall, Direction, attention_flops, attention_us, decode_us
from dysharp.costs.collectives import collective_us, rail_rings_us, ring_part, ring_tuned_us, tree_protocol
from dysharp.costs.linear_attention import BACKWARD_PASSES, PASSES, DeltaNet, gradient_us, prefill_us, update_us
from dysharp.costs.operators import ELEMENT_BYTES, Constants, arch_of, fp32_us, gemm_us, hbm_us, kept_part, launch_us, sustained_flops_per_us
from dysharp.costs.regime import Name, Regime, regime_of
from dysharp.model import FORMATS, Layout
from dysharp.specs import Cluster, Gpu, choice_value

CDNA_SMALL_US = 4.5
"""A kernel without products in a decode step on CDNA 3 (vLLM PR #40009: norms of DeepSeek on MI3xx take 4 to 5 us)."""
BLOCK_SCALED = 7.161 / 6.812
"""Time of GEMMs with a scale per 32 elements (MXFP8) over that with a scale per tensor: the 12 products of a layer on a B300, operands quantised
before (Transformer Engine, docs/examples/gemm_profiling)."""


CAST_BYTES = {"fp8": 6.0, "mxfp8": 4 + 2 / 32, "fp4": 5.0}
"""Bytes of memory per element where a backward pass follows: BF16 is read (for a scale per tensor once before), copies by row and by column are
written, with MX scales."""
READ_ONCE = {"fp8": 3.0, "mxfp8": 3.0, "fp4": 3.0}
"""The same where one copy is written."""
ANY_LAYOUT = ("blackwell",)
"""Architectures whose GEMMs take FP8 with one scale per tensor in any layout, so that no copy by column is written (Transformer Engine,
nvte_is_non_tn_fp8_gemm_supported)."""


NO_DEEPGEMM = {"cdna3": "ck", "cdna4": "cublas", "ada": "cutlass"}
"""What multiplies instead where DeepGEMM has no kernels (its README: Hopper and Blackwell with tensor memory). CDNA 4's matrix cores apply scales of
blocks themselves (V_MFMA_SCALE of its ISA), as tiles of `cublas` have it."""


WIDENED_ROWS = 16
"""Steps of the heights of tiles that widen weights (`gemm_tiles.MARLIN_TILES`)."""
OPTIMIZER = 0.666
"""Part of the datasheet's memory rate that kernels of an optimizer reach (SimuMax 4dcaae5, configs/system/b200_bf16_ceperm.json)."""


class Reducers(NamedTuple):
    """All-reduce kernels of an engine (`allreduce.KERNELS`) up to `most` bytes, one that sums in the switch up to `most_in_switch` bytes, and NCCL,
    with its form in the switch where `nvls` allows that. The fastest allowed kernel runs."""

    kernels: Texts = ("vllm one-stage", "vllm two-stage")
    most: float = 8 * MiB
    in_switch: str = ""
    most_in_switch: float = 0.0
    nvls: bool = True


NCCL_AND_OWN = Reducers()
PCIE_OWN = 2
"""Most GPUs without NVLink that an engine's own all-reduce takes (vLLM custom_all_reduce.py; SGLang has the same file)."""


def number(name: str) -> float:
    """A numeric choice."""
    return float(choice_value(name))


@dataclass(frozen=True)
class Machine:
    """A GPU and its fabric under a regime. Equal kernels are computed once."""

    cluster: Cluster
    regime: Regime = field(default_factory=lambda: regime_of("training"))
    _kept: dict[Hashable, float] = field(default_factory=dict, compare=False, repr=False)

    def _once(self, key: Hashable, time: Callable[[], object]) -> float:
        if key not in self._kept:
            self._kept[key] = float(time())  # type: ignore[arg-type]
        return self._kept[key]

    @cached_property
    def gpu(self) -> Gpu:
        """The datasheet. Raises `ConfigError` for a cluster without `gpu`, whose kernels have no constants."""
        return self.cluster.own_gpu

    @cached_property
    def constants(self) -> Constants:
        """Fitted constants of the machine."""
        return self.cluster.fitted

    @cached_property
    def arch(self) -> str:
        """Architecture of the GPU; "" on a paper cluster."""
        return arch_of(self.gpu) if self.cluster.gpu else ""

    def products(self, wanted: str) -> str:
        """Type in which the GPU multiplies: NVFP4, MXFP8 and MXFP4 by FP8 ("w4a8") only where its tensor cores have FP4, and so scale blocks, of
        which AMD's know none of NVFP4; else engines widen weights to BF16 (vLLM, marlin_utils_fp4.py: "Weight-only FP4 compression will be used";
        PR 53709; on ROCm PR 35733); Ampere has BF16 alone."""
        own = {"mxfp4": "fp4", "w4a8": "fp8"}.get(wanted, wanted)
        if not self.cluster.gpu:
            return "fp8" if own == "fp4" else own
        lacks = self.gpu.fp4_TFLOPS <= self.gpu.fp8_TFLOPS or (wanted == "fp4" and self.gpu.arch.startswith("cdna"))
        return "bf16" if self.gpu.arch == "ampere" or (wanted in ("fp4", "mxfp4", "mxfp8", "w4a8") and lacks) else own

    def cast_bytes(self, dtype: str) -> float:
        """Bytes of memory per element that is cast from BF16 for products in `dtype`."""
        if not self.cluster.gpu:
            return 0.0  # no paper names casts
        per = (CAST_BYTES if self.regime.transposed else READ_ONCE).get(dtype, 0.0)
        return per - (self.regime.transposed and dtype == "fp8" and self.arch in ANY_LAYOUT)

    # Kernels of one GPU

    @cached_property
    def floor(self) -> float:
        """A kernel with nothing to move; 0 on a paper cluster."""
        return launch_us(self.gpu, self.constants) if self.cluster.gpu else 0.0

    @cached_property
    def least(self) -> float:
        """As `floor`, of a kernel without products."""
        return CDNA_SMALL_US if self.cluster.gpu and self.gpu.arch == "cdna3" and self.regime.name == "serving" else self.floor

    def small(self, kernels: float) -> float:
        """`kernels` kernels that move next to nothing."""
        return kernels * self.least

    def stream(self, n_bytes: float) -> float:
        """`n_bytes` through memory, without a start."""
        if not self.cluster.gpu:
            return n_bytes / self.cluster.hbm_bytes_per_us
        return float(hbm_us(self.gpu, self.constants, n_bytes))

    def memory(self, n_bytes: float, kernels: int = 1) -> float:
        """`kernels` kernels that read and write `n_bytes` in all."""
        return kernels * self.least + self.stream(n_bytes)

    def update(self, n_bytes: float) -> float:
        """Kernels of an optimizer, which read and write `n_bytes` of many arrays at once."""
        return self.floor + n_bytes / ((OPTIMIZER if self.cluster.gpu else 1.0) * self.cluster.hbm_bytes_per_us)

    def permute(self, n_bytes: float) -> float:
        """A kernel that moves rows to other places: memory, or what SMs load and store."""
        if not self.cluster.gpu:
            return self.memory(n_bytes)
        issued = n_bytes / (self.gpu.n_sms * self.gpu.boost_MHz * self.constants["sm.permute_bytes"])
        return self.floor + max(self.stream(n_bytes), issued)

    def gemm(
        self, m: float, n: float, k: float, dtype: str, groups: float | None = None, *, accumulate: bool = False, weight_bytes: float | None = None,
        levels: tuple[float, ...] = (1.0,),
    ) -> float:  # fmt: skip
        """A GEMM [m, k] x [k, n], or `groups` of them in one grouped kernel.

        `weight_bytes`: of a weight with its scales, where weights are narrower or wider than the products in `dtype`. `accumulate`: onto FP32 sums in
        memory (weight gradients). `levels`: the groups have so many times `m` rows, whose last tiles are filled unevenly.
        """
        if not m:
            return self.floor
        key = (m, n, k, dtype, groups, accumulate, weight_bytes, levels)
        return self._once(key, lambda: self._gemm(m, n, k, dtype, groups, accumulate, weight_bytes, levels))

    def _gemm(
        self, m: float, n: float, k: float, dtype: str, grouped: float | None, accumulate: bool, weight_bytes: float | None, levels: tuple[float, ...]
    ) -> float:
        kind, groups = "fp8" if dtype == "mxfp8" else dtype, 1.0 if grouped is None else grouped
        sums = 8.0 * groups * m * n if accumulate else 0.0
        held = ELEMENT_BYTES[kind] if weight_bytes is None else weight_bytes
        if not self.cluster.gpu:
            moved = groups * (ELEMENT_BYTES[kind] * m * k + held * n * k + 2 * m * n) + sums
            return max(groups * 2 * m * n * k / self.cluster.peak_flops_per_us(kind), moved / self.cluster.hbm_bytes_per_us)
        regime = self.regime
        dense = "cublas" if kind == "bf16" else regime.dense
        library = dense if grouped is None else regime.grouped
        if kind == "bf16" and held < ELEMENT_BYTES[kind]:
            library = regime.narrow
        if library == "deepgemm" and self.gpu.arch in NO_DEEPGEMM:
            library = NO_DEEPGEMM[self.gpu.arch]
        products = gemm_us(
            self.gpu, self.constants, m * np.array(levels), n, k, kind, library=library, groups=groups,
            kept=kept_part(self.gpu, self.constants, kind, library) if regime.long else 1.0, weight_bytes=held,
        )  # fmt: skip
        time = float(np.mean(products))
        if weight_bytes is not None:
            part = self.constants[regime.stream] if regime.stream and grouped is not None else 1.0
            time = max(time, self.floor + float(hbm_us(self.gpu, self.constants, held * n * k * groups)) / part)
        return (BLOCK_SCALED if dtype == "mxfp8" else 1.0) * time + sums / self.cluster.hbm_bytes_per_us

    @cached_property
    def widening(self) -> float:
        """Part of the rate of BF16 products that is left where registers widen 4-bit weights: the grouped kernel of the regime on many rows."""
        many = 8192.0, 4096.0, 4096.0, "bf16", 8.0
        return self.gemm(*many) / self.gemm(*many, weight_bytes=FORMATS["int4"].weight_bytes) if self.cluster.gpu else 1.0

    def lanes(self, m: float, n: float, k: float) -> float:
        """A GEMM [m, k] x [k, n] of FP32 values, which no tensor core multiplies unless asked to (torch: float32_matmul_precision "highest")."""
        if not self.cluster.gpu:
            return self.gemm(m, n, k, "bf16")
        return self._once(("fp32", m, n, k), lambda: fp32_us(self.gpu, self.constants, m, n, k))

    def flops(self, count: float, dtype: str) -> float:
        """`count` FLOPs of large GEMMs."""
        if self.cluster.gpu:
            return count / sustained_flops_per_us(self.gpu, self.constants, dtype)
        return count / self.cluster.peak_flops_per_us(dtype)

    def attention(self, call: AttentionCall, direction: Direction = "forward") -> float:
        """A flash kernel over prompts or sequences. On a paper cluster it runs at a chosen part of the BF16 peak."""
        if self.cluster.gpu:
            return self._once((call, direction), lambda: attention_us(self.gpu, self.constants, call, direction))
        part = number(f"step.attention_{direction}_part")
        return float(attention_flops(call, direction)) / (part * self.cluster.peak_flops_per_us("bf16"))

    def decode(self, call: AttentionCall) -> float:
        """Attention of a few queries per request over a cache."""
        return self._once(("decode", call), lambda: decode_us(self.gpu, self.constants, call))

    def delta_net(self, call: DeltaNet, direction: Direction = "forward") -> float:
        """The kernels of a gated delta net. On a paper cluster they pass through memory, and no chunk waits."""
        if self.cluster.gpu:
            return (prefill_us if direction == "forward" else gradient_us)(self.gpu, self.constants, call)
        return self.memory((PASSES if direction == "forward" else BACKWARD_PASSES) * call.sequences * call.tokens * call.row_bytes)

    def delta_update(self, call: DeltaNet) -> float:
        """One more token of every sequence."""
        return update_us(self.gpu, self.constants, call)

    # What goes between GPUs

    @cached_property
    def link(self) -> float:
        """Bytes per microsecond of a ring over the links of a GPU."""
        return (ring_part(self.gpu) if self.cluster.gpu else 1.0) * self.cluster.link_bytes_per_us

    @property
    def nic(self) -> float:
        """Bytes per microsecond between NVLink domains."""
        return float(self.cluster.scale_out.rate) if self.cluster.scale_out else 1000 * number("step.nic_rate")

    @property
    def straight(self) -> float:
        """The same of rows that leave their rail, and pass the spine."""
        return self.cluster.scale_out.straight_rate if self.cluster.scale_out else self.nic

    @cached_property
    def domain(self) -> int:
        """GPUs of an NVLink domain."""
        return self.cluster.scale_out.domain_gpus if self.cluster.scale_out else self.cluster.max_gpus or self.cluster.n_gpus

    @property
    def hop(self) -> float:
        """Latency of a send between NVLink domains."""
        return self.cluster.scale_out.latency_us if self.cluster.scale_out else number("step.nic_latency_us")

    def posted(self, messages: float, start: str = "") -> float:
        """Time in which proxies on the host post `messages`, behind a start of `proxy`; 0 where GPUs post."""
        out = self.cluster.scale_out
        if out is None or not out.message_us:
            return 0.0
        return self.cluster.host_factor * ((self.constants[f"proxy.{start}_us"] if start else 0.0) + messages * out.message_us)

    @property
    def wait(self) -> float:
        """Wait for the last rank of a collective on which computing waits."""
        return self.constants[self.regime.wait] if self.cluster.gpu and self.regime.wait else 0.0

    def all_reduce(self, n: int, n_bytes: float, reducers: Reducers = NCCL_AND_OWN, stride: int = 1) -> float:
        """An all-reduce of `n_bytes` over `n` GPUs, ranks `stride` apart, by the fastest allowed kernel."""
        if n == 1:
            return 0.0
        return self._once(("all-reduce", n, n_bytes, reducers, stride), lambda: min(self.reducing(n, n_bytes, reducers, stride).values()))

    def reducing(self, n: int, n_bytes: float, reducers: Reducers, stride: int = 1) -> Amounts:
        """Times of the kernels that may sum `n_bytes`, by name; NCCL is "nccl", alone over several domains: by its tree or rings."""
        if n * stride > self.domain:
            inside = max(1, self.domain // stride)
            far = self.gpu, inside, ceil(n / inside), n_bytes, self.nic / 1e3
            return {"nccl": min(tree_protocol(*far)[1], ring_tuned_us(*far)[1])}
        names = reducers.kernels if n_bytes <= reducers.most and (not self.gpu.pcie or n <= PCIE_OWN) else ()
        names += (reducers.in_switch,) if n_bytes <= reducers.most_in_switch and self.gpu.multicasts else ()
        own = {name: float(kernel_allreduce_us(self.gpu, self.constants, name, n, n_bytes, 0)) for name in names}
        nvls = None if reducers.nvls else False
        return own | {"nccl": float(collective_us(self.gpu, self.constants, "all_reduce", n, n_bytes, nvls=nvls, in_place=True))}

    def collective(self, kind: str, n_bytes: float, size: int, stride: int = 1) -> float:
        """A collective that computing waits for; NCCL's out of place, as PyTorch's functions are.

        `n_bytes`: gathered, scattered, or per rank (alltoall); `stride`: ranks from one to the next.
        """
        if size <= 1:
            return 0.0
        if self.cluster.gpu and stride == 1 and size > self.domain and kind != "alltoall":
            return self.wait + self.rails(n_bytes, size, self.domain)
        if not self.cluster.gpu or size * stride > self.domain:
            return self.group(n_bytes, size, stride)
        return self.wait + self._once((kind, size, n_bytes), lambda: collective_us(self.gpu, self.constants, kind, size, n_bytes))

    def rails(self, n_bytes: float, size: int, inside: int) -> float:
        """An all-gather or reduce-scatter over several domains by NCCL's ring of each rail. `inside`: members in one domain."""
        steps, moved, _ = rail_rings_us(self.gpu, self.constants, inside, ceil(size / inside), self.nic / 1e3, n_bytes)
        return steps + moved

    def group(self, n_bytes: float, size: int, stride: int) -> float:
        """A reduce-scatter or all-gather of `n_bytes` over `size` ranks that are `stride` apart, beside computing, in the buffers of a distributed
        optimizer: in place (Megatron-LM, param_and_grad_buffer.py). Between domains: rates only.

        The members in one domain share the way between domains: each brings its part of the ring's bytes through its own network card.
        """
        if size <= 1 or not n_bytes:
            return 0.0
        inside = max(1, min(size, self.domain // stride))
        if inside == size and self.cluster.gpu:
            return self._once(("ring", size, n_bytes), lambda: collective_us(self.gpu, self.constants, "all_gather", size, n_bytes, in_place=True))
        rate = self.link if inside == size else min(self.link, inside * self.nic)
        return n_bytes * (size - 1) / size / rate

    def latency(self, layout: Layout) -> float:
        """Latency of a send to the next pipeline stage, beside the time for which its wires are busy (`training.wires.send`)."""
        return self.cluster.link_latency_ps * 2e-6 if layout.gpus <= self.domain else self.hop

    # What the host does

    def launch(self, calls: float, looped: float, direction: Direction) -> float:
        """Host time of `calls` operations of a training framework and of `looped` kernels that some of them launch; 0 on a paper cluster."""
        once = "training.forward_us" if direction == "forward" else "training.launch_us"
        if not self.cluster.gpu:
            return 0.0
        return self.cluster.host_factor * (calls * self.constants[once] + looped * self.constants["training.launch_us"])


@lru_cache(maxsize=64)
def machine_of(cluster: Cluster, regime: Name) -> Machine:
    """The machine of a cluster, shared by all who ask."""
    return Machine(cluster, regime_of(regime))
