"""`dysharp rtl`: tables of all blocks, libraries of cells, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("amaranth", reason="needs the extra rtl")
pytest.importorskip("pyosys", reason="needs the extra rtl")

from dysharp.base.errors import ConfigError, SimulationError
from dysharp.cli.rtl import rtl
from dysharp.silicon.area import total
from dysharp.silicon.cluster_area import beside, published
from dysharp.silicon.rtl.blocks import BLOCKS, load_block
from dysharp.silicon.rtl.synthesis import GE, cost_of, library_kge, read_library
from dysharp.specs import load_cluster

LIBRARY = """library(tiny) {
  cell(NAND2X1) { area: 2.0; pin(A) { direction: input; } pin(B) { direction: input; } pin(Y) { direction: output; function: "(A*B)'"; } }
  cell(INVX1) { area: 1.0; pin(A) { direction: input; } pin(Y) { direction: output; function: "A'"; } }
  cell(BUFX1) { area: 2.0; pin(A) { direction: input; } pin(Y) { direction: output; function: "A"; } }
  cell(DFF) { area: 10.0; ff(IQ, IQN) { clocked_on: C; next_state: D; }
    pin(C) { direction: input; clock: true; } pin(D) { direction: input; } pin(Q) { direction: output; function: "IQ"; } }
}
"""


def run(*words: str) -> str:
    done = CliRunner().invoke(rtl, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.mark.slow
def test_the_switch_answers_one_cycle_after_a_packet() -> None:
    """What the blocks add to the pipeline of a switch."""
    for name in ("reduction-table", "target-logic", "merge-unit"):
        assert "answers come at most 1 cycles after their step" in run(name, "--check", "9")


@pytest.mark.slow
def test_a_proof_is_printed_with_what_it_assumes() -> None:
    (block,) = [json.loads(run("tile-status", "--prove", "--json"))]
    assert [proof["holds"] for proof in block["proven"]] == [True, True]
    assert "no more packets and blocks than the tile has" in block["proven"][1]["assumed"]
    assert "induction" in run("target-logic", "--prove")


@pytest.mark.slow
def test_a_table_of_all_blocks() -> None:
    words = run("all", "--check", "3")
    assert all(f"\n{name} " in words for name in BLOCKS)


@pytest.mark.parametrize(("option", "value"), [("--out", "x.v"), ("--testbench", "x.v"), ("--trace", "")])
def test_one_file_is_of_one_block(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} of all: found no single block"):
        CliRunner().invoke(rtl, ["all", option, *([value] if value else [])], catch_exceptions=False)


def test_a_library_of_another_size_counts_its_own_nand(tmp_path: Path) -> None:
    """A flip-flop is five NANDs here, and 4.67 among our ten cells."""
    file = tmp_path / "tiny.lib"
    file.write_text(LIBRARY)
    component = load_block("target-logic").component(load_block("target-logic").small[0])
    text, nand = read_library(file)
    kge, ours = library_kge(component, (text, nand)), cost_of(component)
    assert nand == 2.0
    assert kge > 5 * ours.gates["$_DFF_P_"] / 1000
    assert (kge, ours.kge) == pytest.approx((0.48, 0.353), abs=5e-4)  # two kinds of gates where ours are nine
    assert GE["$_NAND_"] == 1
    doubled = library_kge(component, (text, nand / 2))
    assert doubled == pytest.approx(2 * kge)


@pytest.mark.parametrize("text", ["library(none) {}", "library(x) { cell(NAND2) { area : ..; } }"])
def test_a_file_without_cells_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "none.lib"
    file.write_text(text)
    with pytest.raises(ConfigError, match="found no cell NAND2"):
        read_library(file)


@pytest.mark.slow
def test_a_library_with_foreign_characters_is_an_error_of_one_line() -> None:
    component = load_block("target-logic").component(load_block("target-logic").small[0])
    with pytest.raises(SimulationError, match="Yosys: found exit code 1"):
        library_kge(component, ("library (x) {\u202ecell (NAND2) { area : 1.0; } }", 1.0))


@pytest.mark.slow
def test_published_areas_stand_beside_named_parts() -> None:
    """All blocks of the table of papers exist, and the parts of a row are its blocks times their copies."""
    paper = load_cluster("paper-gh200-nvl32")
    for row in published(paper):
        assert set(row.blocks) <= set(BLOCKS)
        costs = {name: cost_of(load_block(name).component(load_block(name).small[0])).parts_mm2(row.node) for name in row.blocks}
        parts = beside(row, costs)
        ours = sum(n * total(costs[name]).middle for name, n in row.blocks.items())
        assert total(parts).middle == pytest.approx(ours + (parts[row.more].middle if row.more else 0))
        assert (row.more in parts) == (row.more_bits > 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--model deepseek-v3", "--model, --routing: found deepseek-v3, uniform, expected --trace"),
        ("--faults -o x.v --check 3", "--faults: found --check, -o, expected it alone"),
    ],
)
def test_what_would_be_ignored_is_refused(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(rtl, ["al-tlb", *given.split()], catch_exceptions=False)


def test_faults_are_counted() -> None:
    found = json.loads(run("target-logic", "--faults", "--json"))
    assert found == {"target-logic": {"comparison": [3, 3], "proofs": [1, 1]}}


def test_a_difference_stops_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from dysharp.silicon.rtl import target_logic

    cycle = target_logic._TargetModel.cycle
    monkeypatch.setattr(target_logic._TargetModel, "cycle", lambda self, pins: {**cycle(self, pins), "ready": 0})
    with pytest.raises(SimulationError, match="found ready = 1, expected 0"):
        CliRunner().invoke(rtl, ["target-logic", "--check", "3"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("block", "size", "error"),
    [
        ("tile-status", "ts_entries=1", "found 1, expected 2 or more"),
        ("output-readiness", "or_entries=1", "found 1, expected 2 or more"),
        ("al-tlb", "al_tlb_entries=1", "found 1, expected 2 or more"),
        ("reduction-table", "reduction_buffer_KiB=0.25", "found 0.25, expected 0.5 or more"),
        ("readiness", "tile_rows=100", "found 100, expected a power of two"),
    ],
)
def test_a_size_that_a_block_cannot_have_is_named(block: str, size: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"^rtl {block}: {size.partition('=')[0]} of cluster .*: {error}") as found:
        CliRunner().invoke(rtl, [block, "--cluster", f"paper-nvl72,{size}"], catch_exceptions=False)
    assert found.value.exit_code == 2


@pytest.mark.parametrize("size", ["tile-status ts_entries=2", "reduction-table reduction_buffer_KiB=0.5", "readiness tile_rows=1"])
def test_the_least_size_of_a_block_builds(size: str) -> None:
    block, key = size.split()
    assert "memory bits" in run(block, "--cluster", f"paper-nvl72,{key}")
