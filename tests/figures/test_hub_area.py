"""SRAM of MoE-Hub's units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.figures.hub_area import Sizes, area

OWN_TABLE = {
    "rat_entries": "rat_kib",
    "regions": "apt_kib",
    "partition_entries": "partitions_kib",
    "peers": "partitions_kib",
    "tiles": "counters_kib",
}


@pytest.mark.parametrize(("size", "table"), OWN_TABLE.items())
def test_twice_the_entries_are_twice_the_table(size: str, table: str) -> None:
    """No other table grows, and the area grows by the bits of this one."""
    sizes = Sizes()
    small, large = area(sizes), area(replace(sizes, **{size: 2 * getattr(sizes, size)}))
    kib = {name: (getattr(small, name), getattr(large, name)) for name in OWN_TABLE.values()}
    assert kib[table][1] == 2 * kib[table][0] > 0
    assert all(before == after for name, (before, after) in kib.items() if name != table)
    per_kib = small.sram_mm2 / sum(before for before, _ in kib.values())
    assert large.sram_mm2 - small.sram_mm2 == pytest.approx(per_kib * kib[table][0])


def test_a_tile_counter_has_35_bits() -> None:
    """Bytes 25, records 8, started and returnable: 2048 of them are 8.75 KiB."""
    assert area(Sizes(tiles=2048)).counters_kib == 8.75
