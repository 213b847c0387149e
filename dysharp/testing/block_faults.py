"""Faults planted in the blocks of hardware: the comparison with the model finds each, and the proofs find those that break a promise."""

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dysharp.errors import SimulationError
from dysharp.silicon.rtl import al_tlb, counter_table, merge_unit, packet_manager, parts, readiness, reduction_table, row_allocation, target_logic
from dysharp.silicon.rtl.blocks import load_block
from dysharp.silicon.rtl.check import check_block
from dysharp.silicon.rtl.formal import proves
from dysharp.silicon.rtl.proofs import PROOFS


@dataclass(frozen=True, slots=True)
class Fault:
    """In the source of `where` (class, method), `new` takes the place of `old`."""

    block: str
    where: tuple[Any, str]
    old: str
    new: str


LIST, CAM = (parts.OrderList, "elaborate"), (parts.Cam, "elaborate")
TABLE, TARGETS = (reduction_table.ReductionTable, "elaborate"), (target_logic.TargetLogic, "elaborate")
COUNTERS, NOTICES, TILES = (counter_table.CounterTable, "elaborate"), (counter_table.OutputReadiness, "update"), (counter_table.TileStatus, "update")
TLB, ROWS = (al_tlb.AlTlb, "elaborate"), (row_allocation.RowAllocation, "elaborate")
DAM, MERGE = (readiness.Readiness, "elaborate"), (merge_unit.MergeUnit, "elaborate")
PACKETS, PARTS = (packet_manager.PacketManager, "elaborate"), (packet_manager.Partition, "elaborate")

COMPARED = [
    Fault("reduction-table", LIST, "head.eq(x)", "head.eq(s)"),
    Fault("reduction-table", LIST, "gap_prev.data.eq(p), gap_prev.en.eq(s != tail)", "gap_prev.data.eq(p), gap_prev.en.eq(0)"),
    Fault("reduction-table", CAM, "live[i] & (key == self.key)", "(key == self.key)"),
    Fault("reduction-table", TABLE, "response & cam.hit & last)),", "response & cam.hit & last & ~self.look)),"),
    Fault("reduction-table", TABLE, "order.to_front.eq(cam.clear)", "order.to_front.eq(0)"),
    Fault("reduction-table", TABLE, "Mux(request, 0, grown)", "grown"),
    Fault("reduction-table", TABLE, "(request & cam.at_live) | cam.clear", "cam.clear"),
    Fault("reduction-table", TABLE, "touched[i].eq(~look)", "touched[i].eq(1)"),
    Fault("target-logic", TARGETS, "listed.eq(maps[-1])", "listed.eq(maps[-2])"),
    Fault("target-logic", TARGETS, "taken.eq(Mux(self.last, 0, listed))", "taken.eq(listed)"),
    Fault("target-logic", TARGETS, "broken.eq(bad & ~self.last)", "broken.eq(0)"),
    Fault("tile-status", COUNTERS, "Mux(self.found, self.answer_data, 0)", "0"),
    Fault("tile-status", TILES, "read.data.packets, self.tile_packets", "self.tile_packets, self.tile_packets"),
    Fault("tile-status", TILES, "after.gemm2.eq(entry.gemm2 + two)", "after.gemm2.eq(entry.gemm2 + one)"),
    Fault("output-readiness", COUNTERS, "spilled + evicts - self.taken", "spilled + evicts"),
    Fault("output-readiness", COUNTERS, "(start & (cam.hit | (spilled == 0)))", "start"),
    Fault("output-readiness", NOTICES, "same, complete = (entry.notices & notice).any()", "same, complete = Const(0, 1)"),
    Fault("tile-status", COUNTERS, "self.out_valid.eq(0)", "self.out_valid.eq(self.out_valid)"),
    Fault("al-tlb", TLB, "miss_write.data.last.eq(place_read.data)", "miss_write.data.last.eq(Mux(joins, old.last, place_read.data))"),
    Fault("al-tlb", TLB, "(joins & old.allocates)", "0"),
    Fault("al-tlb", TLB, "place_write.en.eq(filling | go)", "place_write.en.eq(filling)"),
    Fault("al-tlb", TLB, "n_free.eq(n_free + 1)", "n_free.eq(n_free)"),
    Fault("row-allocation", ROWS, "point_read.data.next + first", "point_read.data.next"),
    Fault("row-allocation", ROWS, ">= region_read.data.capacity", "> region_read.data.capacity"),
    Fault("row-allocation", ROWS, "begin & ~hit & ~evicted", "begin & ~hit"),
    Fault("row-allocation", ROWS, "evicted_write.en.eq(spills & ~same)", "evicted_write.en.eq(0)"),
    Fault("packet-manager", PARTS, "limit.eq(self.now - self.timer)", "limit.eq(self.now - self.timer + 1)"),
    Fault("packet-manager", PARTS, "crowded.eq(self.fence | cam.live.all())", "crowded.eq(self.fence)"),
    Fault("packet-manager", PARTS, "~self.wholes[i], self.lows[i]", "self.lows[i], ~self.wholes[i]"),
    Fault("packet-manager", PARTS, "cam.hit & ~(self.take & (cam.slot == self.chosen))", "cam.hit"),
    Fault("packet-manager", PARTS, "[self.older[i, j].eq(0)", "[self.older[i, j].eq(1)"),
    Fault("packet-manager", PARTS, "Mux(stale.any(), stale,", "Mux(stale.all(), stale,"),
    Fault("packet-manager", PACKETS, "Mux(hit, old_read.data, 0)", "old_read.data"),
    Fault("packet-manager", PACKETS, "(i > self.last)", "(i >= self.last)"),
    Fault("readiness", DAM, "new.started.eq(old.started | becomes_ready)", "new.started.eq(old.started)"),
    Fault("readiness", DAM, "rows.eq(Mux(whole, p.tile_rows, beyond))", "rows.eq(p.tile_rows)"),
    Fault("readiness", DAM, "part.eq(part << 1)", "part.eq(part)"),
    Fault("merge-unit", MERGE, "oldest.eq(order.following)", "oldest.eq(slot)"),
    Fault("merge-unit", MERGE, "~full | may_drop", "~full"),
    Fault("merge-unit", MERGE, "new.count >= old.expected", "new.count > old.expected"),
    Fault("merge-unit", MERGE, "old.waiting | asker", "asker"),
]
PROVEN = [
    Fault("reduction-table", LIST, "head.eq(x)", "head.eq(s)"),
    Fault("reduction-table", TABLE, "Mux(request, 0, grown)", "grown"),
    Fault("reduction-table", TABLE, "(request & cam.at_live) | cam.clear", "cam.clear"),
    Fault("target-logic", TARGETS, "broken.eq(bad & ~self.last)", "broken.eq(0)"),
    Fault("tile-status", COUNTERS, "Mux(self.found, self.answer_data, 0)", "0"),
    Fault("tile-status", COUNTERS, "self.out_valid.eq(0)", "self.out_valid.eq(self.out_valid)"),
    Fault("tile-status", COUNTERS, "evicts.eq(keeps & ~hit & cam.at_live)", "evicts.eq(0)"),
    Fault("tile-status", TILES, "read.data.packets, self.tile_packets", "self.tile_packets, self.tile_packets"),
    Fault("tile-status", TILES, "after.gemm2.eq(entry.gemm2 + two)", "after.gemm2.eq(entry.gemm2 + one)"),
    Fault("tile-status", TILES, "kind == 3, Const", "kind == 2, Const"),
    Fault("output-readiness", COUNTERS, "self.out_valid.eq(0)", "self.out_valid.eq(self.out_valid)"),
    Fault("output-readiness", COUNTERS, "(start & (cam.hit | (spilled == 0)))", "start"),
    Fault("al-tlb", TLB, "behind_write.en.eq(joins)", "behind_write.en.eq(0)"),
    Fault("al-tlb", TLB, "leaving.eq(at != last)", "leaving.eq(0)"),
    Fault("row-allocation", ROWS, "point_read.data.next + first", "point_read.data.next"),
    Fault("row-allocation", ROWS, ">= region_read.data.capacity", "> region_read.data.capacity"),
    Fault("row-allocation", ROWS, "self.trap.eq(overflows)", "self.trap.eq(0)"),
    Fault("packet-manager", PARTS, "cam.hit & ~(self.take & (cam.slot == self.chosen))", "cam.hit"),
    Fault("packet-manager", PARTS, "crowded.eq(self.fence | cam.live.all())", "crowded.eq(cam.live.all())"),
    Fault("packet-manager", PACKETS, "Mux(hit, old_read.data, 0)", "old_read.data"),
    Fault("packet-manager", PACKETS, "(i > self.last)", "(i >= self.last)"),
    Fault("readiness", DAM, "new.started.eq(old.started | becomes_ready)", "new.started.eq(old.started)"),
    Fault("merge-unit", MERGE, "old.waiting | asker", "asker"),
    Fault("merge-unit", MERGE, "~full | may_drop", "1"),
]


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The block with the fault. An `old` that is gone or vague is an error of the tables above."""
    cls, name = fault.where
    whole = getattr(cls, name)
    source = textwrap.dedent(inspect.getsource(whole))
    assert source.count(fault.old) == 1, f"{cls.__name__}: {fault.old!r}: found {source.count(fault.old)} times, expected once"
    space = dict(vars(sys.modules[cls.__module__]))
    exec(compile("from __future__ import annotations\n" + source.replace(fault.old, fault.new), cls.__name__, "exec"), space)
    setattr(cls, name, space[name])
    try:
        yield
    finally:
        setattr(cls, name, whole)


def differs(fault: Fault) -> bool:
    """Whether block and model differ in 150 sequences of 40 cycles."""
    with planted(fault):
        try:
            check_block(load_block(fault.block), 150, cycles=40)
        except SimulationError:
            return True
    return False


def has_no_proof(fault: Fault) -> bool:
    """Whether a promise of the block no longer holds."""
    with planted(fault):
        return not all(proves(proof()) for proof in PROOFS[fault.block])


def found(block: str) -> dict[str, tuple[int, int]]:
    """(found, planted) faults of a block, by what looks for them."""
    looks = {"comparison": (differs, COMPARED), "proofs": (has_no_proof, PROVEN)}
    done = {}
    for by, (look, faults) in looks.items():
        results = [look(fault) for fault in faults if fault.block == block]
        done[by] = sum(results), len(results)
    return done
