"""Tutel: padded all-to-alls of a fixed capacity per expert, in chunks that overlap the GEMMs of other chunks."""

from dataclasses import replace

import numpy as np

from dysharp.base import ByName, ConfigError, check_word
from dysharp.program import I32, I64, Bools, Discipline, Ints, Kind, frozen, place_in, spans
from dysharp.specs import choice_int
from dysharp.systems.building import CommStream, Group, LayerBuilder, NcclStream, Sends, by_rails, in_groups, mediate, stream_order
from dysharp.systems.building.between.rails import TwoLevelLayer
from dysharp.systems.building.ways import ByRail
from dysharp.systems.facts import AMPERE_ON, ANY_TYPE, BOTH_FORMS, Costs, Facts, Form, Layer, Moves, Reach, Ships, Shown
from dysharp.systems.registry import system
from dysharp.workload import Levels, Routing, Rows, by_domain, in_parts, one_copy_per_gpu, rail_rows
from dysharp.workload.routing import rows_by_source

GONE = np.int32(-1)
COUNT_BYTES = 8  # the largest count, as int64
A2A = ("linear", "2dh")
COPIES = ("expert", "gpu")


@frozen
class Options(Form):
    """Options of Tutel.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `capacity` | capacity factor in percent: rows that a GPU may send to an expert, over the mean. 0 = as many as needed |
    | `degree` | chunks of the capacity (`a2a_ffn_overlap_degree`); 1 = no overlap |
    | `a2a` | all-to-all over several NVLink domains: "linear" (NCCL's, by rails) or "2dh" (Tutel's two levels; paper form) |
    | `copies` | a row for each "expert" of a token (Tutel), or one for each distinct "gpu" (no released software; paper form): an ablation |
    | `mediation` | rows are sorted before Dispatch and after Combine; with capacity 0 the host also waits for counts |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    Choices beyond the capacity are dropped. Rows up to the capacity are padded: they are sent and computed. With
    copies="gpu" a chunk is a run of a GPU's tokens, and nothing is dropped or padded. The real form adds NCCL's start and
    pace per all-to-all, the starts of the GEMM kernels of each chunk, and, with an automatic capacity, the all-reduce that
    finds it.
    """

    capacity: int = choice_int("tutel.capacity")
    degree: int = choice_int("tutel.degree")
    a2a: str = "linear"
    copies: str = "expert"
    mediation: bool = False
    compute: bool = True


def served(routing: Routing, options: Options) -> Routing:
    """The choices within the capacity, with the slot of every expert in `degree` parts, one for each chunk.

    A GPU fills the places of an expert by top-k column, then by token.
    """
    if routing.placement.parts != 1:  # served already
        return routing
    if _per_gpu(options):
        chunk = np.arange(routing.n_tokens) % routing.tokens_per_gpu * options.degree // routing.tokens_per_gpu
        return in_parts(routing, np.broadcast_to(chunk[:, None], routing.slot.shape), options.degree) if options.degree > 1 else routing
    place, capacity = _places(routing), _capacity_rows(routing, options)
    kept = (routing.slot >= 0) & (place < capacity)
    within = replace(routing, expert=np.where(kept, routing.expert, GONE), slot=np.where(kept, routing.slot, GONE))
    return in_parts(within, place // (capacity // options.degree), options.degree) if options.degree > 1 else within


def _places(routing: Routing) -> I64:
    """`[tokens, topk]` place of each choice among the choices of its GPU for its expert slot, -1 = dropped."""
    slot = routing.slot.T.ravel().astype(np.int64)  # column by column
    source = np.tile(np.arange(routing.n_tokens) // routing.tokens_per_gpu, routing.topk)
    stream = np.where(slot >= 0, source * routing.placement.n_slots + slot, -1)
    return np.where(stream >= 0, place_in(stream), -1).reshape(routing.topk, -1).T


def _capacity_rows(routing: Routing, options: Options) -> int:
    """Rows that a GPU sends to every expert slot: the capacity, rounded up to a multiple of `degree`.

    Automatic: the most rows that a GPU has for an expert slot.
    """
    if options.capacity:
        rows = routing.topk * (-(-routing.tokens_per_gpu // routing.n_experts) * options.capacity // 100)
    else:
        per_slot = int(_sent(routing).sum(axis=2).max(initial=0))
        rows = max(1, per_slot)
    return -(-rows // options.degree) * options.degree


def _sent(routing: Routing) -> I64:
    """`[GPUs, whole expert slots, parts]` rows that each GPU sends to each part of each slot."""
    return rows_by_source(routing).reshape(routing.n_gpus, -1, routing.placement.parts)


def _used(routing: Routing) -> I64:
    """`[whole expert slots]` 1 where the slot holds an expert."""
    return (routing.placement.slot_expert[:: routing.placement.parts] >= 0).astype(np.int64)


def _padded(routing: Routing, options: Options) -> Rows:
    """Dispatch sends the capacity to every expert of every other GPU, or with copies="gpu" a token to each of its other GPUs."""
    if _per_gpu(options):
        return one_copy_per_gpu(routing)
    here = _used(routing).reshape(routing.n_gpus, -1).sum(axis=1)
    capacity = _capacity_rows(routing, options)
    return (here.sum() - here) * capacity, here * (routing.n_gpus - 1) * capacity


FACTS = Facts(
    source="Tutel (MLSys'23); https://github.com/microsoft/Tutel",
    options=Options,
    moves=Moves(_padded, serves=served),
    costs=Costs(
        permutes=1,
        fused=False,
        drops="NCCL's start and pace, the exchange of the capacity, starts of kernels (form real has them); the host's wait for the capacity",
    ),
    reach=Reach(domains=BOTH_FORMS, by_name=BOTH_FORMS),  # it pads tiles, so leading tokens give no estimate
    shown=Shown("#005577"),
    ships=Ships("Tutel: rows of the model's type by NCCL", AMPERE_ON, ANY_TYPE),
)


def _padded_levels(routing: Routing, options: Options, domain_gpus: int) -> Levels:
    """`padded` by network over several NVLink domains: rows leave a domain at the GPU with their receiver's index, either way."""
    here = _used(routing).reshape(routing.n_gpus, -1).sum(axis=1)
    rows = np.broadcast_to(here * _capacity_rows(routing, options), (routing.n_gpus, routing.n_gpus))
    return rail_rows(*by_domain(rows, domain_gpus), domain_gpus)


def _per_gpu(options: Options) -> bool:
    """Whether a token goes once to each distinct GPU. Raises ConfigError for an unknown word."""
    check_word(options.copies, COPIES, f"tutel.copies: found {options.copies!r}")
    return options.copies == "gpu"


class _ByLevel(ByRail):
    """As `ByRail`, level by level: rows for the own rail are copied into the buffer of the second level."""

    def leaves(self, node: Ints, to: Ints) -> Bools:
        """No row leaves its GPU by NIC."""
        return np.zeros(len(node), bool)


def _begins(layer: Layer, options: Options) -> ByName:
    """The builder with the all-to-all of `options`."""
    _per_gpu(options)
    check_word(options.a2a, A2A, f"tutel.a2a: found {options.a2a!r}")
    return {"kind": TwoLevelLayer, "ways": _ByLevel} if options.a2a == "2dh" and layer.cluster.domains > 1 else by_rails(layer, options)


def plan_real(layer: LayerBuilder, options: Options) -> None:
    """The paper form with the software costs of its all-to-alls and kernels."""
    if _per_gpu(options):
        raise ConfigError('tutel.copies: found "gpu" in real form, expected "expert" (no released software sends so), or form=paper')
    if layer.cluster.domains > 1 and options.a2a == "2dh":
        raise ConfigError('tutel.a2a: found "2dh" in real form, expected "linear" (no rate of its copies is public), or form=paper')
    if layer.cluster.domains > 1 and not options.capacity:
        raise ConfigError(
            "tutel.capacity: found 0 in real form over several NVLink domains, expected above 0 (no all-reduce between nodes is measured)"
        )
    stream = NcclStream(layer)
    if not options.capacity and layer.direction == "fwd":  # a backward pass knows the capacity
        stream.queue("capacity", layer.costs.collective_ps("all_reduce", layer.n_gpus, COUNT_BYTES) + layer.costs.kernel_ps)
    _in_chunks(layer, stream, options)


@system("tutel", FACTS, real=plan_real, begins=_begins)
def plan(layer: LayerBuilder, options: Options) -> None:
    """Per chunk of the capacity: all-to-all, GEMM-1, GEMM-2, all-to-all back. All-to-alls of Dispatch come before all-to-alls of Combine."""
    domains = layer.cluster.domains
    if options.mediation and domains > 1:
        raise ConfigError(f"tutel.mediation: found {domains} NVLink domains, expected one")
    if _per_gpu(options) and domains > 1:
        raise ConfigError(f'tutel.copies: found "gpu" over {domains} NVLink domains, expected one')
    _in_chunks(layer, CommStream(layer), options)


def _in_chunks(layer: LayerBuilder, stream: CommStream, options: Options) -> None:
    """The layer with its exchanges on `stream`: in chunks of the capacity, or in runs of tokens that go once to each of their GPUs."""
    p, degree, per_gpu = layer.p, options.degree, _per_gpu(options)
    there, chunk_of = ((p.row_source, p.row_gpu), p.slot % degree)
    if per_gpu:
        there, chunk_of = (p.source, p.gpu), p.token % layer.tokens * degree // layer.tokens
    chunks = [np.flatnonzero(chunk_of == chunk) for chunk in range(degree)]
    missing = (_capacity_rows(layer.routing, options) // degree - _sent(layer.routing)) * _used(layer.routing)[:, None]

    def padding(operator: str, chunk: int) -> list[Sends]:
        return [] if per_gpu else [_padding(layer, operator, missing[:, :, chunk])]

    groups = []
    for chunk, mine in enumerate(chunks):
        order = stream_order(layer, *there, mine, by_token=per_gpu)
        sends = [layer.dispatch_pairs(order) if per_gpu else layer.dispatch_rows(order=order), *padding("dispatch", chunk)]
        tiles = layer.tiles[layer.tile_slot % degree == chunk]
        groups.append(Group(tiles, stream.exchange(f"sent.{chunk}", sends), None if per_gpu else _padding_tiles(layer, options, tiles)))
    finished = in_groups(layer, groups, stream)
    orders = [stream_order(layer, *there[::-1], mine, by_token=per_gpu) for mine in chunks]
    returns = layer.combine_pair_chunks(orders) if per_gpu else layer.combine_row_chunks(Discipline.PROGRAM_ORDER, orders)
    for chunk, back in enumerate(returns):
        stream.exchange(f"returned.{chunk}", [back, *padding("combine", chunk)], finished[chunk])
    stream.gathered()
    if options.mediation and not isinstance(stream, NcclStream):
        mediate(layer, counts=per_gpu or options.capacity == 0, permutes=True)
    if layer.cluster.domains > 1:
        layer.levels = _padded_levels(layer.routing, options, layer.cluster.domain_gpus)


def _padding(layer: LayerBuilder, operator: str, missing: I64) -> Sends:
    """The padding rows of one all-to-all, into a region of their own at each receiver: `missing[gpu, slot]` rows that the GPU sends and gets back."""
    n = layer.n_gpus
    between = missing.reshape(n, n, -1).sum(axis=2)
    np.fill_diagonal(between, 0)
    between = between if operator == "dispatch" else between.T
    stream = np.repeat(np.arange(n * n), between.ravel())
    node, to = np.divmod(stream, n)
    order = np.lexsort(((to - node) % n, spans(0, between.ravel()), node))
    n_bytes = layer.sent_bytes if operator == "dispatch" else layer.back_bytes
    gpu, peer = node[order].astype(np.int32), to[order].astype(np.int32)
    row, _ = layer.gathering_rows(f"{operator}.padding", peer, n_bytes)
    template, issuer = layer.transfer(f"{operator}.padding", Kind.PUT, operator), layer.issuers(f"{operator}.padding")
    batch = Sends(op=layer.puts(template, gpu, peer, row, issuer=issuer[gpu], bytes=n_bytes), node=gpu, to=peer)
    if operator == "dispatch":
        layer.dispatched.append(batch)
    return batch


def _padding_tiles(layer: LayerBuilder, options: Options, tiles: I32) -> I64:
    """`[gpus]` GEMM tiles of a chunk beyond `tiles`: an expert computes the capacity of all GPUs."""
    rows = layer.n_gpus * _capacity_rows(layer.routing, options) // options.degree
    used = _used(layer.routing).reshape(layer.n_gpus, -1).sum(axis=1)
    useful = layer.counted(layer.tile_gpu[tiles])
    return np.asarray(used * -(-rows // layer.tiling.rows) - useful, np.int64)
