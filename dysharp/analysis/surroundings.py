"""Parts of a layer on a real GPU besides communication kernels and GEMMs: permutation, activation, casts, launches.

Programs of real forms, and of COMET's overlap, contain them (`systems/building/experts.py`). Here are the closed forms of `costs.moe` for the GPU
with the most rows; `make_row` adds them to the time of all other Programs on `hw-*` clusters.
"""

from dataclasses import asdict

from dysharp.base import Amounts, AnyMapping, frozen
from dysharp.costs import moe, operators
from dysharp.specs import Cluster, Model
from dysharp.specs.fitted import fitted
from dysharp.systems import get_system
from dysharp.systems.building.experts import activation_bytes, cast_bytes
from dysharp.systems.building.formats import ROW_FORMATS, format_of
from dysharp.workload import Routing, needed_gpus, rows_per_slot

# Forward: GEMM, activation, GEMM. Backward: two data gradients (one with the activation's in its epilogue), two weight
# gradients.
GEMM_CALLS = {"fwd": 3, "bwd": 4}


@frozen
class Surroundings:
    """Times in us of these parts, alone on the busiest GPU.

    permute_us     reordering of rows by expert, and back
    activation_us  activation between the GEMMs
    cast_us        casts to the format of the GEMMs
    launch_us      gaps between GEMM kernels
    host_us        launches of the host, in an eager layer whose GPU waits for counts; 0 in a CUDA graph
    """

    permute_us: float = 0.0
    activation_us: float = 0.0
    cast_us: float = 0.0
    launch_us: float = 0.0
    host_us: float = 0.0

    @property
    def device_us(self) -> float:
        """Time on the GPU: everything but `host_us`."""
        return self.permute_us + self.activation_us + self.cast_us + self.launch_us

    def to_dict(self) -> Amounts:
        """Plain values."""
        return asdict(self)


def surroundings(system: str, model: Model, cluster: Cluster, routing: Routing, *, options: AnyMapping, direction: str = "fwd") -> Surroundings:
    """The surroundings of one pass of a layer under `system` with `options`.

    A layer that is one kernel has `host_us` only. Raises ConfigError for a value of the option `dispatch` that `ROW_FORMATS` does not have.
    """
    chosen = get_system(system)
    rows = int(rows_per_slot(routing).reshape(routing.n_gpus, -1).sum(axis=1).max(initial=0))
    copies = int(needed_gpus(routing).sum(axis=0).max(initial=0))
    fp8_rows = format_of(f"{system}.dispatch", options.get("dispatch", "rows"), ROW_FORMATS).is_fp8
    parts = around(cluster, model, rows, copies, permutes=chosen.costs.permutes, fp8_rows=fp8_rows, direction=direction)
    return Surroundings(host_us=parts.host_us) if chosen.is_one_kernel(options) else parts


def around(cluster: Cluster, model: Model, rows: float, copies: float, *, permutes: int, fp8_rows: bool, direction: str = "fwd") -> Surroundings:
    """The surroundings of a layer from counts on the busiest GPU.

    rows        expert rows that the GPU computes
    copies      rows that the GPU received
    permutes    permutations outside the Program
    fp8_rows    True: rows arrive in the format of the GEMMs

    In a backward pass the Program contains the activation's gradient, in the epilogue of a GEMM.
    """
    gpu, c = cluster.own_gpu, cluster.fitted
    launch, casts = operators.launch_us(gpu, c), float(cast_bytes(model, rows, fp8_rows=fp8_rows))
    width = 1 + operators.SCALE_BYTES if fp8_rows else 2.0
    activation = operators.hbm_us(gpu, c, activation_bytes(model, rows)) if direction == "fwd" else 0.0
    return Surroundings(
        permute_us=permutes * float(moe.permute_us(gpu, c, copies, rows, model.hidden, width)), activation_us=float(activation),
        cast_us=float(operators.memory_kernel_us(gpu, c, casts)) if casts else 0.0, launch_us=GEMM_CALLS[direction] * launch,
        host_us=moe.host_us(gpu, c, moe.layer_calls(gpu)),
    )  # fmt: skip


def host_line(cluster: Cluster) -> str:
    """A printed line about the source of the host's launch time."""
    c = cluster.fitted
    name = moe.host_constant(cluster.own_gpu, c)
    whose = "this cluster's own value" if name in dict(cluster.constants) else f"not your host: {fitted()[name].meaning}"
    return f"eager times: {moe.layer_calls(cluster.own_gpu):g} launches at {c[name]:g} us each ({name}, {whose}); a CUDA graph has no launches"
