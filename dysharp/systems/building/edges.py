"""`Edges`: the verbs that say which op waits for what. Heads wait for tails."""

from collections.abc import Iterable

import numpy as np

from dysharp.base.errors import ProgramError
from dysharp.program import I32, Head, Ints, Tail
from dysharp.systems.building.batch import Batch
from dysharp.systems.building.gpus import GpuBuilder


class Edges(GpuBuilder):
    """Waits between the ops of a pass."""

    row_of: I32
    """`[useful rows]` region row of each useful row."""
    tile_gpu: I32
    """`[tiles]` GPU of each expert tile."""

    @property
    def tiles(self) -> I32:
        """`[tiles]` ids of the experts' region tiles."""
        return np.arange(len(self.tile_gpu), dtype=np.int32)

    def wait_each(self, heads: I32, tails: I32) -> None:
        """Op `heads[i]` waits for op `tails[i]`."""
        self.b.edges(Tail.OP_DONE, tails, Head.OP_ISSUE, heads)

    def wait_all(self, heads: I32, tails: I32) -> None:
        """Every op of `heads` waits for all ops of `tails`."""
        tail, head = np.meshgrid(tails, heads)
        self.wait_each(head.ravel(), tail.ravel())

    def wait_tiles(self, heads: I32, tiles: I32) -> None:
        """Op `heads[i]` waits until region tile `tiles[i]` is ready; -1: the op does not wait."""
        self.b.edges(Tail.TILE_READY, tiles[tiles >= 0], Head.OP_ISSUE, heads[tiles >= 0])

    def wait_first(self, batch: Batch, tails: I32, *, tail: Tail = Tail.OP_DONE, stream: Ints | None = None) -> None:
        """The first op of each stream of `batch` waits for `tails[gpu]`.

        In a stream in program order, all later ops wait behind the first op.

        `tail`: whether `tails` are ops (OP_DONE) or region tiles (TILE_READY). `stream`: `[n]` the stream of each op
        (default: its GPU).
        """
        of = batch.node if stream is None else stream
        by_id = np.argsort(batch.op, kind="stable")[::-1]
        first = np.full(int(of.max(initial=-1)) + 1, -1, np.int64)
        first[of[by_id]] = by_id  # the smallest id is written last
        first = first[first >= 0]
        self.b.edges(tail, tails[batch.node[first]], Head.OP_ISSUE, batch.op[first])

    def wait_rows(self, op_of_useful_row: I32, tails: I32, tail: Tail = Tail.OP_DONE) -> None:
        """Op `op_of_useful_row[row]` waits for `tails[tile]` of the row's expert tile.

        An op that carries several rows waits for the tiles of all its rows.

        `tail`: whether `tails` are ops (OP_DONE) or region tiles (TILE_READY). Raises ProgramError unless there is one op
        per useful row.
        """
        if len(op_of_useful_row) != len(self.row_of):
            expected = f"one for each of {len(self.row_of)} useful rows in token order (`of_useful_row` of a batch)"
            raise ProgramError(f"wait_rows: found {len(op_of_useful_row)} ops, expected {expected}")
        self.b.edges(tail, tails, Head.TILE_NOTIFY, self.tiles)
        order = np.empty(len(self.row_of), np.int64)
        order[self.row_of] = op_of_useful_row
        self.b.notify(np.arange(len(order)), order)

    def join_tiles(self, tails: I32, tail: Tail = Tail.OP_DONE, *, heads: Iterable[I32] = (), also: I32 | None = None) -> I32:
        """`[gpus]` one JOIN per GPU, which waits for `tails[tile]` of all expert tiles of the GPU and for `also[gpu]`.

        `heads`: arrays `[tiles]` of ops that wait for the JOIN of their tile's GPU.
        """
        join = self.join("barrier")
        self.b.edges(tail, tails, Head.OP_ISSUE, join[self.tile_gpu])
        if also is not None:
            self.wait_each(join, also)
        for head in heads:
            self.wait_each(head, join[self.tile_gpu])
        return join
