"""SRAM of MoE-Hub's units, from their sizes: an estimate, not a synthesis.

| table | bits of one entry |
|---|---|
| RAT | MallocID 10 (region of this GPU), RowID 32, place 20, bytes so far 17, valid 1 |
| APT | base 48, row bytes 17, next place 20, capacity 20 |
| partition of the packet manager | line of 128 B, its mask, MallocID 16, RowID 32, RowOffset 9, priority 1, age 16, valid 1 |
| tile counter | bytes 25, records 8, started 1, returnable 1 |
"""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.specs import choice_int
from dysharp.specs.fields import EntriesOrInfinite

RAT_BITS = 10 + 32 + 20 + 17 + 1
APT_BITS = 48 + 17 + 20 + 20
LINE_BITS = 128 * 8 + 128 + 16 + 32 + 9 + 1 + 16 + 1
TILE_BITS = 25 + 8 + 1 + 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Entries of the units of one GPU. `peers`: partitions of the packet manager. `tiles`: of all worst-case grids."""

    rat_entries: EntriesOrInfinite = 16384
    regions: EntriesOrInfinite = 64
    partition_entries: EntriesOrInfinite = 64
    peers: EntriesOrInfinite = 16
    tiles: EntriesOrInfinite = 2048


@dataclass(frozen=True, slots=True)
class Area:
    """KiB of each table, and the area of all of them at `moe_hub.sram_mbit_per_mm2`."""

    rat_kib: float
    apt_kib: float
    partitions_kib: float
    counters_kib: float
    sram_mm2: float


def area(sizes: Sizes) -> Area:
    """The SRAM of tables of these sizes."""
    bits = (
        sizes.rat_entries * RAT_BITS,
        sizes.regions * APT_BITS,
        sizes.peers * sizes.partition_entries * LINE_BITS,
        sizes.tiles * TILE_BITS,
    )
    rat, apt, partitions, counters = (n / 8 / 1024 for n in bits)
    return Area(rat, apt, partitions, counters, sum(bits) / 1e6 / choice_int("moe_hub.sram_mbit_per_mm2"))
