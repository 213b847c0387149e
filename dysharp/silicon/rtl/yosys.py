"""Yosys in a process of its own: Verilog, memories, synthesis."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from dysharp.base import MissingExtra, SimulationError, frozen
from dysharp.silicon.rtl.parts import MACRO

_RUN = "from pyosys import libyosys as y; y.run_pass('script run.ys', y.Design())"


@frozen
class MemoryBits:
    """A memory of a block: `depth` x `width` bits, with ports of one access per cycle."""

    name: str
    depth: int
    width: int
    reads: int
    writes: int

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """A memory from the parameters of its cell."""
        return cls(parameters["MEMID"].strip("\\ "), *(int(parameters[key], 2) for key in ("SIZE", "WIDTH", "RD_PORTS", "WR_PORTS")))

    @property
    def bits(self) -> int:
        return self.depth * self.width


def rtlil_of(component: Any, name: str, platform: str | None = None) -> str:
    """The block in the intermediate language of Yosys, with its module `name` on top."""
    from amaranth.back import rtlil

    text: str = rtlil.convert(component, name=name, emit_src=False, platform=platform)
    return text


def run_yosys(script: str, rtlil: str, result: str, **given: str) -> str:
    """The text of the file `result` that `script` writes about the design `in.il`, beside files `given`.

    Raises MissingExtra, SimulationError.
    """
    if find_spec("pyosys") is None:
        raise MissingExtra.needs("synthesis", "rtl")
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "in.il").write_text(rtlil)
        for name, text in given.items():
            (at / name).write_text(text)
        (at / "run.ys").write_text("read_rtlil in.il\n" + script)
        done = subprocess.run([sys.executable, "-c", _RUN], cwd=at, capture_output=True, encoding="utf-8", errors="backslashreplace", check=False)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise SimulationError(f"Yosys: found exit code {done.returncode}, expected 0: {' '.join(last)}")
        return (at / result).read_text()


def verilog_of(component: Any, name: str) -> str:
    """The block as Verilog-2005 without attributes."""
    return run_yosys("proc\nopt_clean\nmemory_collect\nwrite_verilog -noattr out.v\n", rtlil_of(component, name), "out.v")


def memories_of(component: Any) -> list[MemoryBits]:
    """The memories of a block with their ports."""
    script = "proc\nopt_clean\nmemory_collect\nwrite_json out.json\n"
    design = json.loads(run_yosys(script, rtlil_of(component, "top", MACRO), "out.json"))
    cells = (cell for module in design["modules"].values() for cell in module["cells"].values() if cell["type"] == "$mem_v2")
    return sorted((MemoryBits.of(cell["parameters"]) for cell in cells), key=lambda m: m.name)
