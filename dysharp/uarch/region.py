"""Row stores: the first byte of a row takes the next slot, bytes complete it, complete rows make a tile ready."""

from dysharp.uarch.columns import (
    G_ROW0,
    G_TILE0,
    G_TILE_ROWS,
    G_USED,
    R_LEFT,
    R_REGION,
    R_SLOT,
    T_LEFT,
    TT_READY,
    X_NOW,
)
from dysharp.uarch.kernel import block


@block
def row_fill(row, n_bytes, rows, regions, slot_row, tiles, tile_times, x):
    """`n_bytes` arrive for `row` (rows of a PREFIX region have their slot from the start). Returns the tile that became ready by it, else -1."""
    r = rows[row, R_REGION]
    if rows[row, R_SLOT] < 0:
        slot = regions[r, G_USED]
        regions[r, G_USED] += 1
        rows[row, R_SLOT] = slot
        slot_row[regions[r, G_ROW0] + slot] = row
    rows[row, R_LEFT] -= n_bytes
    ready = -1
    if rows[row, R_LEFT] == 0:
        t = regions[r, G_TILE0] + rows[row, R_SLOT] // regions[r, G_TILE_ROWS]
        tiles[t, T_LEFT] -= 1
        if tiles[t, T_LEFT] == 0:
            tile_times[t, TT_READY] = x[X_NOW]
            ready = t
    return ready
