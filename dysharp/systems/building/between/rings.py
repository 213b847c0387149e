"""`gather`, `scatter`: all-gather and reduce-scatter by rings over several NVLink domains (`workload.levels`), without software costs.

Token t of a GPU takes ring t mod D of D. In the all-gather its row goes from GPU to GPU until all have it. In the
reduce-scatter a sum goes the same way from the GPU behind the source to the source, and every GPU adds its experts' rows. Sums are
rounded at every GPU that adds something. Before the first of them the ring carries rows that are no part of the sum (zeros).
"""

from collections.abc import Callable

import numpy as np

from dysharp.program import BETWEEN_NET, I32, I64, Bools, Kind, frozen, spans
from dysharp.systems.building.batch import Sends, placed
from dysharp.systems.building.layer import LayerBuilder
from dysharp.workload import rail_rings


@frozen
class _Hops:
    """Every hop of every token around its ring, hop by hop. All `[hops]`; `place`: hops before it of the same token."""

    token: I32
    place: I64
    node: I32
    to: I32


def _hops_of(layer: LayerBuilder, first: int) -> _Hops:
    """The hops of all tokens. `first`: the hop from the source (0) or from the GPU behind the source (1)."""
    n, size = layer.n_gpus, layer.cluster.domain_gpus
    ring = rail_rings(n, size)
    at = np.empty_like(ring)
    np.put_along_axis(at, ring, np.broadcast_to(np.arange(n), ring.shape), axis=1)
    token = np.arange(layer.routing.n_tokens)
    own = token % layer.tokens % size
    start = at[own, layer.p.every_source] + first
    place = np.repeat(np.arange(n - 1), len(token))
    which, where = np.tile(own, n - 1), np.tile(start, n - 1) + place
    node, to = (ring[which, (where + i) % n].astype(np.int32) for i in (0, 1))
    return _Hops(np.tile(token, n - 1).astype(np.int32), place, node, to)


Pace = Callable[[Sends], I32]
"""Adds what paces transfers that leave by NVLink. Returns `[n]` the op that edges to each transfer hold back."""


def _unpaced(sends: Sends) -> I32:
    """Transfers without a pace of their own."""
    return sends.op


def gather(layer: LayerBuilder, pace: Pace = _unpaced, start: I32 | None = None) -> I32:
    """The all-gather, after the op `start[gpu]`. Returns `[gpus]` JOINs, which end when the GPU has the rows of all tokens."""
    hops, pair = _hops_of(layer, 0), layer.p.pair_of
    landed = layer.landing("relay", hops.to, np.arange(len(hops.to)), hops.token, layer.sent_bytes)
    issuer = layer.ready("ring")
    for mine, net, src in _ways(layer, hops):
        needed = pair[hops.token[mine], hops.to[mine]]
        extra = np.where(needed >= 0, layer.p.rows[needed], 0)
        fills = 1 + extra
        rows = np.empty(int(fills.sum()), np.int32)
        first = np.cumsum(fills) - fills
        rows[first] = landed.row[mine]
        behind = np.ones(len(rows), bool)
        behind[first] = False
        rows[behind] = layer.row_of[spans(layer.p.slot_ptr[needed[needed >= 0]], extra[needed >= 0])]
        template = layer.transfer("dispatch.ring", Kind.PUT, "dispatch", "copy", layer.sent_buffer if src else "relay", layer.arrived, net=net)
        node, to, token = hops.node[mine], hops.to[mine], hops.token[mine]
        op = layer.put(template, node, to, rows, rows=fills, issuer=issuer[node], key=token, **layer.row_columns)
        heads = pace(Sends(op=op, node=node, to=to))
        if not src:
            layer.wait_tiles(heads, landed.tile[mine - layer.routing.n_tokens])
        else:
            layer.wait_each(heads, None if start is None else start[node])
    own = np.flatnonzero(layer.p.gpu == layer.p.source)
    template = layer.transfer("dispatch.own", Kind.PUT, "dispatch", "copy", layer.sent_buffer, layer.arrived)
    node, fills = layer.p.gpu[own], layer.p.rows[own]
    row, columns = layer.row_of[spans(layer.p.slot_ptr[own], fills)], {"issuer": issuer[node], "key": layer.p.token[own]}
    own_ops = layer.put(template, node, node, row, rows=fills, **layer.row_columns, **columns)
    layer.wait_each(own_ops, None if start is None else start[node])
    gathered = layer.join("gathered")
    layer.wait_tiles(gathered[hops.to], landed.tile)
    return gathered


def scatter(layer: LayerBuilder, finished: I32, pace: Pace = _unpaced) -> I32:
    """The reduce-scatter, in which a GPU takes part after `finished[gpu]`.

    Returns `[gpus]` region tiles that are ready when a GPU has all sums of its tokens, -1 = it has none.
    """
    p, hops = layer.p, _hops_of(layer, 1)
    n_tokens, n = layer.routing.n_tokens, layer.n_gpus
    adds = layer.p.pair_of[hops.token, hops.node] >= 0
    filled: Bools = np.logical_or.accumulate(adds.reshape(n - 1, n_tokens)).ravel()  # the hop carries a part of the sum
    last = hops.place == n - 2
    # Parts of a sum at a GPU: what the ring brings, and its own. They are a tile, for which the hop out waits.
    into, own = np.flatnonzero(filled & ~last), np.flatnonzero(p.gpu != layer.p.source)
    out = np.empty((n_tokens, n), np.int64)  # the hop of a token out of a GPU
    out[hops.token, hops.node] = np.arange(len(hops.node))
    group = np.append(out[hops.token[into], hops.to[into]], out[p.token[own], p.gpu[own]])
    used, group = np.unique(group, return_inverse=True)
    key = np.append(hops.token[into], p.token[own])
    parts = layer.landing("relay.partial", hops.node[used], group, key, layer.back_bytes)
    none = np.flatnonzero(~filled)
    empty = layer.landing("ring.empty", hops.to[none], np.arange(len(none)), hops.token[none], layer.back_bytes)
    sums, row, returned = _results(layer, np.flatnonzero(filled & last), hops)
    row_of_hop = np.empty(len(hops.to), np.int32)
    row_of_hop[into], row_of_hop[none], row_of_hop[filled & last] = parts.row[: len(into)], empty.row, row[: len(sums)]
    gathers = _own_parts(layer, own, parts.row[len(into) :], row[len(sums) :])
    layer.wait_each(gathers, finished[p.gpu[np.append(own, np.flatnonzero(p.gpu == layer.p.source))]])
    issuer, op = layer.ready("back"), np.empty(len(hops.to), np.int32)
    for mine, net, _ in _ways(layer, hops):
        for fn, some in (("relay_sum", mine[filled[mine]]), ("control", mine[~filled[mine]])):
            for at_source in (False, True):
                these = some[last[some] == at_source]
                src, dst = ("relay.partial", "partial" if at_source else "relay.partial") if fn == "relay_sum" else ("", "")
                template = layer.transfer("combine.ring" if src else "combine.empty", Kind.PUT, "combine", fn, src, dst, net=net)
                node, to, columns = hops.node[these], hops.to[these], {"issuer": issuer[hops.node[these]], "key": hops.token[these]}
                ops = layer.put(template, node, to, row_of_hop[these], **layer.result_columns, **columns)
                op[these] = pace(Sends(op=ops, node=node, to=to))
    layer.wait_tiles(op[used], parts.tile)
    onward = none[~last[none]]
    layer.wait_tiles(op[out[hops.token[onward], hops.to[onward]]], empty.tile[np.searchsorted(none, onward)])
    starts = np.flatnonzero((hops.place == 0) & ~filled)
    layer.wait_each(op[starts], finished[hops.node[starts]])
    return returned


def _results(layer: LayerBuilder, sums: I64, hops: _Hops) -> tuple[I64, I32, I32]:
    """Rows "partial" at the sources: the sums that rings bring, then the sources' own. Returns (`sums`, rows, `[gpus]` tiles)."""
    p = layer.p
    own = np.flatnonzero(p.gpu == layer.p.source)
    token = np.append(hops.token[sums], p.token[own])
    source = token // np.int32(layer.tokens)
    by_token = np.argsort(token, kind="stable")
    rows, tile = layer.gathering_rows("partial", source[by_token], layer.back_bytes, token[by_token])
    return sums, placed(len(token), by_token, rows), tile


def _own_parts(layer: LayerBuilder, pairs: I64, parts: I32, results: I32) -> I32:
    """The sum of a GPU's experts into its part of the ring's sum (`pairs`), or into the result at the source. Returns the ops."""
    p, ops = layer.p, []
    issuer = layer.ready("combine")
    at_source = np.flatnonzero(p.gpu == layer.p.source)
    for these, rows, dst in ((pairs, parts, "relay.partial"), (at_source, results, "partial")):
        template, node = layer.transfer("combine.own", Kind.PUT, "combine", "sum", layer.result, dst), p.gpu[these]
        columns = {"issuer": issuer[node], "key": p.token[these]}
        ops.append(layer.put(template, node, node, rows, **layer.result_columns, **columns))
    return np.concatenate(ops)


def _ways(layer: LayerBuilder, hops: _Hops) -> list[tuple[I64, int, bool]]:
    """(hops, network, whether they are the first of their token): first hops before others, by NVLink and by NIC."""
    far, start = layer.ways.far(hops.node, hops.to), hops.place == 0
    kinds = [(first, out) for first in (True, False) for out in (False, True)]
    return [(np.flatnonzero((far == out) & (start == first)), BETWEEN_NET * out, first) for first, out in kinds]
