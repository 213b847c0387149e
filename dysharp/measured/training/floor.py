"""The floor: a step as rates that nobody fitted, without launches and overlap. A step model is of use where its errors are below the floor's.

Rates are rounded medians of SimuMax's table of operators on a B200, as parts of the datasheet, and stand for every machine.
"""

from dysharp.measured.training.setting import Setting
from dysharp.steps.accounting.flops import CORE, core_flops, flops_of, mean_context
from dysharp.steps.accounting.state import rank_parameters
from dysharp.steps.machine import Machine
from dysharp.steps.practice import Practice
from dysharp.steps.stages import chunks_of

GEMM, GRADIENT, GROUPED = 1090 / 2250, 1050 / 2250, 900 / 2250
"""Forward and data gradients, weight gradients, experts: parts of the tensor peak."""
FORWARD, BACKWARD = 1000 / 2250, 800 / 2250
"""Core attention: parts of the BF16 peak; backward as twice the forward pass."""
MEMORY, GATHER, ALLTOALL = 5.3 / 8, 0.67, 0.60
COLLECTIVE_US, ALLTOALL_US = 30.0, 60.0
OPTIMIZER_BYTES = 30


def floor_us(setting: Setting, machine: Machine, practice: Practice) -> float:
    """Microseconds of a step. One rank's share of all FLOPs at the rates above, collectives, the bubble of equal stages, optimizer."""
    model, layout, cluster = setting.model, setting.layout, machine.cluster
    kind = "bf16" if practice.dtype == "bf16" else "fp8"
    peak, dense = cluster.peak_flops_per_us(kind), cluster.peak_flops_per_us("bf16")
    forward = dict(flops_of(model, setting.sequence).forward)
    core, experts = forward.pop(CORE), forward.pop("routed experts", 0.0)
    core = sum(core_flops(model, mean_context(setting.sequence)) for _ in range(model.n_layers)) if model.attention.window == 0 else core
    others = sum(forward.values())
    tokens = layout.tokens(setting.sequence) / layout.tp / layout.pp
    linear = others * (2 / GEMM + 1 / GRADIENT) + experts * 3 / GROUPED
    one = tokens * (linear / peak + core * (1 / FORWARD + 2 / BACKWARD) / dense)
    shard = layout.tokens(setting.sequence) / layout.tp
    width, layers = 2.0 * model.hidden, model.n_layers / layout.pp
    one += layers * 30 * width * shard / (MEMORY * cluster.hbm_bytes_per_us)
    if layout.tp > 1:
        ring = width * layout.tokens(setting.sequence) * (layout.tp - 1) / layout.tp / (GATHER * cluster.link_bytes_per_us)
        one += layers * 8 * (ring + COLLECTIVE_US)
    if model.layer and layout.ep > 1:
        sent = width * shard * model.layer.topk * (layout.ep - 1) / layout.ep
        near = layout.ep * layout.stride("ep") <= machine.domain
        one += layers * 4 * (sent / (ALLTOALL * cluster.link_bytes_per_us if near else machine.nic) + ALLTOALL_US)
    held = rank_parameters(model, layout, chunks_of(model, layout)[:: layout.pp])
    parts = held.dense / (layout.dp * layout.cp) + held.experts / layout.edp
    traffic = machine.group(6 * held.dense, layout.dp * layout.cp, layout.stride("cp")) + machine.group(
        6 * held.experts, layout.edp, layout.stride("edp")
    )
    update = OPTIMIZER_BYTES * parts / (MEMORY * cluster.hbm_bytes_per_us)
    return one * (layout.micro_batches + (layout.pp - 1) / layout.vpp) + traffic + update
