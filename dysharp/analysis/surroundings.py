"""What surrounds the transfers and GEMMs of a layer on a real GPU: permutation, activation, casts, launches.

The Program of a real form has the communication kernels and the tiles of the GEMMs. These parts come from the closed forms of `compute.moe`, for
the GPU with most rows, and are added to the Program's time: by `surrounded` to every Row on an `hw-*` cluster (`run`, `compare`, `advise`), by
the family `layer` for `validate` (`measured/families/layer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dysharp.analysis.row import SURROUNDINGS, Row
from dysharp.compute import moe, operators
from dysharp.specs import Cluster, Model
from dysharp.specs.fitted import fitted
from dysharp.systems.registry import GATED_MATRICES
from dysharp.workload import Routing, needed_gpus, rows_per_slot

PERMUTES: Mapping[str, int] = {"deepep": 1, "trtllm-a2a": 1}
"""Times rows are reordered by expert and back outside of a system's Program: behind a receive buffer. Others place rows at once or have the ops."""
FP8_ROWS = ("fp8", "fp8-plain", "mxfp8")  # words of the option `dispatch`: rows arrive as the GEMMs read them
FUSED = ("megamoe", "fusion-only", "dysharp", "explicit")  # one kernel for the layer: nothing surrounds it but the host
GEMM_CALLS = {"fwd": 3, "bwd": 4}  # GEMM, activation, GEMM; two data gradients (the activation's in an epilogue) and two weight gradients


@dataclass(frozen=True, slots=True)
class Surroundings:
    """In us. `contention_us`: GEMMs that make up for SMs of communication kernels beside them (`contention.py`). `host_us` is on the path of an
    eager layer only (the GPU waits for counts, so launches are not hidden), not of a CUDA graph.
    """

    permute_us: float = 0.0
    activation_us: float = 0.0
    cast_us: float = 0.0
    launch_us: float = 0.0
    contention_us: float = 0.0
    host_us: float = 0.0

    @property
    def device_us(self) -> float:
        """All but the host."""
        return self.permute_us + self.activation_us + self.cast_us + self.launch_us + self.contention_us

    def to_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def surroundings(
    system: str, model: Model, cluster: Cluster, routing: Routing, *, options: Mapping[str, Any], direction: str = "fwd"
) -> Surroundings:
    """Of one pass of a layer under `system` with `options`."""
    rows = int(rows_per_slot(routing).reshape(routing.n_gpus, -1).sum(axis=1).max(initial=0))
    copies = int(needed_gpus(routing).sum(axis=0).max(initial=0))
    fp8_rows = options.get("dispatch") in FP8_ROWS
    found = around(cluster, model, rows, copies, permutes=PERMUTES.get(system, 0), fp8_rows=fp8_rows, direction=direction)
    return Surroundings(host_us=found.host_us) if system in FUSED or options.get("gemms") == "fused" else found


def surrounded(row: Row, found: Surroundings) -> Row:
    """`row`, fresh from a Program, as the layer with what surrounds it: `time_us` and `attribution` have all but the host."""
    return replace(
        row,
        time_us=row.time_us + found.device_us,
        attribution=row.attribution | {SURROUNDINGS: found.device_us},
        surroundings_us=found.to_dict(),
    )


def around(
    cluster: Cluster, model: Model, rows: float, copies: float, *, permutes: int, fp8_rows: bool, cast_bytes: float = 0.0, direction: str = "fwd"
) -> Surroundings:
    """The same from counts: `rows` of the busiest GPU, `copies` it received; `cast_bytes` moved by further casts (weights in training).

    Backward, the activation's gradient is in the epilogue of a GEMM, in the Program.
    """
    gpu, c = cluster.own_gpu, cluster.fitted
    gates = 2 if model.n_matrices == GATED_MATRICES else 1
    launch, element = operators.launch_us(gpu, c), operators.ELEMENT_BYTES[model.gemm_dtype]
    width = 1 + operators.SCALE_BYTES if fp8_rows else 2.0
    casts = model.gemm_dtype == "fp8" and not fp8_rows
    moved = rows * model.hidden * (2.0 + 1.0) + cast_bytes
    activation = operators.hbm_us(gpu, c, rows * model.expert_hidden * (2 * gates + element)) if direction == "fwd" else 0.0
    return Surroundings(
        permute_us=permutes * float(moe.permute_us(gpu, c, copies, rows, model.hidden, width)),
        activation_us=float(activation),
        cast_us=float(operators.memory_kernel_us(gpu, c, moved)) if casts else 0.0,
        launch_us=GEMM_CALLS[direction] * launch,
        host_us=moe.host_us(gpu, c, c["calls.mlp"] + moe.LAYER_CALLS),
    )


def host_line(cluster: Cluster) -> str:
    """Whose launches an eager layer has."""
    c = cluster.fitted
    name = moe.host_constant(cluster.own_gpu, c)
    whose = "this cluster's own value" if name in dict(cluster.constants) else f"not your host: {fitted()[name].meaning}"
    return f"eager times: {c['calls.mlp'] + moe.LAYER_CALLS:.1f} launches at {c[name]:g} us ({name}, {whose}); a CUDA graph has none"
