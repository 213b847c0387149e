"""Blocks in Amaranth and their models agree in every cycle."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs the extra rtl")
pytest.importorskip("pyosys", reason="needs the extra rtl")

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dysharp.silicon.rtl.blocks import BLOCKS, load_block
from dysharp.silicon.rtl.check import check_block
from dysharp.silicon.rtl.parts import OrderList
from dysharp.silicon.rtl.synthesis import GE, cost_of
from dysharp.silicon.rtl.yosys import memories_of, verilog_of
from dysharp.specs import load_cluster

PAPER = load_cluster("paper-gh200-nvl32")


def agrees(name: str, sequences: int, seed: int = 0) -> None:
    checked = check_block(load_block(name), sequences, seed=seed)
    assert sum(done.sequences for _, done in checked) == sequences
    for parameters, done in checked:
        assert min(done.seen.values()) > 0, (parameters, done.seen)


@pytest.mark.sampled
@pytest.mark.parametrize("name", BLOCKS)
def test_block_equals_its_model_quickly(name: str) -> None:
    agrees(name, 24, seed=1)


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_block_equals_its_model(name: str) -> None:
    agrees(name, 500)


@pytest.mark.long
@pytest.mark.parametrize("name", BLOCKS)
def test_block_equals_its_model_at_length(name: str) -> None:
    agrees(name, 10_000, seed=2)


@pytest.mark.sampled
@pytest.mark.parametrize("name", BLOCKS)
def test_block_is_verilog(name: str) -> None:
    block = load_block(name)
    text = verilog_of(block.component(block.small[-1]), name.replace("-", "_"))
    assert f"module {name.replace('-', '_')}(" in text
    top = text.split(f"module {name.replace('-', '_')}(")[1].split(");", 1)[0]
    assert "\\" not in top, "a pin has a reserved word as its name"
    assert "$" not in text.split("endmodule")[0].replace("$clog2", "").split(");", 1)[0]


def test_the_cluster_sets_the_size_of_the_reduction_table() -> None:
    """64 KiB are 256 sessions of two entries; links and counts are beside them."""
    block = load_block("reduction-table")
    small = block.small[-1]
    assert block.parameters.of_cluster(PAPER).entries == 256
    assert {(m.depth, m.reads, m.writes) for m in memories_of(block.component(small))} == {(4, 1, 1), (4, 1, 2)}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if i % 3 else n for i, n in enumerate(BLOCKS)])
def test_cost_counts_every_macro(name: str) -> None:
    """Memories are those of the Verilog, flip-flops and gates are there, and the ends of an area lie around its middle."""
    block = load_block(name)
    cost = cost_of(block.component(block.small[0]))
    memories = memories_of(block.component(block.small[0]))
    assert sorted((m.depth, m.width) for m in cost.memories) == sorted((m.depth, m.width) for m in memories)
    assert set(cost.gates) <= set(GE)
    assert cost.gates["$_DFF_P_"] > 0 < cost.path_gates
    for node in (12, 7):
        low, middle, high = cost.mm2(node)
        assert 0 < low < middle < high
        assert middle == pytest.approx(sum(part.middle for part in cost.parts_mm2(node).values()))


def test_an_order_list_of_twice_the_slots_has_twice_the_bits() -> None:
    small, large = cost_of(OrderList(16)), cost_of(OrderList(32))
    assert (small.sram_bits, large.sram_bits) == (2 * 16 * 4, 2 * 32 * 5)
    assert large.kge < 1.5 * small.kge


def test_gates_of_a_known_circuit() -> None:
    """Three NANDs in a row and a flip-flop with reset."""

    class Chain(wiring.Component):
        def __init__(self) -> None:
            super().__init__({"a": In(1), "b": In(3), "q": Out(1)})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            value = self.a
            for i in range(3):
                value = ~(value & self.b[i])
            m.d.sync += self.q.eq(value)
            return m

    cost = cost_of(Chain())
    assert cost.gates["$_DFF_P_"] == 1
    assert 3 <= cost.path_gates <= 5
