"""`LayerBuilder`: one pass of a MoE layer as a Program.

Its methods send tokens out, bring results back, and say which op waits for which other op.

Every method adds whole columns of ops at once and returns them as a `batch.Batch`. A backward pass uses the same
methods: output gradients go out, input gradients come back (docs/design/0005-backward.md).
"""

import numpy as np

from dysharp.program import BETWEEN_NET, I32, OTHER, Alloc, Declared, Kind, Program, To
from dysharp.systems.building.base import BUFFERS, CONTROL, DYMULTIMEM, EXPLICIT, LINK, RDMA, STORE
from dysharp.systems.building.batch import ids
from dysharp.systems.building.combine import CombineBlocks
from dysharp.systems.building.dispatch import DispatchBlocks
from dysharp.systems.facts import Moves
from dysharp.workload import Scheme
from dysharp.workload.levels import LEVELS, Levels, between_rails
from dysharp.workload.traffic import scheme_rows

__all__ = ["BUFFERS", "CONTROL", "DYMULTIMEM", "EXPLICIT", "LINK", "RDMA", "STORE", "LayerBuilder"]


class LayerBuilder(DispatchBlocks, CombineBlocks):
    """One pass of a layer under construction. `LayerBase` says what its arrays hold."""

    levels: Levels | None = None
    """Dispatch's rows by network over several domains, where the system's `moves` has no name for them."""

    def exchange(self, n_bytes: int, *, name: str, after: I32 | None = None) -> I32:
        """Every GPU multicasts `n_bytes` of control data to all GPUs, after the op `after[gpu]` if given.

        Returns `[gpus]` region tiles: tile `[gpu]` is ready when the GPU has the data of all GPUs.
        """
        template = self.transfer(name, Kind.MULTICAST, "other", cls=OTHER, framing=CONTROL)
        g, size = self.n_gpus, self.cluster.domain_gpus
        _, first_row, first_tile = self.b.regions(np.arange(g), np.full(g, g), n_bytes, g, alloc=Alloc.PREFIX, name=name)
        # Row i of every GPU's region is written by GPU i.
        rows = (first_row + np.arange(g)[None, :] * g + np.arange(g)[:, None]).ravel()
        to, near = np.tile(np.arange(g), g), (np.arange(g)[:, None] // size == np.arange(g)[None, :] // size).ravel()
        ways = [(template, near)]
        if size < g:
            ways.append((self.transfer(name, Kind.MULTICAST, "other", cls=OTHER, net=BETWEEN_NET), ~near))
        for way, mine in ways:
            count = np.full(g, int(mine.sum()) // g)
            to_all = To(count, to[mine], np.ones(int(mine.sum()), np.int32), rows[mine])
            op = self.add(way, self.gpus, issuer=self.issuers(name), bytes=n_bytes, to=to_all, targets=1)
            self.wait_each(op, after)
        return ids(first_tile, g)

    def build(self, moves: Moves | Scheme, options: object = None) -> Program:
        """The finished Program.

        The Program declares its useful rows and the closed-form traffic of this Routing (`workload.traffic`; between domains
        `workload.levels`). `moves`: what the system moves (`Facts.moves`), or the scheme of Dispatch alone. `options`: the options of the system,
        where a scheme depends on them.
        """
        moves = moves if isinstance(moves, Moves) else Moves(moves)
        if self.cluster.domains == 1:
            sent = [scheme_rows(self.routing, moves.sent, options)]
            back = sent if moves.back is None else [scheme_rows(self.routing, moves.back, options)]
        else:
            named = moves.between or self.ways.per_expert
            sent = [*(LEVELS[named](self.routing, self.cluster.domain_gpus) if self.levels is None else self.levels)]
            if len(self.ways.outside) > 1:
                across = between_rails(self.routing, self.cluster.domain_gpus, named)
                sent[1:] = [(sent[1][0] - across[0], sent[1][1] - across[1]), across]
            back = sent
        sums: dict[str, dict[str, int]] = {}
        for sides, there, again in zip(self.ways.sides, sent, back, strict=True):
            for side, rows, mirrored in zip(sides, there, reversed(again), strict=True):
                sums[side] = {"dispatch": int(rows.sum()) * self.sent_bytes, "combine": int(mirrored.sum()) * self.back_bytes}
        return self.b.build(Declared(len(self.p.slot), sums, self.routing.placement.n_slots))
