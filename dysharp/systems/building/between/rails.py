"""`RailLayer`: rows between NVLink domains leave at the GPU with their receiver's index (NCCL's PXN).

A row from a GPU to another domain on another rail takes two hops: by NVLink to the *rail GPU*, that is the GPU of the
sender's domain with the receiver's index, then by NIC along the rail. The rail GPU needs no SM: the sender's stores fill
its buffer, and a proxy posts the message.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import ByName
from dysharp.program import BETWEEN_NET, I32, Ints, Template
from dysharp.systems.building.batch import Sends
from dysharp.systems.building.layer import RDMA, LayerBuilder
from dysharp.systems.building.ways import ByRail
from dysharp.systems.facts import Layer

HOPS = {"copy": ("relay", "relay", "copy"), "row": ("row", "relay.row", "relay_row"), "control": ("control", "relay.padding", "control")}
"""fn of a PUT -> (fn of its hop to the rail GPU, buffer there, fn of its hop by NIC)."""


class RailLayer(LayerBuilder):
    """As `LayerBuilder`, with PUTs between rails in two hops. `puts` returns the first hops."""

    def __init__(self, *layer: Any, **more: Any) -> None:
        super().__init__(*layer, **more)
        self._onward: list[tuple[I32, I32]] = []  # first hops, their last hops

    def last_hops(self, op: I32) -> I32:
        """`[n]` the hop by NIC of each PUT `op` between rails; other PUTs themselves."""
        last = np.arange(int(op.max(initial=-1)) + 1, dtype=np.int32)
        for first, then in self._onward:
            known = first < len(last)
            last[first[known]] = then[known]
        return np.asarray(last[op], np.int32)

    def puts(self, template: Template, node: I32, to: I32, row: Ints, *, rows: Ints | None = None, **columns: ArrayLike) -> I32:
        """As `LayerBuilder.puts`, with one row each. Returns the first hop of each PUT, whose issuers are in `columns`."""
        assert rows is None
        two = self.ways.far(node, to) & ~self.ways.leaves(node, to)
        op = np.empty(len(node), np.int32)
        for mine, put in ((~two, super().puts), (two, self._two_hops)):
            own: ByName = {name: np.asarray(column)[mine] if np.ndim(column) else column for name, column in columns.items()}
            op[mine] = put(template, node[mine], to[mine], row[mine], **own)
        return op

    def _two_hops(self, template: Template, node: I32, to: I32, row: Ints, **columns: ArrayLike) -> I32:
        """PUTs between rails, each a hop by NVLink and a hop by NIC that waits for its row. Returns the first hops."""
        n, size = len(node), self.cluster.domain_gpus
        if not n:
            return np.zeros(0, np.int32)
        first_fn, buffer, then_fn = HOPS[template.fn]
        rail = (node - node % size + to % size).astype(np.int32)
        # A relayed result is known by the row that it will fill; a token's row is the same in every relay. Padding has no key.
        key = row if template.fn == "row" else np.broadcast_to(columns.get("key", -1), (n,))
        landed = self.landing(buffer, rail, np.arange(n), np.asarray(key, np.int32), int(np.max(columns["bytes"])))
        hop = replace(template, name=f"{template.name}.rail", fn=first_fn, dst=template.dst and buffer, table=-1)
        first = self.put(hop, node, rail, landed.row, rows=None, **columns)
        name = f"{self.ways.named(template.name, BETWEEN_NET)}.rail"
        way = replace(template, name=name, fn=then_fn, src=template.src and buffer, framing=self.b.framing(RDMA), net=BETWEEN_NET, table=-1)
        onward = {**columns, "issuer": self.ready("proxy")[rail], "prio": 0}
        then = self.put(way, rail, to, row, rows=None, **onward)
        self.wait_tiles(then, landed.tile)
        self._onward.append((first, then))
        return first


class TwoLevelLayer(RailLayer):
    """As `RailLayer`, level by level: all rows go to their rail GPU inside the domain, own rails included, then by NIC (Tutel's 2DH)."""

    def second_level(self, batches: Sequence[Sends]) -> None:
        """NICs wait until their GPU has sent and received all rows of the first level of this exchange."""
        size, done = self.cluster.domain_gpus, self.join("level")
        for batch in batches:
            last, rail = self.last_hops(batch.op), batch.node - batch.node % size + batch.to % size
            two = last != batch.op
            self.wait_each(done[batch.node], batch.op)
            self.wait_each(done[np.where(two, rail, batch.to)], batch.op)
            self.wait_each(last[two], done[rail[two]])


def by_rails(layer: Layer, options: Any) -> ByName:
    """The builder of a system whose rows travel by NCCL's all-to-all: by rails where there are several NVLink domains, unless `pxn` is False."""
    rails = layer.cluster.domains > 1 and layer.cluster.n_switches and getattr(options, "pxn", True)
    return {"kind": RailLayer, "ways": ByRail} if rails else {}
