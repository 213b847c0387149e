"""Area of a cluster: lines over the entries, columns of CSV and query; the lines against a synthesis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.cli.texts.sweep_text import sweep_csv
from dysharp.figures.studies.study_folder import record_of
from dysharp.runs.point import Point
from dysharp.silicon.area import total
from dysharp.silicon.cluster_area import ENTRIES, LINE_BITS, LINES, MERGE_KGE, area_columns, cluster_area
from dysharp.specs import load_cluster

PAPER = load_cluster("paper-gh200-nvl32")


def test_more_entries_are_more_area_in_one_place() -> None:
    here, wide = cluster_area(PAPER), cluster_area(replace(PAPER, al_tlb_entries=1024))
    assert {name for name in here if here[name] != wide[name]} == {"gpu_tables"}
    assert here["gpu_tables"].low < here["gpu_tables"].middle < here["gpu_tables"].high < wide["gpu_tables"].high


def test_half_the_reduction_buffer_is_half_the_sums() -> None:
    here, half = cluster_area(PAPER), cluster_area(replace(PAPER, reduction_buffer_bytes=32 * 1024))
    assert half["switch_buffers"].middle == pytest.approx(here["switch_buffers"].middle / 2)
    assert 0.4 * here["switch_sessions"].middle < half["switch_sessions"].middle < 0.6 * here["switch_sessions"].middle


def test_areas_are_columns() -> None:
    point = Point("dysharp", "S-8", "paper-gh200-nvl32,al_tlb_entries=64", "")
    columns = area_columns(load_cluster(point.cluster))
    assert columns["area_gpu_mm2"] < area_columns(PAPER)["area_gpu_mm2"]
    record = record_of("key", point, {"time_us": 1.0})
    assert {name: record[name] for name in columns} == columns
    header, line = sweep_csv({point: {"time_us": 1.0}}).splitlines()
    assert header.endswith("area_gpu_mm2,area_switch_mm2")
    assert line.endswith(f"{columns['area_gpu_mm2']},{columns['area_switch_mm2']}")


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_a_line_meets_a_synthesis_between_its_ends(name: str) -> None:
    """128 entries: bits are equal, gates within 10 %."""
    pytest.importorskip("amaranth", reason="needs the extra rtl")
    pytest.importorskip("pyosys", reason="needs the extra rtl")
    from dysharp.silicon.rtl.blocks import load_block
    from dysharp.silicon.rtl.synthesis import cost_of

    block, line = load_block(name), LINES[name]
    cost = cost_of(block.component(replace(block.parameters.of_cluster(PAPER), entries=128)))
    links = 2 * 128 * 7
    assert cost.sram_bits == line.entry_bits * 128 + line.more_bits + links
    assert cost.cam_bits == line.cam_bits * 128 + line.more_cam_bits
    assert line.kge + 128 * line.kge_per_entry == pytest.approx(cost.kge, rel=0.1)
    assert total(line.parts(128)).middle == pytest.approx(cost.mm2(12).middle, rel=0.05)


@pytest.mark.slow
def test_the_merge_unit_has_the_gates_of_its_synthesis() -> None:
    """Its memory has 20.16 kbit, which stood here as gates once."""
    pytest.importorskip("amaranth", reason="needs the extra rtl")
    pytest.importorskip("pyosys", reason="needs the extra rtl")
    from dysharp.silicon.rtl.blocks import load_block
    from dysharp.silicon.rtl.synthesis import cost_of

    block = load_block("merge-unit")
    cost = cost_of(block.component(block.parameters.of_cluster(PAPER)))
    assert cost.cam_bits == ENTRIES * LINE_BITS
    assert cost.kge == pytest.approx(MERGE_KGE, rel=0.01)
