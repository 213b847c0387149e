"""SRAM of the tables of DySHARP and of MoE-Hub, from their sizes."""

from __future__ import annotations

from dysharp.figures.dysharp_area import TableArea, Tables, table_area
from dysharp.figures.hub_area import Area, Sizes, area
from dysharp.figures.metric import calculated
from dysharp.runs.point import Point

DYSHARP = {
    "tables_kib": "SRAM of AL TLB, tile and token tables (KiB)",
    "queues_kib": "SRAM of the MultimemQs (KiB)",
    "gpu_mm2": "SRAM in a GPU (mm2, estimate)",
    "buffer_mm2": "SRAM of a switch's reduction buffers (mm2, estimate)",
}
HUB = {
    "rat_kib": "SRAM of the row table (KiB)",
    "apt_kib": "SRAM of the pointer table (KiB)",
    "partitions_kib": "SRAM of the packet manager (KiB)",
    "counters_kib": "SRAM of the tile counters (KiB)",
    "sram_mm2": "SRAM of all units (mm2, estimate)",
}


@calculated("dysharp-area", options=Tables, metrics=DYSHARP)
def dysharp_area(point: Point, tables: Tables) -> TableArea:
    return table_area(tables)


@calculated("hub-area", options=Sizes, metrics=HUB)
def hub_area(point: Point, sizes: Sizes) -> Area:
    return area(sizes)
