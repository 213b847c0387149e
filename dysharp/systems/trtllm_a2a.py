"""TensorRT-LLM's NVLink all-to-all: one copy per GPU, one-sided (slots fixed by the source, a barrier) or two-sided (FIFOs behind a prepare)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.compute.transfer import TRT_LAUNCHES
from dysharp.errors import ConfigError
from dysharp.program import Discipline, Head, Kind, Program, Tail, Template
from dysharp.specs import Cluster, Model
from dysharp.systems.building.experts import one_after_another, phase_by_phase
from dysharp.systems.building.formats import check, row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


ROWS = ("rows", "fp8", "fp8-plain", "nvfp4")
"""What the kernels send; back come "rows" or, with two sides, "nvfp4"."""


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): kernels, per-token work, barriers. `sides`: "one" or "two" (real form only).

    `dispatch`: "rows" sends the model's rows, "fp8" a byte per element and an FP32 scale per 128 of them, "fp8-plain" a byte per element,
    "nvfp4" half a byte and a scale per 16. `combine`: "rows", or "nvfp4" with two sides (its low-precision combine, which sums what it has
    scaled back). `compute` = False leaves the GEMMs out: pure communication.
    """

    form: str = "auto"
    sides: str = "one"
    dispatch: str = "rows"
    combine: str = "rows"
    compute: bool = True


@system(
    "trtllm-a2a",
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
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dispatch, GEMMs, Combine."""
    sent = row_bytes("trtllm-a2a.dispatch", options.dispatch, ROWS, model)
    check("trtllm-a2a.sides", options.sides, ("one", "two"))
    real = is_real(options.form, cluster)
    if options.combine != "rows" and (options.combine != "nvfp4" or (real and options.sides == "one")):
        raise ConfigError(f"trtllm-a2a.combine: found {options.combine!r} with sides={options.sides}, expected rows, or nvfp4 with sides=two")
    back = row_bytes("trtllm-a2a.combine", options.combine, ROWS, model)
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent, back_bytes=back)
    if real:
        kernels = _OneSided(layer) if options.sides == "one" else _TwoSided(layer, scaled=options.dispatch in ("fp8", "nvfp4"))
        kernels.combine(one_after_another(layer, kernels.dispatch()))
        return layer.build("one_copy_per_gpu")
    return phase_by_phase(layer)


class _Sided(SoftwareSteps):
    """What both forms have: small kernels before, and work per token done by the whole GPU."""

    def tokens(self, name: str, each_ps: int, copy_ps: int) -> I64:
        """A DELAY per token on its source GPU, one at a time: `each_ps` and `copy_ps` for each of its copies. Returns the ops."""
        layer, sent = self.layer, self.layer.sent
        duration = layer.b.duration([0] + [each_ps + copies * copy_ps for copies in range(1, layer.n_gpus + 1)])
        template = layer.b.template(Template(f"{name}.token", Kind.DELAY, name, "delay", tasks=1, duration=duration))
        pools = [layer.b.pool(g, 1, "tokens") for g in range(layer.n_gpus)]
        issuer = layer.per_gpu(Discipline.READY_FIFO, "tokens", pools)[layer.sent_source]
        return layer.b.ops(template, layer.sent_source, issuer=issuer, rows=layer.token_pairs[sent]) + np.arange(len(sent))


class _OneSided(_Sided):
    """Puts into slots that the source knows, then one barrier; back, a barrier and then rows and sums side by side."""

    LAUNCHES = TRT_LAUNCHES + 1  # the receiver's side is prepared or cleaned by its own kernel

    def dispatch(self) -> I32:
        """Returns the DELAY of each GPU behind which all GPUs have sent everything."""
        layer, costs, p = self.layer, self.costs, self.layer.p
        start = self.delay("dispatch.launch", self.LAUNCHES * costs.kernel_ps)
        copy = costs.copy_ps("sm.copy_GBps", layer.sent_bytes) // layer.cluster.n_sms
        tokens = self.tokens("dispatch", costs.ps("trt.token_us"), copy)
        self.release(start, tokens, layer.sent_source)
        puts = layer.dispatch_puts(Discipline.READY_FIFO) + np.arange(len(p.gpu))
        sends = self.paced("dispatch", puts, layer.pair_source, p.gpu, costs.stores_ps(layer.sent_bytes))
        layer.b.edges(Tail.OP_DONE, tokens[layer.sent_of_pair], Head.OP_ISSUE, sends)
        return self.behind("dispatch", "received", start, puts, layer.pair_source)

    def combine(self, finished: I32) -> None:
        """`finished[gpu]`: the GEMMs of a GPU."""
        layer, costs, order = self.layer, self.costs, self.layer.push_order
        start = self.delay("combine.launch", self.LAUNCHES * costs.kernel_ps)
        self.each_waits(finished, start)
        ready = self.barrier("combine", "ready", start, 0)
        node, home = layer.p.gpu[order], layer.pair_source[order]
        puts = layer.combine_puts(Discipline.READY_FIFO) + np.arange(len(order))
        self.release(ready, self.paced("combine", puts, node, home, costs.stores_ps(layer.model.row_bytes)), node)
        copy = costs.copy_ps("sm.copy_GBps", layer.model.row_bytes) // layer.cluster.n_sms
        sums = self.tokens("combine", costs.ps("trt.token_us"), copy)
        layer.b.edges(Tail.OP_DONE, puts, Head.OP_ISSUE, sums[layer.sent_of_pair[order]])


class _TwoSided(_Sided):
    """An exchange of counts and indices, then FIFOs: the same warps pack a token's fields and push its copies, the own one too."""

    LAUNCHES = TRT_LAUNCHES

    def __init__(self, layer: LayerBuilder, *, scaled: bool) -> None:
        super().__init__(layer)
        self.fields = "trt.scaled_us" if scaled else "trt.token_us"
        self.gather = "trt.combine_us" if layer.back_bytes == layer.model.row_bytes else "trt.lowprec_us"

    def prepare(self) -> I32:
        """Counts and indices to every GPU."""
        costs = self.costs
        start = self.delay("prepare", self.LAUNCHES * costs.kernel_ps + costs.ps("trt.token_us", self.layer.tokens))
        return self.barrier("prepare", "prepared", start, 0)

    def dispatch(self) -> I32:
        """Returns the DELAY of each GPU behind which all its rows are taken out of the FIFOs."""
        layer, costs, p = self.layer, self.costs, self.layer.p
        start = self.delay("dispatch.launch", self.LAUNCHES * costs.kernel_ps)
        if layer.direction == "fwd":  # a backward pass knows them
            self.each_waits(self.prepare(), start)
        tokens = self.tokens("dispatch", costs.ps(self.fields), costs.stores_ps(layer.sent_bytes))
        self.release(start, tokens, layer.sent_source)
        puts = layer.dispatch_puts(Discipline.READY_FIFO) + np.arange(len(p.gpu))
        layer.b.edges(Tail.OP_DONE, tokens[layer.sent_of_pair], Head.OP_ISSUE, puts)
        return self.behind("dispatch", "received", start, puts, layer.pair_source)

    def combine(self, finished: I32) -> None:
        """Copies back through the FIFOs; a kernel of its own gathers and sums them when all are there."""
        layer, costs, order = self.layer, self.costs, self.layer.push_order
        start = self.delay("combine.launch", self.LAUNCHES * costs.kernel_ps)
        self.each_waits(finished, start)
        node = layer.p.gpu[order]
        puts = layer.combine_puts(Discipline.READY_FIFO) + np.arange(len(order))
        push = self.paced("combine", puts, node, np.full(len(node), -1, np.int32), costs.stores_ps(layer.back_bytes))
        self.release(start, push, node)
        arrived = self.behind("combine", "returned", start, puts, node)
        own = np.bincount(layer.sent_source, minlength=layer.n_gpus)
        self.each_waits(arrived, self.delay("combined", [costs.ps(self.gather, int(n)) for n in own]))
