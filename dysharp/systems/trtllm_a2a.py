"""TensorRT-LLM's NVLink all-to-all: one copy per GPU, one-sided or two-sided.

One-sided: slots fixed by the source, and a barrier. Two-sided: FIFOs behind an exchange of counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.compute.transfer import TRT_LAUNCHES
from dysharp.errors import ConfigError
from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.formats import check, row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.paper_layers import one_copy_per_gpu
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
ROWS = ("rows", "fp8", "fp8-plain", "nvfp4")
"""Formats of the rows that the kernels send. Results come back as "rows" or, with two sides, as "nvfp4"."""


@dataclass(frozen=True, slots=True)
class Options:
    """`form`: "paper", "real" or "auto" (real on hw-* clusters).

    The real form has kernels, work per token and barriers. `sides`: "one" or "two". The paper form is the same for
    both. `dispatch`: format of rows, "rows" (the model's), "fp8", "fp8-plain" or "nvfp4" (`building.formats` has their
    bytes). `combine`: format of results, "rows" or, with two sides, "nvfp4" (low-precision Combine, which sums what it
    has scaled back). `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    form: str = "auto"
    sides: str = "one"
    dispatch: str = "rows"
    combine: str = "rows"
    compute: bool = True


def _layer(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> LayerBuilder:
    sent = row_bytes("trtllm-a2a.dispatch", options.dispatch, ROWS, model)
    check("trtllm-a2a.sides", options.sides, ("one", "two"))
    if options.combine not in ("rows", "nvfp4"):
        raise _wrong_combine(options)
    back = row_bytes("trtllm-a2a.combine", options.combine, ROWS, model)
    return LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent, back_bytes=back)


def _wrong_combine(options: Options) -> ConfigError:
    return ConfigError(f"trtllm-a2a.combine: found {options.combine!r} with sides={options.sides}, expected rows, or nvfp4 with sides=two")


def plan_real(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """As the paper form, with the kernels of one side or of two."""
    layer = _layer(model, cluster, routing, direction, options)
    if options.combine == "nvfp4" and options.sides == "one":
        raise _wrong_combine(options)
    kernels = _OneSided(layer) if options.sides == "one" else _TwoSided(layer, scaled=options.dispatch in ("fp8", "nvfp4"))
    kernels.combine(one_after_another(layer, kernels.dispatch()))
    return layer.build("one_copy_per_gpu")


@system(
    "trtllm-a2a",
    real=plan_real,
    source="https://github.com/NVIDIA/TensorRT-LLM (NVLink one-sided and two-sided all-to-all); spec/baselines.md section 3",
    options=Options,
    traffic="one_copy_per_gpu",
    permutes=1,
    fused=False,
    row_formats=ROWS,
    colour="#B3E2CD",
    ships=Ships(
        "TensorRT-LLM fused_moe_cutlass.py: rows are quantised before they are sent for NVFP4 models only; hidden sizes: unknown",
        ("hopper", "blackwell"),
        {"fp8": {"dispatch": "rows"}, "bf16": {"dispatch": "rows"}},
    ),
    drops="kernels, per-token work, barriers (form real has them); one-sided Combine pushes, the kernel reads (the same bytes the same way)",
)
def plan_paper(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dispatch, one GEMM after the other, Combine. A GPU waits for its own rows and GEMMs only."""
    return one_copy_per_gpu(_layer(model, cluster, routing, direction, options))


class _Sided(SoftwareSteps):
    """Steps of both variants: work per token that the whole GPU does."""

    def tokens(self, operator: str, each_ps: int, copy_ps: int) -> Batch:
        """A DELAY per token of `layer.sent` on its source GPU: `each_ps`, and `copy_ps` per copy; one token at a time."""
        layer = self.layer
        durations = [0] + [each_ps + copies * copy_ps for copies in range(1, layer.n_gpus + 1)]
        issuer = layer.per_gpu(Discipline.READY_FIFO, "tokens", self.pools("tokens"))[layer.sent_source]
        return self.copies(operator, durations, layer.sent_source, issuer, layer.token_pairs[layer.sent], name="token")


class _OneSided(_Sided):
    """Puts into slots that the source knows, then one barrier; back, a barrier and then rows and sums side by side."""

    LAUNCHES = TRT_LAUNCHES + 1  # the receiver's side is prepared or cleaned by its own kernel

    def dispatch(self) -> I32:
        """Returns `[gpus]` the DELAY of each GPU behind which all GPUs have sent everything."""
        layer, costs = self.layer, self.costs
        start = self.delay("dispatch.launch", self.LAUNCHES * costs.kernel_ps)
        copy = costs.copy_ps("sm.copy_GBps", layer.sent_bytes) // layer.cluster.n_sms
        tokens = self.tokens("dispatch", costs.ps("trt.token_us"), copy)
        layer.wait_each(tokens.op, start[tokens.node])
        puts = layer.dispatch_puts(Discipline.READY_FIFO)
        paced = self.paced("dispatch", puts, costs.stores_ps(layer.sent_bytes))
        layer.wait_each(paced.op, tokens.op[layer.sent_of_pair])
        return self.barrier_after("dispatch", "received", start, puts)

    def combine(self, finished: I32) -> None:
        """Starts behind the GEMMs of each GPU, `finished[gpu]`."""
        layer, costs = self.layer, self.costs
        start = self.delay("combine.launch", self.LAUNCHES * costs.kernel_ps)
        layer.wait_each(start, finished)
        ready = self.barrier("combine", "ready", start)
        puts = layer.combine_puts(Discipline.READY_FIFO)
        paced = self.paced("combine", puts, costs.stores_ps(layer.model.row_bytes))
        layer.wait_each(paced.op, ready[paced.node])
        copy = costs.copy_ps("sm.copy_GBps", layer.model.row_bytes) // layer.cluster.n_sms
        sums = self.tokens("combine", costs.ps("trt.token_us"), copy)
        layer.wait_each(sums.op[layer.sent_of_pair[puts.unit]], puts.op)


class _TwoSided(_Sided):
    """An exchange of counts and indices, then FIFOs.

    The same warps pack the fields of a token and push its copies, the own copy too.
    """

    LAUNCHES = TRT_LAUNCHES

    def __init__(self, layer: LayerBuilder, *, scaled: bool) -> None:
        super().__init__(layer)
        self.fields = "trt.scaled_us" if scaled else "trt.token_us"
        self.gather = "trt.combine_us" if layer.back_bytes == layer.model.row_bytes else "trt.lowprec_us"

    def prepare(self) -> I32:
        """Counts and indices to every GPU. Returns `[gpus]` the DELAY behind which each GPU has them."""
        costs = self.costs
        start = self.delay("prepare", self.LAUNCHES * costs.kernel_ps + costs.ps("trt.token_us", self.layer.tokens))
        return self.barrier("prepare", "prepared", start)

    def dispatch(self) -> I32:
        """Returns `[gpus]` the DELAY of each GPU behind which all of its rows are taken out of the FIFOs."""
        layer, costs = self.layer, self.costs
        start = self.delay("dispatch.launch", self.LAUNCHES * costs.kernel_ps)
        if layer.direction == "fwd":  # a backward pass knows counts and indices
            layer.wait_each(start, self.prepare())
        tokens = self.tokens("dispatch", costs.ps(self.fields), costs.stores_ps(layer.sent_bytes))
        layer.wait_each(tokens.op, start[tokens.node])
        puts = layer.dispatch_puts(Discipline.READY_FIFO)
        layer.wait_each(puts.op, tokens.op[layer.sent_of_pair])
        return self.barrier_after("dispatch", "received", start, puts)

    def combine(self, finished: I32) -> None:
        """Copies go back through the FIFOs behind `finished[gpu]`. Another kernel sums them when all have arrived."""
        layer, costs = self.layer, self.costs
        start = self.delay("combine.launch", self.LAUNCHES * costs.kernel_ps)
        layer.wait_each(start, finished)
        puts = layer.combine_puts(Discipline.READY_FIFO)
        paced = self.paced("combine", puts, costs.stores_ps(layer.back_bytes), own=True)
        layer.wait_each(paced.op, start[paced.node])
        returned = self.barrier_after("combine", "returned", start, puts)
        own = np.bincount(layer.sent_source, minlength=layer.n_gpus)
        layer.wait_each(self.delay("combined", [costs.ps(self.gather, int(n)) for n in own]), returned)
