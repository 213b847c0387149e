"""DeepEP normal kernels: push, one copy per distinct GPU each way, operators one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Program
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.experts import one_after_another, phase_by_phase
from dysharp.systems.building.formats import row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.channels import Channels
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

ROWS = ("rows", "fp8")
"""What the kernels send."""


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): SM channels, rings, launches and barriers with their costs.

    `n_sm`: SMs of those kernels; `dispatch`: "rows" sends the model's rows, "fp8" a byte per element and an FP32 scale per 128 of them.
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    form: str = "auto"
    n_sm: int = choice_int("deepep.n_sm")
    dispatch: str = "rows"
    compute: bool = True


@system(
    "deepep",
    source="https://github.com/deepseek-ai/DeepEP (V1, normal); spec/baselines.md section 1",
    options=Options,
    traffic="one_copy_per_gpu",
    permutes=1,
    fused=False,
    row_formats=ROWS,
    colour="#0072B2",
    ships=Ships(
        "DeepEP README: Hopper; measured on Blackwell too; csrc/deep_ep.cpp: rows of whole 16 B",
        ("hopper", "blackwell"),
        {"fp8": {"dispatch": "fp8"}, "bf16": {"dispatch": "rows"}},
        step=16,
    ),
    drops="channels of SM pairs, ring queues, launches and barriers, the receiver's copy-out (form real has them); the host's wait for counts",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dispatch, then one GEMM after the other, then Combine on each GPU; the only waits are each GPU's own."""
    sent = row_bytes("deepep.dispatch", options.dispatch, ROWS, model)
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent)
    if is_real(options.form, cluster):
        channels = Channels(layer, options.n_sm)
        channels.combine(one_after_another(layer, channels.dispatch()))
        return layer.build("one_copy_per_gpu")
    return phase_by_phase(layer)
