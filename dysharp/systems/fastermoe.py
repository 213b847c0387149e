"""FasterMoE: all-to-alls by groups of peers, whose GEMMs overlap the exchange with other groups.

Weights and gradients of an expert with shadows go between all GPUs by NCCL's ring for broadcast and reduce, without software costs. The bytes are
control words: the functional machine takes weights from the expert and sums gradients per expert.
"""

from dataclasses import replace

import numpy as np

from dysharp.base import ConfigError
from dysharp.costs.gemm import ACCUMULATOR_BYTES
from dysharp.program import I32, I64, Discipline, Kind, frozen
from dysharp.specs import choice_int
from dysharp.systems.building import CommStream, Group, LayerBuilder, NcclStream, by_rails, in_groups, mediate, placed, stream_order
from dysharp.systems.building.batch import Landing, Sends, ids
from dysharp.systems.building.moved import GRADIENTS
from dysharp.systems.facts import AMPERE_ON, ANY_TYPE, BOTH_FORMS, Costs, Facts, Form, Moves, Reach, Ships, Shown
from dysharp.systems.registry import system
from dysharp.workload import Routing, in_parts, rows_per_expert, with_shadows, worth_shadows


def _ring(layer: LayerBuilder, name: str, number: int, first: int, n_bytes: int) -> Sends:
    """`n_bytes` from GPU `first` from GPU to GPU until all have had them, in equal trains.

    A train goes on when it has arrived; a GPU sends in order. Each hop has a template and regions of its own name, so that the
    verifier sees that no hop waits for itself.
    """
    n = layer.n_gpus
    if n == 1:
        return Sends(op=ids(0, 0), node=ids(0, 0), to=ids(0, 0))
    trains = -(-n_bytes // layer.b.hardware.train_bytes)
    size = -(-n_bytes // trains)
    template = layer.transfer(name, Kind.PUT, "other")
    issuer, train = layer.issuers(name), np.arange(trains)
    nodes, ops = [], []
    landed: Landing | None = None
    for hop in range(n - 1):
        node, to = (np.full(trains, (first + hop + i) % n, np.int32) for i in (0, 1))
        before, landed = landed, layer.landing(f"{name}.{number}.{hop}", to, train, train.astype(np.int32), size)
        ops.append(layer.put(template, node, to, landed.row, issuer=issuer[node], bytes=size))
        nodes.append((node, to))
        if before is not None:
            layer.wait_tiles(ops[-1], before.tile)
    node, to = (np.concatenate(ends) for ends in zip(*nodes, strict=True))
    return Sends(op=np.concatenate(ops), node=node, to=to)


COUNT_BYTES = 8  # rows of an expert as int64


@frozen
class Options(Form):
    """Options of FasterMoE.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `group` | GPUs of a group of peers (FMOE_FASTER_GROUP_SIZE); at most all GPUs, and a divisor of their number |
    | `shadow` | copies of hot experts on all GPUs: a copy must take more than this number of rows from the hottest expert; 0 = off, as released |
    | `mediation` | rows are sorted, and the host waits for counts, before Dispatch; results are put back after Combine |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds the exchange of counts, NCCL's start and pace per (step, local expert), and the starts of the GEMM
    kernels. It has no shadows: NCCL's broadcast and reduce are not measured.
    """

    group: int = choice_int("fastermoe.group")
    shadow: int = choice_int("fastermoe.shadow")
    mediation: bool = False
    compute: bool = True


def _n_steps(n_gpus: int, options: Options) -> int:
    """Steps of the schedule: in step s a GPU sends to the s-th group after its own. 1 = no overlap."""
    size = min(options.group, n_gpus)
    while n_gpus % size:
        size -= 1
    return n_gpus // size


def _served(routing: Routing, options: Options) -> Routing:
    """Every expert gets a slot per step, because the rows of a step are computed on their own. Hot experts have shadows."""
    steps = _n_steps(routing.n_gpus, options)
    if routing.placement.parts != 1 or routing.placement.shadows:  # served already
        return routing
    if options.shadow:
        routing = with_shadows(routing, np.sort(worth_shadows(rows_per_expert(routing), options.shadow)))
    if steps == 1:
        return routing
    size = routing.n_gpus // steps
    source = np.arange(routing.n_tokens)[:, None] // routing.tokens_per_gpu
    gpu = routing.slot // routing.placement.slots_per_gpu
    return in_parts(routing, (gpu // size - source // size) % steps, steps)


FACTS = Facts(
    source="FasterMoE (PPoPP'22); https://github.com/laekov/fastmoe (cuda/fastermoe/smart_schedule.h)",
    options=Options,
    moves=Moves("one_copy_per_expert", serves=_served),
    costs=Costs(permutes=1, fused=False, drops="exchange of counts, NCCL's start and pace, starts of kernels (form real has them); the host's wait"),
    reach=Reach(domains=BOTH_FORMS, by_name=BOTH_FORMS),  # it computes tiles of an expert by step, so leading tokens give no estimate
    shown=Shown("#BB9955"),
    ships=Ships("FasterMoE: rows of the model's type by NCCL", AMPERE_ON, ANY_TYPE),
)


def plan_real(layer: LayerBuilder, options: Options) -> None:
    """The paper form with the software costs of its all-to-alls and kernels."""
    if options.shadow:
        raise ConfigError(f"fastermoe.shadow: found {options.shadow} in real form, expected 0 (no broadcast by NCCL is measured), or form=paper")
    stream = NcclStream(layer)
    if layer.direction == "fwd":  # a backward pass knows the counts
        n_bytes = COUNT_BYTES * layer.model.n_experts
        stream.queue("counts", layer.alltoall_ps(n_bytes, n_bytes // layer.n_gpus) + layer.costs.kernel_ps)
    _in_steps(layer, stream, options)


@system("fastermoe", FACTS, real=plan_real, begins=by_rails)
def plan(layer: LayerBuilder, options: Options) -> None:
    """Exchanges by (step, local expert); the GEMMs of a step run expert by expert; a step returns after all its GEMMs."""
    for option in ("mediation", "shadow"):
        if getattr(options, option) and layer.cluster.domains > 1:
            raise ConfigError(f"fastermoe.{option}: found {layer.cluster.domains} NVLink domains, expected one")
    _in_steps(layer, CommStream(layer), options)


def _in_steps(layer: LayerBuilder, stream: CommStream, options: Options) -> None:
    """The layer with its exchanges on `stream`. Part numbers: (step, local expert), then the shadows."""
    steps, shadows = _n_steps(layer.n_gpus, options), layer.routing.placement.shadows
    local = layer.routing.placement.slots_per_gpu // steps - shadows
    parts = [(step, expert) for step in range(steps) for expert in range(local)]
    row_part, tile_part = (_part(slot, steps, local, shadows) for slot in (layer.p.slot, layer.tile_slot))
    there, back = ((layer.p.row_source, layer.p.row_gpu), (layer.p.row_gpu, layer.p.row_source))
    rows = [np.flatnonzero(row_part == part) for part in range(len(parts) + shadows)]
    here = _own_rows(layer, rows[len(parts) :])
    sent = []
    for (step, expert), mine in zip(parts, rows, strict=False):
        sends = layer.dispatch_rows(order=stream_order(layer, *there, mine))
        sent.append(stream.exchange(f"sent.{step}.{expert}", [sends]))
    arrived = [sent[(step + 1) * local - 1] for step, _ in parts]
    groups = [Group(layer.tiles[tile_part == part], arrived[part]) for part in range(len(parts))]
    copies = [Group(layer.tiles[tile_part == len(parts) + i], end) for i, end in enumerate(here)]
    if layer.direction == "fwd":
        finished = in_groups(layer, groups + _with_weights(layer, stream, copies), stream)
    else:  # shadows need no rows from elsewhere and come first
        copies = [replace(copy, gradients=layer.join(GRADIENTS)) for copy in copies]
        ends = in_groups(layer, copies + groups, stream)
        finished = ends[shadows:] + ends[:shadows]
        for i, (copy, owner) in enumerate(zip(copies, _owners(layer), strict=True)):
            stream.exchange(
                f"gradients.{i}", [_ring(layer, "weights.reduce", i, owner + 1, layer.model.expert_weights * ACCUMULATOR_BYTES)], copy.gradients
            )
    batches = layer.combine_row_chunks(Discipline.PROGRAM_ORDER, [stream_order(layer, *back, mine) for mine in rows])
    for (step, expert), batch in zip(parts, batches, strict=False):
        stream.exchange(f"returned.{step}.{expert}", [batch], finished[(step + 1) * local - 1])
    for batch, end in zip(batches[len(parts) :], finished[len(parts) :], strict=True):
        layer.wait_first(batch, end)
    stream.gathered()
    if options.mediation and not isinstance(stream, NcclStream):
        mediate(layer, counts=True, permutes=True)


def _part(slot: I32, steps: int, local: int, shadows: int) -> I32:
    """`[n]` part of each slot: step * `local` + local expert, or behind all of these the number of the shadow."""
    step, expert = slot % steps, slot // steps % (local + shadows)
    return np.where(expert < local, step * local + expert, steps * local + expert - local)


def _own_rows(layer: LayerBuilder, rows: list[I64]) -> list[I32]:
    """For each shadow `[gpus]` JOINs after the GPU's own `rows` for the shadow, which the GPU reads from its own memory."""
    if not rows:
        return []
    # One issuer per GPU, before all exchanges: many rows of one instant then come GPU by GPU, as the engine keeps them.
    order, here = np.concatenate(rows), [layer.join("own") for _ in rows]
    own = layer.dispatch_rows(order=order[np.argsort(layer.p.row_gpu[order], kind="stable")])
    shadow = placed(len(layer.row_of), order, np.repeat(np.arange(len(rows)), [len(mine) for mine in rows]))
    for i, end in enumerate(here):
        mine = shadow[own.unit] == i
        layer.wait_each(end[own.node[mine]], own.op[mine])
    return here


def _owners(layer: LayerBuilder) -> list[int]:
    """The GPU that each shadow was copied from: the GPU of the expert's first slot."""
    p = layer.routing.placement
    held = p.slot_expert.reshape(p.n_gpus, -1, p.parts)[:, :, 0]
    return [int(np.flatnonzero((held[:, : -p.shadows] == expert).any(axis=1))[0]) for expert in held[0, held.shape[1] - p.shadows :]]


def _with_weights(layer: LayerBuilder, stream: CommStream, copies: list[Group]) -> list[Group]:
    """The shadows, each behind the broadcast of its weights, one broadcast after the other."""
    ready = []
    for i, (copy, owner) in enumerate(zip(copies, _owners(layer), strict=True)):
        there = stream.exchange(f"weights.{i}", [_ring(layer, "weights.broadcast", i, owner, int(np.ceil(layer.expert_bytes)))])
        layer.wait_each(copy.arrived, there)
        ready.append(copy)
    return ready
