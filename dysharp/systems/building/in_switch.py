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
"""

from __future__ import annotations

import numpy as np

from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Kind, Program, Template, To
from dysharp.program.constants import NIC_NET, REQUESTS, RESPONSES
from dysharp.systems.building.batch import Batch, ids
from dysharp.systems.building.experts import fused
from dysharp.systems.building.landing import landing
from dysharp.systems.building.layer import RDMA, LayerBuilder, spans
from dysharp.systems.building.two_hop import I32, I64, TwoHop


def in_switch_layer(layer: LayerBuilder, framing: Framing, dispatch_window: int, combine_window: int, start: I32) -> Program:
    """Dispatch, GEMMs tile by tile, Combine. `start`: `[gpus]` ops before the first transfer. Windows: tokens per GPU."""
    units = _Units(layer, framing)
    sends = units.dispatch(dispatch_window)
    layer.wait_each(sends.op, start[sends.node])
    sums = units.sums(combine_window)
    fused(layer, np.repeat(sums[units.hop.unit_of_pair], layer.pair_rows))
    units.totals(sums)
    return layer.build("dysharp")


class _Units:
    def __init__(self, layer: LayerBuilder, framing: Framing) -> None:
        self.layer, self.framing, self.hop = layer, framing, TwoHop(layer)
        hop = self.hop
        self.first_pair: I64 = np.cumsum(hop.copies) - hop.copies
        here = layer.p.gpu == hop.relay[hop.unit_of_pair]
        rows = layer.pair_rows.astype(np.int64)
        self.listed: I64 = np.bincount(hop.unit_of_pair, weights=np.where(here, 0, rows), minlength=len(hop.token)).astype(np.int64)

    def dispatch(self, window: int) -> Batch:
        """Multicasts by NIC, then by NVLink. Returns the ops that leave the sources."""
        layer, hop, b = self.layer, self.hop, self.layer.b
        far = np.flatnonzero(hop.far)
        tokens, count = np.unique(hop.token[far], return_counts=True)
        source = (tokens // layer.tokens).astype(np.int32)
        landed = landing(layer, "relay", hop.relay[far], np.arange(len(far)), hop.token[far], layer.sent_bytes)
        template = Template(
            "dispatch.nic", Kind.MULTICAST, "dispatch", "relay", REQUESTS, framing=b.framing(RDMA), src=layer.sent_buffer, dst="relay", net=NIC_NET
        )
        nic = ids(
            b.ops(
                b.template(template), source, issuer=layer.per_gpu(Discipline.PROGRAM_ORDER, "nic")[source], bytes=layer.sent_bytes,
                key=tokens, to=To(count, hop.relay[far], np.ones(len(far), np.int32), landed.row), targets=1, aux_bytes=layer.dispatch_aux,
            ),
            len(tokens),
        )  # fmt: skip
        issuer = layer.per_gpu(Discipline.READY_FIFO, "dispatch")
        ops = [nic]
        windows = np.array([b.semaphore(g, window, "dispatch_window", "tokens") for g in range(layer.n_gpus)], np.int32)
        for name, src, mine in (("dispatch.multicast", layer.sent_buffer, np.flatnonzero(~hop.far)), ("dispatch.forward", "relay", far)):
            op = self._multicast(name, src, mine, issuer)
            b.hold(windows[hop.relay[mine]], op)
            if src == "relay":
                layer.wait_tiles(op, landed.tile)
            else:
                ops.append(op)
        own = np.flatnonzero(~hop.far)
        return Batch(op=np.concatenate(ops), node=np.concatenate([source, hop.source[own]]))

    def _multicast(self, name: str, src: str, units: I64, issuer: I32) -> I32:
        layer, hop, p, b = self.layer, self.hop, self.layer.p, self.layer.b
        pairs = spans(self.first_pair[units], hop.copies[units])
        rows = layer.pair_rows[pairs]
        template = Template(name, Kind.MULTICAST, "dispatch", "copy", REQUESTS, framing=b.framing(self.framing), src=src, dst=layer.arrived)
        first = b.ops(
            b.template(template), hop.relay[units], issuer=issuer[hop.relay[units]], bytes=layer.sent_bytes, key=hop.token[units],
            to=To(hop.copies[units], p.gpu[pairs], rows, layer.row_of[spans(p.slot_ptr[pairs], rows)]), targets=self.listed[units],
            aux_bytes=layer.dispatch_aux,
        )  # fmt: skip
        return ids(first, len(units))

    def sums(self, window: int) -> I32:
        """`[units]` pulls of the sum of a domain by its relay."""
        layer, hop, p, b = self.layer, self.hop, self.layer.p, self.layer.b
        template = Template(
            "combine.domain", Kind.PULL_REDUCE, "combine", "sum", REQUESTS, RESPONSES, framing=b.framing(self.framing), src=layer.result,
            dst="relay.partial",
        )  # fmt: skip
        first = b.ops(
            b.template(template), hop.relay, issuer=layer.per_gpu(Discipline.SMALLEST_KEY, "combine")[hop.relay], bytes=layer.model.row_bytes,
            key=hop.token, to=To(hop.copies, p.gpu, layer.pair_rows, layer.row_of), targets=self.listed, aux_bytes=layer.combine_aux,
        )  # fmt: skip
        op = ids(first, len(hop.token))
        windows = np.array([b.semaphore(g, window, "combine_window", "tokens") for g in range(layer.n_gpus)], np.int32)
        b.hold(windows[hop.relay], op)
        return op

    def totals(self, sums: I32) -> None:
        """A pull per token of the sums of its domains by its source."""
        layer, hop, b = self.layer, self.hop, self.layer.b
        template = Template(
            "combine.nic", Kind.PULL_REDUCE, "combine", "sum", REQUESTS, RESPONSES, framing=b.framing(RDMA), src="relay.partial",
            dst=layer.summed_buffer, net=NIC_NET,
        )  # fmt: skip
        count = np.bincount(hop.token, minlength=layer.routing.n_tokens)[layer.sent]
        first = b.ops(
            b.template(template), layer.sent_source, issuer=layer.per_gpu(Discipline.READY_FIFO, "total")[layer.sent_source],
            bytes=layer.model.row_bytes, key=layer.sent, to=To(count, hop.relay), targets=1, aux_bytes=layer.combine_aux,
        )  # fmt: skip
        layer.wait_each(ids(first, len(layer.sent))[np.searchsorted(layer.sent, hop.token)], sums)
