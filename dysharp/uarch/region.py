"""Row stores: the first byte of a row takes the next slot, bytes complete it, complete rows make a tile ready."""

from dysharp.uarch.columns import (
    REGION_ROW0,
    REGION_TILE0,
    REGION_TILE_ROWS,
    REGION_USED,
    ROW_LEFT,
    ROW_REGION,
    ROW_SLOT,
    RUN_NOW,
    TILE_LEFT,
    TILE_READY,
)
from dysharp.uarch.kernel import block


@block
def row_fill(row, n_bytes, stores, x):
    """`n_bytes` arrive for `row` (rows of a PREFIX region have their slot from the start). Returns the tile that is now ready, else -1."""
    rows, regions, tiles = stores.rows, stores.regions, stores.tiles
    r = rows[row, ROW_REGION]
    if rows[row, ROW_SLOT] < 0:
        slot = regions[r, REGION_USED]
        regions[r, REGION_USED] += 1
        rows[row, ROW_SLOT] = slot
        stores.slot_row[regions[r, REGION_ROW0] + slot] = row
    rows[row, ROW_LEFT] -= n_bytes
    ready = -1
    if rows[row, ROW_LEFT] == 0:
        t = regions[r, REGION_TILE0] + rows[row, ROW_SLOT] // regions[r, REGION_TILE_ROWS]
        tiles[t, TILE_LEFT] -= 1
        if tiles[t, TILE_LEFT] == 0:
            stores.tile_times[t, TILE_READY] = x[RUN_NOW]
            ready = t
    return ready
