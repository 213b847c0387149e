"""SRAM of tables: bits of their records times entries, and where the number of entries comes from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.cli.listing import _cluster_keys
from dysharp.figures.origin import origin_of
from dysharp.protocol.al_table import AL_TLB, MISS_REGISTERS
from dysharp.protocol.dam import TILE_COUNTER
from dysharp.protocol.reduction import REDUCTION_BUFFER
from dysharp.runs.point import Point
from dysharp.silicon import DYSHARP_TABLES, HUB_TABLES, dysharp_area, hub_area
from dysharp.silicon.area import _entries_of
from dysharp.specs import load_cluster, load_model
from dysharp.specs.cluster import file_values
from dysharp.systems.building.layer import DYMULTIMEM
from dysharp.systems.building.windows import link_rows_per_us, misses_under_way

SIZES = {"rat_entries": 16384, "regions": 64, "partition_entries": 64, "peers": 16, "tiles": 2048}
OWN_TABLE = {
    "rat_entries": "rat_kib",
    "regions": "apt_kib",
    "partition_entries": "partitions_kib",
    "peers": "partitions_kib",
    "tiles": "counters_kib",
}
PAPER = load_cluster("paper-gh200-nvl32")


@pytest.mark.parametrize(("size", "table"), OWN_TABLE.items())
def test_twice_the_entries_are_twice_the_table(size: str, table: str) -> None:
    """No other table grows, and the area grows by the bits of this one."""
    small, large = hub_area(**SIZES), hub_area(**SIZES | {size: 2 * SIZES[size]})
    assert large[table] == 2 * small[table] > 0
    assert all(small[name] == large[name] for name in OWN_TABLE.values() if name != table)
    per_kib = small["sram_mm2"] / sum(small[name] for name in set(OWN_TABLE.values()))
    assert large["sram_mm2"] - small["sram_mm2"] == pytest.approx(per_kib * small[table])


def test_a_tile_counter_has_35_bits() -> None:
    """Bytes 25, records 8, started and returnable: 2048 of them are 8.75 KiB."""
    assert TILE_COUNTER.entry.bits == 35
    assert hub_area(**SIZES)["counters_kib"] == 8.75


def test_area_grows_with_the_row_table() -> None:
    small, large = (hub_area(**SIZES | {"rat_entries": n}) for n in (1024, 2048))
    assert large["rat_kib"] == 2 * small["rat_kib"] == 20
    assert large["sram_mm2"] - small["sram_mm2"] == pytest.approx(1024 * 80 / 12e6)


def test_dysharp_tables_take_the_bits_of_their_entries() -> None:
    """8192 more entries of 79 bits in the AL TLB are 79 KiB."""
    here, wide = dysharp_area(PAPER), dysharp_area(replace(PAPER, al_tlb_entries=512 + 8 * 1024))
    assert wide["tables_kib"] - here["tables_kib"] == 79.0
    assert wide["queues_kib"] == here["queues_kib"]
    assert dysharp_area(PAPER, queues=0)["queues_kib"] == 0
    assert here["gpu_mm2"] < 0.198 < dysharp_area(PAPER, queues=528)["gpu_mm2"]


def test_miss_registers_are_counted_as_many_as_a_hub_has() -> None:
    """59 bits each; the largest need of figure 15 is 128 on its own cluster, so 256 covers it."""
    none, one = dysharp_area(PAPER, queues=0, misses=0), dysharp_area(PAPER, queues=0, misses=64)
    assert one["misses_kib"] == 64 * 59 / 8192
    assert one["gpu_mm2"] > none["gpu_mm2"]
    assert one["tables_kib"] == none["tables_kib"]
    shapes = (load_model(name) for name in ("S-8", "M-8", "L-8"))
    needed = [misses_under_way(link_rows_per_us(PAPER, DYMULTIMEM, m.row_bytes, 4 * m.topk)) for m in shapes]
    assert needed == [128, 64, 32]
    assert max(needed) <= MISS_REGISTERS.entries


def test_a_cluster_is_the_one_place_of_its_tables_entries() -> None:
    assert [_entries_of(table, PAPER) for table in DYSHARP_TABLES] == [512, 256, 1024, 1024, 32, 512]
    row = origin_of("dysharp-area").row(Point("dysharp-area", "S-8", "paper-gh200-nvl32,al_tlb_entries=1024", "", options=(("queues", 0),)))
    assert row["tables_kib"] - dysharp_area(PAPER)["tables_kib"] == AL_TLB.bits(512) / 8192


def test_a_session_entry_holds_128_bytes() -> None:
    assert REDUCTION_BUFFER.bits(512) == 64 * 1024 * 8


def test_every_key_of_a_table_is_a_key_of_cluster_files() -> None:
    """The record explains the key: `dysharp list cluster-keys` prints its words."""
    meanings = {key["name"]: key["meaning"] for key in _cluster_keys()}
    assert all(meanings[table.cluster_key] == table.meaning for table in DYSHARP_TABLES if table.cluster_key)
    assert all(meanings.values())
    assert all(table.entries or table.option for table in HUB_TABLES)


def test_the_values_of_a_file_come_back() -> None:
    values = file_values(PAPER)
    assert (values["link_GBps"], values["reduction_buffer_KiB"], values["link_latency_ns"]) == (450, 64, 250)
