"""Row stores: the first byte of a row takes the next slot, bytes complete it, complete rows make a tile ready."""

from dysharp.uarch import columns as col
from dysharp.uarch.kernel import block


@block
def row_fill(row, n_bytes, stores, x):
    """`n_bytes` arrive for `row` (rows of a PREFIX region have their slot from the start). Returns the tile that is now ready, else -1."""
    rows, regions, tiles = stores.rows, stores.regions, stores.tiles
    r = rows[row, col.ROW_REGION]
    if rows[row, col.ROW_SLOT] < 0:
        slot = regions[r, col.REGION_USED]
        regions[r, col.REGION_USED] += 1
        rows[row, col.ROW_SLOT] = slot
        stores.slot_row[regions[r, col.REGION_ROW0] + slot] = row
    rows[row, col.ROW_LEFT] -= n_bytes
    ready = -1
    if rows[row, col.ROW_LEFT] == 0:
        t = regions[r, col.REGION_TILE0] + rows[row, col.ROW_SLOT] // regions[r, col.REGION_TILE_ROWS]
        tiles[t, col.TILE_LEFT] -= 1
        if tiles[t, col.TILE_LEFT] == 0:
            stores.tile_times[t, col.TILE_READY] = x[col.RUN_NOW]
            ready = t
    return ready
