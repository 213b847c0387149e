"""`TwoHop`: tokens go once per remote NVLink domain by NIC, and GPUs there forward them by NVLink; sums come back the same way.

A *unit* is one (token, domain) with experts of the token. Its *relay* is the GPU of the domain with the index of the
token's source; in the own domain the relay is the source. Results go to the relay, which adds the results of its domain and sends one sum to the
source.

Units may travel in *groups*: a relay sees the rows of a group when all of them have arrived.
"""

from functools import cached_property

import numpy as np

from dysharp.program import BETWEEN_NET, I32, I64, Kind, starts
from dysharp.systems.building.batch import Batch, placed
from dysharp.systems.building.layer import LayerBuilder


class TwoHop:
    """Units of a layer and their transfers. Arrays are in token order, then in the order of domains.

    `every_gpu`: every token has a pair with every GPU, so a unit in every domain. `gpu`: `[pairs]`.
    """

    def __init__(self, layer: LayerBuilder, *, every_gpu: bool = False) -> None:
        self.layer = layer
        self.size = layer.cluster.domain_gpus
        token, self.gpu = layer.p.token, layer.p.gpu
        if every_gpu:
            token, self.gpu = (axis.ravel().astype(np.int32) for axis in np.indices((layer.routing.n_tokens, layer.n_gpus)))
        domain = self.gpu // np.int32(self.size)
        first = starts(token, domain)
        self.unit_of_pair: I64 = np.cumsum(first) - 1
        self.token: I32 = token[first]
        self.domain: I32 = domain[first]
        self.source: I32 = self.token // np.int32(layer.tokens)
        self.relay: I32 = self.domain * np.int32(self.size) + self.source % np.int32(self.size)
        self.far = self.relay != self.source
        self.units = np.arange(len(self.token))
        self.copies: I64 = np.bincount(self.unit_of_pair, minlength=len(self.token))

    @cached_property
    def remote(self) -> I64:
        """The units of other domains in the order of sending: by token, its domains in turn."""
        far = np.flatnonzero(self.far)
        return far[np.lexsort((self.turn[far], self.token[far]))]

    @cached_property
    def turn(self) -> I64:
        """`[units]` place of the unit's domain after the source's own one, so that all GPUs send to different domains."""
        return np.asarray((self.domain.astype(np.int64) - self.source // self.size) % self.layer.cluster.domains)

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def send(self, issuer: I32, order: I64, group: I64, n_groups: int) -> tuple[I32, I32]:
        """Rows of remote units by NIC, in `order` (units). `group`: `[len(order)]` group of each.

        `issuer`: `[len(order)]`. Returns (`[len(order)]` ops, `[n_groups]` tiles of landed groups).
        """
        layer, units = self.layer, order
        landed = layer.landing("relay", placed(n_groups, group, self.relay[units]), group, self.token[units], layer.sent_bytes)
        template = layer.transfer("dispatch", Kind.PUT, "dispatch", "relay", layer.sent_buffer, "relay", net=BETWEEN_NET)
        ends, token = (self.source[units], self.relay[units]), self.token[units]
        return layer.put(template, *ends, landed.row, issuer=issuer, key=token, **layer.row_columns), landed.tile

    def forward(self, issuer: I32) -> Batch:
        """A row from the relay to each GPU of its domain that needs it, in pair order. `issuer`: `[gpus]`."""
        pairs = np.arange(len(self.unit_of_pair))
        far = self.far[self.unit_of_pair]
        op = np.empty(len(pairs), np.int32)
        for name, src, mine in (("dispatch.put", self.layer.sent_buffer, pairs[~far]), ("dispatch.forward", "relay", pairs[far])):
            template = self.layer.transfer(name, Kind.PUT, "dispatch", "copy", src, self.layer.arrived)
            op[mine] = self.layer.pair_puts(template, self.relay[self.unit_of_pair[mine]], mine, issuer)
        return Batch(op=op, node=self.relay[self.unit_of_pair])

    # ---- combine -----------------------------------------------------------------------------------------------------

    def gather(self, issuer: I32, order: I64, group: I64 | None = None, n_groups: int = 0) -> tuple[I32, I32]:
        """The sum of each pair's experts to the relay of its unit, in `order` (pairs).

        `group`: `[units]` group of each unit; None: each by itself. Returns (`[len(order)]` ops, `[n_groups]` tiles of gathered groups).
        """
        layer, p = self.layer, self.layer.p
        unit = self.unit_of_pair[order]
        group, n = (self.units, len(self.token)) if group is None else (group, n_groups)
        landed = layer.landing("relay.partial", placed(n, group, self.relay), group[unit], p.token[order], layer.back_bytes)
        template, node = layer.transfer("combine.gather", Kind.PUT, "combine", "sum", layer.result, "relay.partial"), p.gpu[order]
        columns = {"issuer": issuer[node], "key": p.token[order]}
        return layer.puts(template, node, self.relay[unit], landed.row, **layer.result_columns, **columns), landed.tile

    def give_back(self, order: I64 | None = None) -> I32:
        """The sum of each unit from its relay to the source, in `order` (units; default: theirs). Returns `[len(order)]` ops."""
        layer, order = self.layer, self.units if order is None else order
        issuer = layer.ready("back")[self.relay[order]]
        row, _ = layer.gathering_rows("partial", self.source, layer.back_bytes, self.token)
        op, far = np.empty(len(order), np.int32), self.far[order]
        for name, net, mine in (("combine.put", 0, ~far), ("combine", BETWEEN_NET, far)):
            units = order[mine]
            template = layer.transfer(name, Kind.PUT, "combine", "relay_sum", "relay.partial", "partial", net=net)
            node, to, columns = self.relay[units], self.source[units], {"issuer": issuer[mine], "key": self.token[units]}
            op[mine] = layer.put(template, node, to, row[units], **layer.result_columns, **columns)
        return op
