"""FasterMoE: all-to-alls by groups of peers, whose GEMMs overlap the exchange with other groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.errors import ConfigError
from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.exchanges import CommStream, Group, NcclStream, in_groups, stream_order
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.mediation import mediate
from dysharp.systems.building.rails import nccl_layer
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing, in_parts

COUNT_BYTES = 8  # rows of an expert as int64


@dataclass(frozen=True, slots=True)
class Options:
    """Options of FasterMoE.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `group` | GPUs of a group of peers (FMOE_FASTER_GROUP_SIZE); at most all GPUs, and a divisor of their number |
    | `mediation` | rows are sorted, and the host waits for counts, before Dispatch; results are put back after Combine |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    Shadowing (copies of hot experts on all GPUs) is off, as in the released code by default. The real form adds the
    exchange of counts, NCCL's start and pace per (step, local expert), and the starts of the GEMM kernels.
    """

    form: str = "auto"
    group: int = choice_int("fastermoe.group")
    mediation: bool = False
    compute: bool = True


def n_steps(n_gpus: int, options: Options) -> int:
    """Steps of the schedule: in step s a GPU sends to the s-th group after its own. 1 = no overlap."""
    size = min(options.group, n_gpus)
    while n_gpus % size:
        size -= 1
    return n_gpus // size


def served(routing: Routing, options: Options) -> Routing:
    """The slot of every expert in one part per step: the rows of a step are computed on their own."""
    steps = n_steps(routing.n_gpus, options)
    if steps == 1 or routing.placement.parts != 1:
        return routing
    size = routing.n_gpus // steps
    source = np.arange(routing.n_tokens)[:, None] // routing.tokens_per_gpu
    gpu = routing.slot // routing.placement.slots_per_gpu
    return in_parts(routing, (gpu // size - source // size) % steps, steps)


def plan_real(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """The paper form with the software costs of its all-to-alls and kernels."""
    layer = nccl_layer(model, cluster, routing, direction, compute=options.compute)
    stream = NcclStream(layer)
    if direction == "fwd":  # a backward pass knows the counts
        kernels, n_bytes = stream.kernels, COUNT_BYTES * model.n_experts
        stream.end = kernels.delay("counts", kernels.alltoall_ps(n_bytes, n_bytes // layer.n_gpus) + kernels.costs.kernel_ps)
    return _in_steps(layer, stream, options)


@system(
    "fastermoe",
    real=plan_real,
    source="FasterMoE (PPoPP'22); https://github.com/laekov/fastmoe (cuda/fastermoe/smart_schedule.h)",
    options=Options,
    traffic="one_copy_per_expert",
    serves=served,
    permutes=1,
    fused=False,
    colour="#999933",
    drops="exchange of counts, NCCL's start and pace, starts of kernels (form real has them); the host's wait, shadowing of hot experts",
    ships=Ships("FasterMoE: rows of the model's type by NCCL", ("ampere", "hopper", "blackwell"), {"fp8": {}, "bf16": {}}),
    today=True,
    several_domains=("paper", "real"),
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Exchanges by (step, local expert); the GEMMs of a step run expert by expert; a step returns after all its GEMMs."""
    if options.mediation and cluster.domains > 1:
        raise ConfigError(f"fastermoe.mediation: found {cluster.domains} NVLink domains, expected one")
    layer = nccl_layer(model, cluster, routing, direction, compute=options.compute)
    return _in_steps(layer, CommStream(layer), options)


def _in_steps(layer: LayerBuilder, stream: CommStream, options: Options) -> Program:
    """The layer with its exchanges on `stream`."""
    steps = n_steps(layer.n_gpus, options)
    local = layer.routing.placement.slots_per_gpu // steps
    parts = [(step, expert) for step in range(steps) for expert in range(local)]
    row_part, tile_part = (slot % steps * local + slot // steps % local for slot in (layer.p.slot, layer.tile_slot))
    there, back = ((layer.row_source, layer.row_gpu), (layer.row_gpu, layer.row_source))
    rows = [np.flatnonzero(row_part == part) for part in range(len(parts))]
    sent = []
    for (step, expert), mine in zip(parts, rows, strict=True):
        sends = layer.dispatch_rows(order=stream_order(layer, *there, mine))
        sent.append(stream.exchange(f"sent.{step}.{expert}", [sends]))
    arrived = [sent[(step + 1) * local - 1] for step, _ in parts]
    groups = [stream.started(Group(layer.tiles[tile_part == part], arrived[part])) for part in range(len(parts))]
    finished = in_groups(layer, groups)
    batches = layer.combine_row_chunks(Discipline.PROGRAM_ORDER, [stream_order(layer, *back, mine) for mine in rows])
    for (step, expert), batch in zip(parts, batches, strict=True):
        stream.exchange(f"returned.{step}.{expert}", [batch], finished[(step + 1) * local - 1])
    if options.mediation and not isinstance(stream, NcclStream):
        mediate(layer, counts=True, permutes=True)
    return layer.build("one_copy_per_expert")
