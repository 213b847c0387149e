"""DySHARP over several domains: multicast and sums in both the NVSwitches and a *hypothetical* scale-out switch.

Today's InfiniBand has neither a multicast nor a sum for a subset of nodes that each token chooses anew. So whatever runs this
Program needs a switch that nobody sells.

| step | op |
|---|---|
| a token leaves its domain once | MULTICAST by NIC to the GPU of the source's index in each remote domain |
| a token enters the links of a domain once | MULTICAST by NVLink from that GPU; in the own domain from the source |
| a domain's sum | PULL_REDUCE by NVLink at that GPU, once the experts of the domain have notified it |
| the sum over domains | PULL_REDUCE by NIC at the source; the source adds the sum of its own domain |

The GPU that forwards needs no SM: its hub or a copy engine does. A source learns of remote sums without a message, and its
request takes one way.

NVLS over domains has the same steps with every token and every GPU: whole-group operations, which in-network sums of today have.
"""

import numpy as np

from dysharp.base import ByName
from dysharp.program import BETWEEN_NET, I32, I64, Discipline, Framing, Kind, Tail, To, spans
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.between.two_hop import TwoHop
from dysharp.systems.building.experts import fused, one_after_another
from dysharp.systems.building.layer import LayerBuilder


def sums_in_switch(layer: LayerBuilder, framing: Framing, dispatch_window: int, combine_window: int, start: I32) -> None:
    """Dispatch, GEMMs tile by tile, Combine. `start`: `[gpus]` ops before the first transfer. Windows: tokens per GPU."""
    units = _Units(layer, framing)
    sends = units.dispatch(dispatch_window)
    layer.wait_each(sends.op, start[sends.node])
    sums = units.sums(combine_window)
    fused(layer, np.repeat(sums[units.hop.unit_of_pair], layer.p.rows))
    units.totals(sums)


def gathered_in_switch(layer: LayerBuilder, framing: Framing, dispatch_window: int, combine_window: int) -> None:
    """All-gather, one GEMM after the other, a barrier, reduce-scatter. Windows: tokens per GPU."""
    units = _Units(layer, framing, every_gpu=True)
    units.dispatch(dispatch_window)
    done = layer.exchange(16, name="barrier", after=one_after_another(layer))
    sums = units.sums(combine_window, Discipline.PROGRAM_ORDER)
    layer.wait_first(Batch(op=sums, node=units.hop.relay), done, tail=Tail.TILE_READY)
    units.totals(sums)


class _Units:
    """Units of a layer with the copies of each: `[copies]` GPUs, useful rows and first of them, in the order of units."""

    def __init__(self, layer: LayerBuilder, framing: Framing, *, every_gpu: bool = False) -> None:
        self.layer, self.framing = layer, framing
        self.hop = hop = TwoHop(layer, every_gpu=every_gpu)
        self.first_copy: I64 = np.cumsum(hop.copies) - hop.copies
        self.gpu, self.rows, self.first_row = hop.gpu, layer.p.rows, layer.p.slot_ptr[:-1]
        self.what = "allgather" if every_gpu else "multicast"
        if every_gpu:
            pair = layer.p.pair_of[hop.token[hop.unit_of_pair], hop.gpu]
            self.rows = np.where(pair >= 0, layer.p.rows[pair], 0)
            self.first_row = np.cumsum(self.rows) - self.rows
        here = hop.gpu == hop.relay[hop.unit_of_pair]
        listed = np.bincount(hop.unit_of_pair, weights=np.where(here, 0, self.rows), minlength=len(hop.token)).astype(np.int64)
        self.listed: I64 = np.ones_like(listed) if every_gpu else listed

    def dispatch(self, window: int) -> Batch:
        """Multicasts by NIC, then by NVLink. Returns the ops that leave the sources."""
        layer, hop, b = self.layer, self.hop, self.layer.b
        far = np.flatnonzero(hop.far)
        tokens, count = np.unique(hop.token[far], return_counts=True)
        source = (tokens // layer.tokens).astype(np.int32)
        landed = layer.landing("relay", hop.relay[far], np.arange(len(far)), hop.token[far], layer.sent_bytes)
        template = layer.transfer("dispatch", Kind.MULTICAST, "dispatch", "relay", layer.sent_buffer, "relay", net=BETWEEN_NET)
        queue, to = layer.issuers("nic")[source], To(count, hop.relay[far], np.ones(len(far), np.int32), landed.row)
        ops = [layer.add(template, source, issuer=queue, key=tokens, to=to, targets=1, **layer.row_columns)]
        issuer = layer.ready("dispatch")
        windows = layer.semaphores(window, "dispatch_window")
        for name, src, mine in ((f"dispatch.{self.what}", layer.sent_buffer, np.flatnonzero(~hop.far)), ("dispatch.forward", "relay", far)):
            op = self._multicast(name, src, mine, issuer)
            b.hold(windows[hop.relay[mine]], op)
            if src == "relay":
                layer.wait_tiles(op, landed.tile)
            else:
                ops.append(op)
        own = np.flatnonzero(~hop.far)
        return Batch(op=np.concatenate(ops), node=np.concatenate([source, hop.source[own]]))

    def _multicast(self, name: str, src: str, units: I64, issuer: I32) -> I32:
        layer, hop = self.layer, self.hop
        template = layer.transfer(name, Kind.MULTICAST, "dispatch", "copy", src, layer.arrived, framing=self.framing)
        node = hop.relay[units]
        return layer.add(template, node, issuer=issuer[node], key=hop.token[units], **self._members(units), **layer.row_columns)

    def _members(self, units: I64) -> ByName:
        """Columns of ops that go to, or pull from, all copies of `units`."""
        copies = spans(self.first_copy[units], self.hop.copies[units])
        rows = self.rows[copies]
        to = To(self.hop.copies[units], self.gpu[copies], rows, self.layer.row_of[spans(self.first_row[copies], rows)])
        return {"to": to, "targets": self.listed[units]}

    def sums(self, window: int, discipline: Discipline = Discipline.SMALLEST_KEY) -> I32:
        """`[units]` pulls: each relay pulls the sum of its domain. In program order a relay serves the sources of its rail in turn."""
        layer, hop = self.layer, self.hop
        template = layer.transfer("combine.domain", Kind.PULL_REDUCE, "combine", "sum", layer.result, "relay.partial", framing=self.framing)
        order = np.arange(len(hop.token))
        if discipline is Discipline.PROGRAM_ORDER:
            order = np.lexsort((hop.turn, hop.token % layer.tokens))
        node, op = hop.relay[order], np.empty(len(order), np.int32)
        columns = {"issuer": layer.per_gpu(discipline, "combine")[node], **layer.result_columns}
        op[order] = layer.add(template, node, key=hop.token[order], **self._members(order), **columns)
        layer.limit(window, "combine_window", hop.relay, op)
        return op

    def totals(self, sums: I32) -> None:
        """A pull per token: its source pulls the sums of its domains."""
        layer, hop = self.layer, self.hop
        template = layer.transfer("combine", Kind.PULL_REDUCE, "combine", "sum", "relay.partial", layer.summed_buffer, net=BETWEEN_NET)
        tokens, count = np.unique(hop.token, return_counts=True)
        source = (tokens // layer.tokens).astype(np.int32)
        columns = {"issuer": layer.ready("total")[source], **layer.result_columns}
        op = layer.add(template, source, key=tokens, to=To(count, hop.relay), targets=1, **columns)
        layer.wait_each(op[np.searchsorted(tokens, hop.token)], sums)
