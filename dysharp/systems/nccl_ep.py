"""NCCL EP, high throughput: Hybrid-EP's kernels on NCCL's device interface, with buffers of a fixed capacity.

| differs from Hybrid-EP | what |
|---|---|
| after Dispatch | a copy from the receive buffer into the caller's tensor, and work on every row of the buffer, used or not |
| before Combine | work per token of the capacity; results are read where the experts left them |
| formats | rows in the model's type: the library converts none |

Its low-latency kernels are DeepEP's: `deepep-ll`. Over several NVLink domains: `building.between.deepep_internode`.
"""

import numpy as np

from dysharp.base import I32, ByName, ConfigError, frozen
from dysharp.specs import choice_int
from dysharp.systems import BOTH_FORMS, HOPPER_ON, Costs, Facts, Form, Layer, Moves, Reach, Ships, Shown, kernels
from dysharp.systems.building import HybridInternode, Internode, Kernels
from dysharp.systems.building.between.deepep_internode import CHUNK_TOKENS
from dysharp.systems.hybrid_ep import ChunkKernels

RELEASED = {"combine_chunk": "4"}
"""Tokens that an SM of Combine takes at a time in the release: NCCL contrib/nccl_ep/device/hybridep_configs.cuh."""


@frozen
class Options(Form):
    """Options of NCCL EP's high-throughput kernels.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `n_sm` | SMs of the kernels; real form only |
    | `buffer_tokens` | tokens of a GPU for which the buffers have room; 0: those of the layer; real form only |
    | `combine_chunk` | tokens that an SM of Combine takes at a time; `run` takes the release's 4 on hw-* clusters; real form on one domain only |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    n_sm: int = choice_int("nccl_ep.n_sm")
    buffer_tokens: int = 0
    combine_chunk: int = CHUNK_TOKENS
    compute: bool = True


FACTS = Facts(
    source="https://github.com/NVIDIA/nccl (contrib/nccl_ep, HIGH_THROUGHPUT)",
    options=Options,
    moves=Moves("one_copy_per_gpu", between="two_hop"),
    costs=Costs(
        permutes=1,
        fused=False,
        drops="SMs and their chunks, launches, barriers, routing maps, work on empty rows of the buffers (form real has them); Combine pushes, the "
        "kernel reads (the same bytes the same way)",
    ),
    reach=Reach(domains=BOTH_FORMS),
    shown=Shown("#76B900"),
    ships=Ships(
        "NCCL contrib/nccl_ep/README.md: Hopper and Blackwell; conversion to FP8 is not supported", HOPPER_ON, {"fp8": RELEASED, "bf16": RELEASED}
    ),
)


def _begins(layer: Layer, options: Options) -> ByName:
    """Buffers have room for the layer."""
    tokens = layer.routing.tokens_per_gpu
    if options.buffer_tokens and options.buffer_tokens < tokens:
        raise ConfigError(f"nccl-ep.buffer_tokens: found {options.buffer_tokens}, expected 0 or at least the layer's {tokens}")
    return {}


@kernels("nccl-ep", FACTS, begins=_begins)
def _real(layer: Layer, options: Options) -> type[Kernels]:
    """The paper form with the software costs of both kernels."""
    if options.combine_chunk < 1:
        raise ConfigError(f"nccl-ep.combine_chunk: found {options.combine_chunk}, expected at least 1 token")
    return _Between if layer.cluster.domains > 1 else _HighThroughput


class _HighThroughput(ChunkKernels):
    """Hybrid-EP's kernels on one NVLink domain with what NCCL EP does around them."""

    def buffer_kernel(self, name: str, row_bytes: int) -> I32:
        """Add what happens between buffer and experts. Returns `[gpus]` its DELAYs."""
        if name == "unpermute":
            return self.delay(name, _before_combine(self, self.n))
        copied = np.array([self.costs.memory_ps(2 * n * row_bytes) for n in self.received_copies.tolist()])
        return self.delay(name, copied + _after_dispatch(self))

    def combine(self, finished: I32) -> None:
        """Add Combine, whose SMs take turns at smaller chunks."""
        self.chunk = self.options.combine_chunk
        super().combine(finished)


class _Between(HybridInternode):
    """Hybrid-EP's kernels over several NVLink domains, with the rail barriers that DeepEP has at the start of a call."""

    def begin(self, name: str, after: I32 | None) -> I32:
        """The barriers and the fixed time, behind `after` of all GPUs."""
        if name == "dispatch":
            return Internode.begin(self, name, after)
        return Internode.begin(self, name, self.delay("unpermute", _before_combine(self, self.n), after=after))

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs behind the work on the rows of the buffer."""
        work = self.delay("permute", self.costs.kernel_ps + _after_dispatch(self))
        self.wait_each(work, super().dispatch())
        return work


def _capacity(layer: Kernels) -> int:
    """Tokens of a GPU for which the buffers have room."""
    return int(layer.options.buffer_tokens or layer.tokens)


def _after_dispatch(layer: Kernels) -> int:
    """Time of the work on every row of the receive buffer, used or not."""
    return layer.costs.stream_ps(layer.n_gpus * _capacity(layer) * layer.costs.value("lib.slot_bytes"))


def _before_combine(layer: Kernels, n_sm: int) -> int:
    """Time of the work on all tokens of the capacity before Combine: an SM takes as long for each as Hybrid-EP's does."""
    return layer.costs.kernel_ps + layer.costs.ps("internode.hybrid_row_us", _capacity(layer)) // n_sm
