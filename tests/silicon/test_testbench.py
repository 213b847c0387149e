"""The generated Verilog in an independent simulator, where one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("amaranth", reason="needs the extra rtl")
pytest.importorskip("pyosys", reason="needs the extra rtl")

from dysharp.silicon.rtl.blocks import BLOCKS, load_block
from dysharp.silicon.rtl.testbench import with_testbench

icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is not installed")


def simulated(text: str, folder: Path) -> str:
    """What Icarus Verilog prints."""
    (folder / "bench.v").write_text(text)
    subprocess.run(["iverilog", "-g2005", "-o", "bench", "bench.v"], cwd=folder, check=True)
    return subprocess.run(["vvp", "bench"], cwd=folder, check=True, capture_output=True, text=True).stdout


@icarus
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if i % 3 else n for i, n in enumerate(BLOCKS)])
def test_verilog_equals_the_model_in_another_simulator(name: str, tmp_path: Path) -> None:
    text = with_testbench(load_block(name), 20, cycles=32)
    assert simulated(text, tmp_path).strip() == f"{name.replace('-', '_')}: 640 cycles, 0 differ"


@icarus
def test_a_wrong_vector_differs(tmp_path: Path) -> None:
    """One flipped bit that has a meaning."""
    text = with_testbench(load_block("target-logic"), 1, cycles=8)
    steps = re.findall(r"step\((\S+), (\d+'h)(\w+), (\d+'h)(\w+)\);", text)
    given, size, expected, care_size, care = next(step for step in steps if int(step[4], 16))
    lowest = int(care, 16) & -int(care, 16)
    old = f"step({given}, {size}{expected}, {care_size}{care});"
    new = f"step({given}, {size}{int(expected, 16) ^ lowest:x}, {care_size}{care});"
    assert "8 cycles, 1 differ" in simulated(text.replace(old, new, 1), tmp_path)


def test_a_testbench_holds_every_cycle() -> None:
    text = with_testbench(load_block("merge-unit"), 3, cycles=5)
    assert text.count("    step(") == 15
    assert text.count("    reset;") == 3
    assert "merge_unit dut (.clk(clk), .rst(rst), .valid(in[0:0])" in text
