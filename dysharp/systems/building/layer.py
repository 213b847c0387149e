"""`LayerBuilder`: one pass of a MoE layer as a Program.

Its methods send tokens out, bring results back, and say which op waits for which.

Every method adds whole columns of ops at once and returns them as a `batch.Batch`. A backward pass uses the same
methods: output gradients go out, input gradients come back (docs/design/0005-backward.md).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dysharp.program import Alloc, Declared, Discipline, Kind, Program, Template, To
from dysharp.program.constants import NIC, NIC_NET, OTHER, SPINE, XGMI
from dysharp.systems.building.base import BUFFERS, CONTROL, DYMULTIMEM, EXPLICIT, I32, LINK, RDMA, STORE, spans
from dysharp.systems.building.batch import ids
from dysharp.systems.building.combine import CombineBlocks
from dysharp.systems.building.dispatch import DispatchBlocks
from dysharp.workload import Scheme, traffic
from dysharp.workload.levels import LEVELS, Levels, between_rails

__all__ = ["BUFFERS", "CONTROL", "DYMULTIMEM", "EXPLICIT", "LINK", "RDMA", "STORE", "LayerBuilder", "spans"]


class LayerBuilder(DispatchBlocks, CombineBlocks):
    """One pass of a layer under construction. `LayerBase` says what its arrays hold."""

    def exchange(self, n_bytes: int, *, name: str, after: I32 | None = None) -> I32:
        """Every GPU multicasts `n_bytes` of control data to all GPUs, after the op `after[gpu]` if given.

        Returns `[gpus]` region tiles: tile `[gpu]` is ready when the GPU has the data of all GPUs.
        """
        template = Template(name, Kind.MULTICAST, "other", "control", OTHER, framing=self.b.framing(CONTROL))
        g, size = self.n_gpus, self.cluster.domain_gpus
        _, first_row, first_tile = self.b.regions(np.arange(g), np.full(g, g), n_bytes, g, alloc=Alloc.PREFIX, name=name)
        # Row i of every GPU's region is written by GPU i.
        rows = (first_row + np.arange(g)[None, :] * g + np.arange(g)[:, None]).ravel()
        to, near = np.tile(np.arange(g), g), (np.arange(g)[:, None] // size == np.arange(g)[None, :] // size).ravel()
        ways = [(template, near)]
        if size < g:
            ways.append((replace(template, name=f"{name}.nic", framing=self.b.framing(RDMA), net=NIC_NET), ~near))
        for way, mine in ways:
            count = np.full(g, int(mine.sum()) // g)
            first = self.b.ops(
                self.b.template(way),
                np.arange(g),
                issuer=self.per_gpu(Discipline.PROGRAM_ORDER, name),
                bytes=n_bytes,
                to=To(count, to[mine], np.ones(int(mine.sum()), np.int32), rows[mine]),
                targets=1,
            )
            if after is not None:
                self.wait_each(ids(first, g), after)
        return ids(first_tile, g)

    def build(self, scheme: Scheme, options: object = None, *, back: Scheme | None = None, levels: Levels | None = None) -> Program:
        """The finished Program.

        The Program declares its useful rows and the closed-form traffic of this Routing under `scheme`
        (`workload.traffic`). The traffic may depend on the system's `options`. `back`: the scheme of Combine where Combine
        does not mirror Dispatch. `levels`: Dispatch's rows by network over several domains, where the scheme's name is not in LEVELS.
        """
        if self.cluster.domains > 1:
            return self._build_levels(scheme, levels)
        returned = traffic(self.routing, scheme if back is None else back, self.back_bytes, options)
        same = back is None and self.sent_bytes == self.back_bytes
        sent = returned if same else traffic(self.routing, scheme, self.sent_bytes, options)
        closed = {"dispatch": sent["dispatch"], "combine": returned["combine"]}
        out, into = self._near_sides
        sums = {out: {op: int(moved["up"]) for op, moved in closed.items()}, into: {op: int(moved["down"]) for op, moved in closed.items()}}
        return self.b.build(Declared(len(self.p.slot), sums, self.routing.placement.n_slots))

    @property
    def _near_sides(self) -> tuple[str, str]:
        """The names of both link directions inside a domain."""
        return ("up", "down") if self.cluster.n_switches else (f"{XGMI} out", f"{XGMI} in")

    def _build_levels(self, scheme: Scheme, levels: Levels | None) -> Program:
        """As `build` over several domains; `scheme` is a key of `workload.levels.LEVELS`, or one_copy_per_expert, or `levels` are given."""
        direct = "nic_only" if self.nic_only else self.per_expert
        named = direct if scheme == "one_copy_per_expert" else str(scheme)
        sides, size = [self._near_sides, (f"{NIC} out", f"{NIC} in")], self.cluster.domain_gpus
        rows = [*(LEVELS[named](self.routing, size) if levels is None else levels)]
        if self.has_spine:
            sides.append((f"{SPINE} out", f"{SPINE} in"))
            across = between_rails(self.routing, size, named)
            rows[1:] = [(rows[1][0] - across[0], rows[1][1] - across[1]), across]
        sums: dict[str, dict[str, int]] = {}
        for (out, into), (sent, received) in zip(sides, rows, strict=True):
            sent_rows, received_rows = int(sent.sum()), int(received.sum())
            sums[out] = {"dispatch": sent_rows * self.sent_bytes, "combine": received_rows * self.back_bytes}
            sums[into] = {"dispatch": received_rows * self.sent_bytes, "combine": sent_rows * self.back_bytes}
        return self.b.build(Declared(len(self.p.slot), sums, self.routing.placement.n_slots))
