"""Layers in chunks, and all-gathers and reduce-scatters of rows.

Exchanges run on one communication stream per GPU, GEMMs on one compute stream per GPU: a chunk's exchange overlaps the GEMMs of another chunk. On one
stream nothing overlaps. An all-gather or a reduce-scatter has useful rows, and rows that no expert reads beside them.
"""

from collections.abc import Sequence

import numpy as np

from dysharp.program import I32, I64, Kind, Template, frozen, place_in, stable_order
from dysharp.systems.building.batch import Batch, Sends, Transfers
from dysharp.systems.building.between.rails import TwoLevelLayer
from dysharp.systems.building.experts import FILLER, MemoryKernels, Stage, add_stage, gang, gemm_task, stages
from dysharp.systems.building.layer import LayerBuilder


def stream_order(layer: LayerBuilder, node: I32, to: I32, rows: I64 | None = None, *, by_token: bool = False) -> I64:
    """The useful rows `rows` (rising, default: all), or with `by_token` (token, GPU) pairs, in the order in which an all-to-all sends them.

    `node`, `to`: sender and receiver of each row or pair. Each GPU sends its first row for every peer, then its
    second row for every peer. The rows for one peer are sorted by expert slot, or `by_token`.
    """
    n = layer.n_gpus
    rows = np.arange(len(node)) if rows is None else rows
    node, to = node[rows], to[rows]
    stream = node.astype(np.int64) * n + to
    slots = n * layer.routing.placement.slots_per_gpu
    # Useful rows are in the order of tokens, then of slots, and the sorts keep it where their keys are equal.
    by_stream = stable_order(stream if by_token else stream * slots + layer.p.slot[rows])
    place = place_in(stream, by_stream)
    return rows[stable_order((node * (1 + place.max(initial=0)) + place) * n + (to - node) % n)]


class CommStream:
    """The communication stream of every GPU: an exchange begins on a GPU when the exchange before it has ended there.

    An exchange ends on a GPU when all rows that the GPU sends and receives in it have been acknowledged.
    """

    def __init__(self, layer: LayerBuilder) -> None:
        self.layer = layer
        self.end: I32 | None = None
        self.sms: I32 | None = None

    def exchange(self, name: str, batches: Sequence[Sends], after: I32 | None = None) -> I32:
        """Queue the exchange of `batches` (program order), which also waits for the op `after[gpu]`.

        Returns `[gpus]` JOINs: the exchange has ended.
        """
        layer, end = self.layer, self.layer.join(name, self.end, after)
        for batch in batches:
            if not len(batch.op):
                continue
            for start in (self.end, after):
                layer.wait_first(batch, start)
            away, last = batch.to != batch.node, layer.last_hops(batch.op)
            layer.wait_each(end[batch.node], last)
            layer.wait_each(end[batch.to[away]], last[away])
        if isinstance(layer, TwoLevelLayer):
            layer.second_level(batches)
        self.end = end
        return end

    def around(self, tiles: I32) -> MemoryKernels | None:
        """What surrounds the GEMMs of `tiles`; here it costs nothing."""
        return None

    def gathered(self) -> None:
        """Results are put back into the order of tokens behind the last exchange; here this costs nothing."""


class NcclStream(CommStream):
    """As CommStream, where each exchange is an all-to-all of NCCL: its start, its own rows, and stores at NCCL's pace.

    An exchange starts when all GPUs have reached it. Rows have the model's own type. Needs an hw-* cluster.
    """

    def __init__(self, layer: LayerBuilder) -> None:
        super().__init__(layer)
        if layer.compute:
            self.sms = _on_sms(layer)
            self.sorts = self.around(layer.tiles)
            self.end = self.sorts.at_source("scatter", None)

    def exchange(self, name: str, batches: Sequence[Sends], after: I32 | None = None) -> I32:
        """As `CommStream.exchange`, after the start of the kernel on each GPU. An exchange back waits for GEMMs, `after`."""
        operator = "dispatch" if after is None else "combine"
        start = self.layer.all_to_all(name, operator, batches, self.layer.model.row_bytes, self.end, after)
        return super().exchange(name, batches, start)

    def queue(self, name: str, cost_ps: int) -> None:
        """A step of `cost_ps` behind what is on the stream."""
        self.end = self.layer.delay(name, cost_ps, after=self.end)

    def around(self, tiles: I32) -> MemoryKernels:
        """Cast, activation and starts of the GEMM kernels of a group of tiles."""
        first, second = stages(self.layer.model, self.layer.direction)
        assert self.sms is not None
        return MemoryKernels(self.layer, 0, self.sms, (len(first), len(second)), tiles)

    def gathered(self) -> None:
        """The gather, after the last exchange."""
        if self.sms is not None:
            self.sorts.at_source("gather", self.end)


@frozen
class Group:
    """GEMMs that start together: `tiles` of all GPUs, after the op `arrived[gpu]`.

    `padding`: `[gpus]` further whole tiles of rows that do not exist; None = none. `gradients`: `[gpus]` JOINs
    that wait for the group's weight gradients; None = no op waits for them.
    """

    tiles: I32
    arrived: I32
    padding: I64 | None = None
    gradients: I32 | None = None


def _on_sms(layer: LayerBuilder) -> I32:
    """`[gpus]` an issuer on all SMs of each GPU."""
    return layer.ready("sm", layer.pools(layer.cluster.n_sms))


def in_groups(layer: LayerBuilder, groups: Sequence[Group], stream: CommStream) -> list[I32]:
    """Run `groups` one after the other on each GPU, both stages of a group in sequence, with what `stream` has around them.

    Returns per group `[gpus]` the JOIN that ends its GEMMs. Without GEMMs a group ends when its rows have arrived.
    """
    if not layer.compute:
        return [group.arrived for group in groups]
    sms = _on_sms(layer) if stream.sms is None else stream.sms
    first, second = stages(layer.model, layer.direction)
    ends: list[I32] = []
    for group in groups:
        around, last = stream.around(group.tiles), ends[-1:]
        arrived = group.arrived if around is None else around.before(group.arrived, *last)
        half = _stage(layer, first, sms, group, [arrived, *last])
        ends.append(_stage(layer, second, sms, group, [half if around is None else around.between(half)]))
    return ends


def _stage(layer: LayerBuilder, stage: Stage, sms: I32, group: Group, before: Sequence[I32]) -> I32:
    """One stage of a group, after the ops `before[i][gpu]`. Returns `[gpus]` the JOIN behind its data GEMMs."""
    gpu = layer.tile_gpu[group.tiles]
    end = layer.join("group")
    data: list[Batch] = []
    heads: list[Batch] = []
    for gemm, ops in zip(stage, add_stage(layer, stage, sms, group.tiles), strict=True):
        added = [Batch(op=ops, node=gpu)]
        if group.padding is not None and group.padding.any():
            task = gemm_task(layer, gemm)
            work = Template(f"{gemm.fn}.padding", Kind.DELAY, gemm.operator, "delay", tasks=gang(gemm), duration=layer.b.duration(*task))
            node, urgency = np.repeat(layer.gpus, group.padding), FILLER if gemm.of_weights else 0
            added.append(Batch(op=layer.add(work, node, issuer=sms[node], prio=urgency, rows=layer.tiling.rows), node=node))
        heads += added
        data += [] if gemm.of_weights else added
        if gemm.of_weights and group.gradients is not None:
            layer.wait_each(group.gradients[gpu], ops)
    for tail in before:
        layer.wait_each(end, tail)
        for batch in heads:
            layer.wait_each(batch.op, tail[batch.node])
    for batch in data:
        layer.wait_each(end[batch.node], batch.op)
    return end


@frozen
class Collective:
    """The rows of an all-gather or reduce-scatter.

    `rows`: all rows in the order of sending: each GPU sends its first token to all peers in turn, then its second.
    `surplus`: the rows that no expert reads, one per (token, GPU) without an expert of the token.
    `tile`: `[gpus]` region tile that is ready when all surplus rows of a GPU have arrived, -1 = none comes. With
    `by_sender` `[gpus, senders]`: the surplus rows of one sender.
    """

    rows: Sends
    surplus: Batch
    tile: I32


def collective(layer: LayerBuilder, operator: str, useful: Transfers, turns: I32 | None = None, *, by_sender: bool = False) -> Collective:
    """Add the surplus rows of `operator` beside its `useful` rows (one per pair).

    `turns`: issuers of both, see `LayerBuilder.turn`. `by_sender`: see `Collective.tile`.
    """
    p = layer.p
    needed = np.zeros((layer.routing.n_tokens, layer.n_gpus), bool)
    needed[p.token, p.gpu] = True
    needed[np.arange(layer.routing.n_tokens), layer.p.every_source] = True
    token, gpu = (axis.astype(np.int32) for axis in np.nonzero(~needed))
    source = layer.p.every_source[token]
    node, to = (source, gpu) if operator == "dispatch" else (gpu, source)
    order = np.lexsort((token, node))
    token, node, to = token[order], node[order], to[order]
    surplus, tile = _surplus_rows(layer, operator, token, node, to, turns, by_sender)
    token, node, to = np.append(p.token[useful.unit], token), np.append(useful.node, node), np.append(useful.to, to)
    order = np.lexsort(((to - node) % layer.n_gpus, token % layer.tokens, node))
    rows = Sends(op=np.append(useful.op, surplus.op)[order], node=node[order], to=to[order])
    return Collective(rows, surplus, tile)


def _surplus_rows(layer: LayerBuilder, operator: str, token: I32, node: I32, to: I32, turns: I32 | None, by_sender: bool) -> tuple[Batch, I32]:
    """PUTs of surplus rows into regions of their own at each GPU. Returns (PUTs, `Collective.tile`)."""
    n_bytes = layer.sent_bytes if operator == "dispatch" else layer.model.row_bytes
    senders = layer.n_gpus if by_sender else 1
    row, tile = layer.gathering_rows(f"{operator}.surplus", to * np.int32(senders) + (node if by_sender else 0), n_bytes, each=senders)
    template = layer.transfer(f"{operator}.surplus", Kind.PUT, operator)
    issuer = layer.ready(f"{operator}.surplus") if turns is None else turns
    op = layer.put(template, node, to, row, issuer=issuer[node], prio=layer.turn(node, to, turns), bytes=n_bytes, key=token)
    return Batch(op=op, node=node), tile.reshape(-1, senders) if by_sender else tile
