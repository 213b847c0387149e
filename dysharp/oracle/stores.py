"""Regions: deliveries fill rows and tiles, tiles notify the ops of their rows (docs/design/0001, Regions)."""

from collections import defaultdict

from dysharp.base import frozen
from dysharp.oracle.depend import Dependencies
from dysharp.oracle.fabric import OracleFabric
from dysharp.oracle.world import Event, World
from dysharp.program import Alloc, Point, Tail
from dysharp.protocol import region


@frozen
class _Place:
    """The place of a region: its node, its first row and its first tile."""

    node: int
    first_row: int
    first_tile: int


class RunRegions:
    """All regions of a run, on `protocol.region`."""

    def __init__(self, world: World, fabric: OracleFabric, dependencies: Dependencies) -> None:
        self.world, self.fabric, self.dependencies = world, fabric, dependencies
        t = world.tables.program.regions
        rows, tiles = t.row_ptr.tolist(), t.tile_ptr.tolist()
        self._places = [_Place(n, rows[i], tiles[i]) for i, n in enumerate(t.node.tolist())]
        self.states = [
            region.empty(rows[i + 1] - rows[i], row_bytes, tile_rows, first_touch=Alloc(alloc) is Alloc.FIRST_TOUCH)
            for i, (row_bytes, tile_rows, alloc) in enumerate(zip(t.row_bytes.tolist(), t.tile_rows.tolist(), t.alloc.tolist(), strict=True))
        ]
        self._region_of_row = [i for i in range(len(self._places)) for _ in range(rows[i], rows[i + 1])]
        self._region_of_tile = [i for i in range(len(self._places)) for _ in range(tiles[i], tiles[i + 1])]
        self._row_notify: list[int] = t.row_notify.tolist()
        self._touched: set[int] = set()
        self._remote: dict[int, tuple[list[int], int]] = {}

    def fill(self, rows: list[int], n_bytes: int, op: int) -> None:
        """`n_bytes` of `op` become visible in each of `rows` (global ids)."""
        if n_bytes == 0:
            return
        for row in rows:
            self._fill_row(row, n_bytes, op)

    def _fill_row(self, row: int, n_bytes: int, op: int) -> None:
        world, r = self.world, self._region_of_row[row]
        place, before, inside = self._places[r], self.states[r], row - self._places[r].first_row
        if row not in self._touched:
            self._touched.add(row)
            world.semaphores.passed(Point.ROW_FIRST_TOUCH, row)
        self.states[r] = after = region.step(before, region.Fill(inside, n_bytes))
        if region.row_complete(before, inside) or not region.row_complete(after, inside):
            return
        world.fire(Tail.ROW_COMPLETE, row, op)
        tile = region.tile_of(after, inside)
        if region.tile_ready(after, tile):
            world.log.tile_ready[place.first_tile + tile] = world.now
            world.fire(Tail.TILE_READY, place.first_tile + tile, op)

    def notify(self, tile: int, cause: int) -> None:
        """Tile `tile` releases the ops of its rows: ops of this node at once, ops of remote nodes by messages."""
        world, r = self.world, self._region_of_tile[tile]
        place, remote = self._places[r], []
        for row in region.rows_of_tile(self.states[r], tile - place.first_tile):
            op = self._row_notify[place.first_row + row]
            if op < 0:
                continue
            owner = world.ops[op].node
            if owner == place.node:
                self.dependencies.event(op, cause)
                continue
            remote.append(op)
            self.fabric.up[place.node].server.owe(world.hardware.notify_bytes)
            self.fabric.down[owner].server.owe(world.hardware.notify_bytes)
        if remote:
            self._remote[tile] = (remote, cause)
            world.agenda.add(world.now + world.hardware.notify, Event.NOTIFY, place.node, tile)

    def notified(self, tile: int) -> None:
        """The messages of a tile have arrived."""
        ops, cause = self._remote.pop(tile)
        for op in ops:
            self.dependencies.event(op, cause)

    def rows_by_tile(self) -> dict[int, int]:
        """Rows that are complete, per tile: for the deadlock report."""
        out: dict[int, int] = defaultdict(int)
        for place, state in zip(self._places, self.states, strict=True):
            for row in range(len(state.slot)):
                if region.row_complete(state, row):
                    out[place.first_tile + region.tile_of(state, row)] += 1
        return out
