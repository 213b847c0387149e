"""Sizes of MoE-Hub's units: what a small table does, and bits per entry."""

from __future__ import annotations

import pytest

from dysharp.errors import ConfigError
from dysharp.experiments.closed import calculated_row
from dysharp.experiments.figure import Point
from dysharp.experiments.hub_area import Sizes, area
from dysharp.experiments.hub_units import PRODUCERS, Units, count

SMALL = {"copiers": 4, "rows": 8, "row_bytes": 512}


def test_a_row_table_for_all_open_rows_reads_nothing() -> None:
    wide = count(Units(rat_entries=PRODUCERS * 4, managed=False, **SMALL))
    assert (wide.map_reads_per_row, wide.open_rows, wide.packet_payload) == (0, PRODUCERS * 4, 128)
    assert count(Units(rat_entries=PRODUCERS * 4 - 1, managed=False, **SMALL)).map_reads_per_row > 0


def test_partitions_for_all_lines_close_rows_one_by_one() -> None:
    few, all_lines = (count(Units(partition_entries=n, **SMALL)) for n in (2, 64))
    assert all_lines.open_rows < few.open_rows


def test_small_stores_merge_until_the_timer() -> None:
    payload = {timer: count(Units(store_bytes=32, timer=timer, **SMALL)).packet_payload for timer in (0, 1000)}
    assert payload[0] < payload[1000] == 128


def test_area_grows_with_the_row_table() -> None:
    small, large = area(Sizes(rat_entries=1024)), area(Sizes(rat_entries=2048))
    assert large.rat_kib == 2 * small.rat_kib == 20
    assert large.sram_mm2 - small.sram_mm2 == pytest.approx(1024 * 80 / 12e6)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="option rat: unknown"):
        calculated_row(Point("hub-area", "S-8", "paper-dgx-h800", "", options=(("rat", 3),)))
