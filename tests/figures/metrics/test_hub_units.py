"""Sizes of MoE-Hub's units: what a small table does."""

from __future__ import annotations

import pytest

from dysharp.base.errors import ConfigError
from dysharp.figures.metric import Seen, all_metrics
from dysharp.figures.metrics.hub_units import PRODUCERS, _hub_units, _HubUnits
from dysharp.figures.origin import origin_of
from dysharp.runs.point import Point

SMALL = {"copiers": 4, "rows": 8, "row_bytes": 512}
POINT = Point("hub-units", "S-8", "paper-dgx-h800", "")


def test_a_row_table_for_all_open_rows_reads_nothing() -> None:
    wide = _hub_units(POINT, _HubUnits(rat_entries=PRODUCERS * 4, managed=False, **SMALL))
    assert wide == {"map_reads_per_row": 0, "packet_payload": 128, "open_rows": PRODUCERS * 4}
    assert _hub_units(POINT, _HubUnits(rat_entries=PRODUCERS * 4 - 1, managed=False, **SMALL))["map_reads_per_row"] > 0


def test_partitions_for_all_lines_close_rows_one_by_one() -> None:
    few, all_lines = (_hub_units(POINT, _HubUnits(partition_entries=n, **SMALL)) for n in (2, 64))
    assert all_lines["open_rows"] < few["open_rows"]


def test_small_stores_merge_until_the_timer() -> None:
    payload = {timer: _hub_units(POINT, _HubUnits(store_bytes=32, timer=timer, **SMALL))["packet_payload"] for timer in (0, 1000)}
    assert payload[0] < payload[1000] == 128


def test_an_unknown_option_is_refused() -> None:
    for options, text in (((("rat", 3),), "option: rat: unknown key"), ((("regions", -1),), "option: regions: found -1, expected")):
        with pytest.raises(ConfigError, match=text):
            origin_of("hub-area").check(Point("hub-area", "S-8", "paper-dgx-h800", "", options=options))


def test_metrics_of_the_hub_figures() -> None:
    """The end of GEMM-1, and the fastest software that drops nothing."""
    rows = {
        Point(name, "S-8", "paper-dgx-h800", ""): {"time_us": us, "phases_us": {"gemm1": {"end": us / 2}}} | dropped
        for name, us, dropped in (
            ("moe-hub", 10.0, {}), ("comet", 15.0, {}), ("tutel", 12.0, {"dropped_rows": 3}), ("mh-base", 11.0, {}),
        )
    }  # fmt: skip
    point = Point("moe-hub", "S-8", "paper-dgx-h800", "")
    assert all_metrics()["over_software"].value(Seen(point, rows)) == 1.5
    assert all_metrics()["gemm1_speedup"].value(Seen(point, rows, "mh-base")) == pytest.approx(1.1)
