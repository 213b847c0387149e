"""All-gathers and reduce-scatters of rows: useful rows, and rows that no expert reads beside them."""

import numpy as np

from dysharp.program import I32, Kind, frozen
from dysharp.systems.building.batch import Batch, Sends, Transfers
from dysharp.systems.building.layer import LayerBuilder


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


def surplus_arrived(layer: LayerBuilder, collective: Collective) -> I32:
    """`[gpus]` one JOIN per GPU, which ends when the surplus rows of the GPU have arrived."""
    return layer.join("gathered", tiles=collective.tile)
