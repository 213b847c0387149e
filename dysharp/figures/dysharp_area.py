"""SRAM of DySHARP's tables in a GPU, from their sizes: an estimate, not a synthesis.

| table | bits of one entry |
|---|---|
| AL TLB | expert 10, AIdx 32, LIdx 32, state 5 |
| Tile Status Table | tile 32, expert 10, rows so far 8, rows expected 8, address of its notices 46 |
| Output Readiness Table | token 48, experts that are ready 8 |
| MultimemQ | address 48, address of the target list 48, listed targets 8, register and warp 14 |
"""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.specs import choice_int
from dysharp.specs.fields import EntriesOrInfinite

TLB_BITS = 10 + 32 + 32 + 5
TILE_STATUS_BITS = 32 + 10 + 8 + 8 + 46
READINESS_BITS = 48 + 8
QUEUE_BITS = 48 + 48 + 8 + 14
KIB = 8 * 1024


@dataclass(frozen=True, slots=True)
class Tables:
    """Entries of the tables of one GPU. `queues`: load/store units with a MultimemQ. `ports`, `buffer_kib`: of a switch."""

    tlb_entries: EntriesOrInfinite = 512
    tile_entries: EntriesOrInfinite = 1024
    readiness_entries: EntriesOrInfinite = 1024
    queue_entries: EntriesOrInfinite = 32
    queues: EntriesOrInfinite = 132
    ports: EntriesOrInfinite = 64
    buffer_kib: EntriesOrInfinite = 64


@dataclass(frozen=True, slots=True)
class TableArea:
    """KiB of the tables, and the area of those in a GPU at `dysharp.sram_mbit_per_mm2`."""

    tables_kib: float
    queues_kib: float
    gpu_mm2: float
    buffer_mm2: float


def table_area(tables: Tables) -> TableArea:
    """The SRAM of tables of these sizes. `buffer_mm2`: the reduction buffers of all ports of a switch."""
    state = tables.tlb_entries * TLB_BITS + tables.tile_entries * TILE_STATUS_BITS + tables.readiness_entries * READINESS_BITS
    queues = tables.queues * tables.queue_entries * QUEUE_BITS
    bits_per_mm2 = 1e6 * choice_int("dysharp.sram_mbit_per_mm2")
    buffers = tables.ports * tables.buffer_kib * KIB
    return TableArea(state / KIB, queues / KIB, (state + queues) / bits_per_mm2, buffers / bits_per_mm2)
