"""All-gathers and reduce-scatters of rows: useful rows, and rows that no expert reads beside them."""

from dataclasses import dataclass

import numpy as np

from dysharp.program import I32, REQUESTS, Alloc, Discipline, Kind, Template
from dysharp.systems.building.batch import Batch, Sends, Transfers, placed
from dysharp.systems.building.layer import STORE, LayerBuilder


@dataclass(frozen=True, slots=True)
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
    n = layer.n_gpus
    n_bytes = layer.sent_bytes if operator == "dispatch" else layer.model.row_bytes
    senders = n if by_sender else 1
    region = to * np.int32(senders) + (node if by_sender else 0)
    here = np.bincount(region, minlength=n * senders)
    place = placed(len(to), np.argsort(region, kind="stable"), np.arange(len(to)))
    holder = np.repeat(np.arange(n), senders)
    _, row, first_tile = layer.b.regions(holder, here, n_bytes, int(max(1, here.max())), alloc=Alloc.PREFIX, name=f"{operator}.surplus")
    template = Template(f"{operator}.surplus", Kind.PUT, operator, "control", REQUESTS, framing=layer.b.framing(STORE))
    issuer = layer.per_gpu(Discipline.READY_FIFO, f"{operator}.surplus") if turns is None else turns
    op = layer.put(template, node, to, row + place, issuer=issuer[node], prio=layer.turn(node, to, turns), bytes=n_bytes, key=token)
    tile = np.where(here > 0, first_tile + np.cumsum(here > 0) - 1, -1).astype(np.int32)
    return Batch(op=op, node=node), tile.reshape(n, senders) if by_sender else tile


def surplus_arrived(layer: LayerBuilder, collective: Collective) -> I32:
    """`[gpus]` one JOIN per GPU, which ends when the surplus rows of the GPU have arrived."""
    gathered = layer.join("gathered")
    layer.wait_tiles(gathered, collective.tile)
    return gathered
