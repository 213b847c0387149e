"""`landing`: rows that wait at a GPU to be sent on, in tiles that become ready together."""

from dataclasses import dataclass

import numpy as np

from dysharp.arrays import I32, I64
from dysharp.program import Alloc
from dysharp.systems.building.layer import LayerBuilder, spans


@dataclass(frozen=True, slots=True)
class Landing:
    """Rows that land at a GPU in tiles. `row`: `[entries]` row of each entry. `tile`: `[groups]` tile of each group."""

    row: I32
    tile: I32


def landing(layer: LayerBuilder, name: str, gpu: I32, group: I64, key: I32, n_bytes: int) -> Landing:
    """Regions with a row per entry and a tile per group of entries.

    `group`: `[entries]` group of each entry, groups numbered from 0. `gpu`: `[groups]`. Groups of one GPU and size share a
    region, whose tiles have that many rows.
    """
    n_groups = len(gpu)
    size = np.bincount(group, minlength=n_groups)
    order = np.lexsort((size, gpu))
    order = order[size[order] > 0]
    new = np.append(True, (gpu[order][1:] != gpu[order][:-1]) | (size[order][1:] != size[order][:-1]))[: len(order)]
    start = np.flatnonzero(new)
    per_region = np.diff(np.append(start, len(order)))
    by_group = np.argsort(group, kind="stable")
    first = np.cumsum(size) - size
    entries = by_group[spans(first[order], size[order])]
    _, row, tile = layer.b.regions(
        gpu[order][start], per_region * size[order][start], n_bytes, size[order][start], alloc=Alloc.PREFIX, key=key[entries], name=name
    )
    rows, tiles = np.empty(len(group), np.int32), np.full(n_groups, -1, np.int32)
    rows[entries] = row + np.arange(len(entries), dtype=np.int32)
    tiles[order] = tile + np.arange(len(order), dtype=np.int32)
    return Landing(rows, tiles)
