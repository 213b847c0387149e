"""Faults planted in the blocks: the comparison with the model finds each, and the proofs find those that break a promise."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="needs the extra rtl")
pytest.importorskip("pyosys", reason="needs the extra rtl")

from dysharp.errors import SimulationError
from dysharp.silicon.rtl import al_tlb, counter_table, formal, merge_unit, parts, readiness, reduction_table, row_allocation, target_logic
from dysharp.silicon.rtl.blocks import BLOCKS, load_block

LIST, CAM = (parts.OrderList, "elaborate"), (parts.Cam, "elaborate")
TABLE, TARGETS = (reduction_table.ReductionTable, "elaborate"), (target_logic.TargetLogic, "elaborate")
COUNTERS, NOTICES, TILES = (counter_table.CounterTable, "elaborate"), (counter_table.OutputReadiness, "update"), (counter_table.TileStatus, "update")
TLB, ROWS = (al_tlb.AlTlb, "elaborate"), (row_allocation.RowAllocation, "elaborate")
DAM, MERGE = (readiness.Readiness, "elaborate"), (merge_unit.MergeUnit, "elaborate")

MUTANTS: list[tuple[str, tuple[Any, str], str, str]] = [
    ("reduction-table", LIST, "head.eq(x)", "head.eq(s)"),
    ("reduction-table", LIST, "gap_prev.data.eq(p), gap_prev.en.eq(s != tail)", "gap_prev.data.eq(p), gap_prev.en.eq(0)"),
    ("reduction-table", CAM, "live[i] & (key == self.key)", "(key == self.key)"),
    ("reduction-table", TABLE, "response & cam.hit & last)),", "response & cam.hit & last & ~self.look)),"),
    ("reduction-table", TABLE, "order.to_front.eq(cam.clear)", "order.to_front.eq(0)"),
    ("reduction-table", TABLE, "Mux(request, 0, grown)", "grown"),
    ("reduction-table", TABLE, "(request & cam.at_live) | cam.clear", "cam.clear"),
    ("reduction-table", TABLE, "touched[i].eq(~look)", "touched[i].eq(1)"),
    ("target-logic", TARGETS, "listed.eq(maps[-1])", "listed.eq(maps[-2])"),
    ("target-logic", TARGETS, "taken.eq(Mux(self.last, 0, listed))", "taken.eq(listed)"),
    ("target-logic", TARGETS, "broken.eq(bad & ~self.last)", "broken.eq(0)"),
    ("tile-status", COUNTERS, "Mux(self.found, self.answer_data, 0)", "0"),
    ("tile-status", TILES, "read.data.packets, self.tile_packets", "self.tile_packets, self.tile_packets"),
    ("tile-status", TILES, "after.gemm2.eq(entry.gemm2 + two)", "after.gemm2.eq(entry.gemm2 + one)"),
    ("output-readiness", COUNTERS, "spilled + evicts - self.taken", "spilled + evicts"),
    ("output-readiness", COUNTERS, "(start & (cam.hit | (spilled == 0)))", "start"),
    ("output-readiness", NOTICES, "same, complete = (entry.notices & notice).any()", "same, complete = Const(0, 1)"),
    ("tile-status", COUNTERS, "self.out_valid.eq(0)", "self.out_valid.eq(self.out_valid)"),
    ("al-tlb", TLB, "miss_write.data.last.eq(place_read.data)", "miss_write.data.last.eq(Mux(joins, old.last, place_read.data))"),
    ("al-tlb", TLB, "(joins & old.allocates)", "0"),
    ("al-tlb", TLB, "place_write.en.eq(filling | go)", "place_write.en.eq(filling)"),
    ("al-tlb", TLB, "n_free.eq(n_free + 1)", "n_free.eq(n_free)"),
    ("row-allocation", ROWS, "point_read.data.next + first", "point_read.data.next"),
    ("row-allocation", ROWS, ">= region_read.data.capacity", "> region_read.data.capacity"),
    ("row-allocation", ROWS, "begin & ~hit & ~evicted", "begin & ~hit"),
    ("row-allocation", ROWS, "evicted_write.en.eq(spills & ~same)", "evicted_write.en.eq(0)"),
    ("readiness", DAM, "new.started.eq(old.started | becomes_ready)", "new.started.eq(old.started)"),
    ("readiness", DAM, "rows.eq(Mux(whole, p.tile_rows, beyond))", "rows.eq(p.tile_rows)"),
    ("readiness", DAM, "part.eq(part << 1)", "part.eq(part)"),
    ("merge-unit", MERGE, "oldest.eq(order.following)", "oldest.eq(slot)"),
    ("merge-unit", MERGE, "~full | may_drop", "~full"),
    ("merge-unit", MERGE, "new.count >= old.expected", "new.count > old.expected"),
    ("merge-unit", MERGE, "old.waiting | asker", "asker"),
]
PROVEN_WRONG = [
    ("reduction-table", LIST, "head.eq(x)", "head.eq(s)"),
    ("reduction-table", TABLE, "Mux(request, 0, grown)", "grown"),
    ("reduction-table", TABLE, "(request & cam.at_live) | cam.clear", "cam.clear"),
    ("target-logic", TARGETS, "broken.eq(bad & ~self.last)", "broken.eq(0)"),
    ("output-readiness", COUNTERS, "self.out_valid.eq(0)", "self.out_valid.eq(self.out_valid)"),
    ("output-readiness", COUNTERS, "(start & (cam.hit | (spilled == 0)))", "start"),
    ("al-tlb", TLB, "behind_write.en.eq(joins)", "behind_write.en.eq(0)"),
    ("al-tlb", TLB, "leaving.eq(at != last)", "leaving.eq(0)"),
    ("row-allocation", ROWS, "point_read.data.next + first", "point_read.data.next"),
    ("row-allocation", ROWS, ">= region_read.data.capacity", "> region_read.data.capacity"),
    ("readiness", DAM, "new.started.eq(old.started | becomes_ready)", "new.started.eq(old.started)"),
    ("merge-unit", MERGE, "old.waiting | asker", "asker"),
    ("merge-unit", MERGE, "~full | may_drop", "1"),
]


def plant(patch: pytest.MonkeyPatch, where: tuple[Any, str], old: str, new: str) -> None:
    """Replace a method by its source with a fault. An `old` that is gone or vague is an error of the tables above."""
    cls, name = where
    source = textwrap.dedent(inspect.getsource(getattr(cls, name)))
    assert source.count(old) == 1, f"{cls.__name__}: {old!r}: found {source.count(old)} times, expected once"
    space = dict(vars(sys.modules[cls.__module__]))
    exec(compile("from __future__ import annotations\n" + source.replace(old, new), cls.__name__, "exec"), space)
    patch.setattr(cls, name, space[name])


@pytest.mark.slow
@pytest.mark.parametrize(("block", "where", "old", "new"), MUTANTS)
def test_the_comparison_finds_a_fault(block: str, where: tuple[Any, str], old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, where, old, new)
    with pytest.raises(SimulationError, match=r"found .* expected"):
        load_block(block).check(150, cycles=40)


@pytest.mark.parametrize("name", [name for name in BLOCKS if name in formal.PROOFS])
def test_promises_are_proven(name: str) -> None:
    for proof in formal.PROOFS[name]:
        if proof is not formal.OrderProof or name == "reduction-table":
            assert formal.proves(proof()), proof.__name__


@pytest.mark.slow
@pytest.mark.parametrize(("block", "where", "old", "new"), PROVEN_WRONG)
def test_a_fault_has_no_proof(block: str, where: tuple[Any, str], old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, where, old, new)
    assert not all(formal.proves(proof()) for proof in formal.PROOFS[block])
