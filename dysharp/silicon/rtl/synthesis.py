"""What a block costs: gates, bits of SRAM and CAM, the longest path, and square millimetres with their spread.

Logic is mapped by Yosys to ten cells. Memories and CAMs stay macros and are counted by their bits and ports. The weights of the cells are ours:
gate equivalents (GE, a two-input NAND = 1) as they are usual in standard cell libraries. Sources of the densities: docs/rtl.md.
"""

import json
import re
from collections import Counter, defaultdict
from dataclasses import asdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from dysharp.base import ByName, ConfigError, Tally, frozen, read_text
from dysharp.silicon.area import GE_PER_MM2, Spread, parts_mm2, total
from dysharp.silicon.rtl.parts import MACRO
from dysharp.silicon.rtl.yosys import MemoryBits, rtlil_of, run_yosys

GE = {
    "$_NOT_": 0.67, "$_NAND_": 1.0, "$_NOR_": 1.0, "$_XOR_": 2.33, "$_MUX_": 2.33, "$_AOI3_": 1.33, "$_OAI3_": 1.33, "$_AOI4_": 1.67,
    "$_OAI4_": 1.67, "$_DFF_P_": 4.67,
}  # fmt: skip
"""The ten cells and their gate equivalents."""

_SCRIPT = read_text(Path(__file__).with_suffix(".ys"))
_OURS = """abc -g NAND,NOR,XOR,MUX,AOI3,OAI3,AOI4,OAI4
opt_clean -purge
write_json out.json
"""
_LIBRARY = """dfflibmap -liberty {0}
abc -liberty {0}
opt_clean -purge
tee -o stat.txt stat -liberty {0}
"""


@frozen
class Synthesized:
    """`gates`: by cell. `path_gates`, `path_macros`: gates and macros on the longest path between flip-flops."""

    gates: Tally
    memories: list[MemoryBits]
    cam_bits: int
    path_gates: int
    path_macros: int

    @property
    def kge(self) -> float:
        """Logic and flip-flops outside of macros, in thousand gate equivalents."""
        return sum(GE[cell] * n for cell, n in self.gates.items()) / 1000

    @property
    def sram_bits(self) -> int:
        return sum(memory.bits for memory in self.memories)

    def parts_mm2(self, node: int) -> dict[str, Spread]:
        """Area by named part in `node` (12 or 7) nm."""
        plain = sum(m.bits for m in self.memories if m.reads + m.writes <= 2)
        return parts_mm2(node, kge=self.kge, bits=plain, ported_bits=self.sram_bits - plain, cam_bits=self.cam_bits)

    def mm2(self, node: int) -> Spread:
        """Area in `node` (12 or 7) nm."""
        return total(self.parts_mm2(node))

    def to_dict(self) -> ByName:
        areas = {f"mm2_{node}nm": self.mm2(node)._asdict() | {"parts": {k: v.middle for k, v in self.parts_mm2(node).items()}} for node in GE_PER_MM2}
        return asdict(self) | {"kge": self.kge, "sram_bits": self.sram_bits} | areas


def cost_of(component: Any) -> Synthesized:
    """Map a block to cells. Raises SimulationError, MissingExtra."""
    design = json.loads(run_yosys(_SCRIPT + _OURS, rtlil_of(component, "top", MACRO), "out.json"))
    module = design["modules"]["top"]
    gates: Counter[str] = Counter()
    memories, cam_bits = [], 0
    for cell in module["cells"].values():
        kind, parameters = cell["type"], cell["parameters"]
        if kind == "$mem_v2":
            memories.append(MemoryBits.of(parameters))
        elif kind == "cam":
            cam_bits += int(parameters["SLOTS"], 2) * int(parameters["KEY_BITS"], 2)
        else:
            gates[kind] += 1
    return Synthesized(dict(sorted(gates.items())), sorted(memories, key=lambda m: m.name), cam_bits, *_path(module))


def read_library(path: Path) -> tuple[str, float]:
    """The text of a Liberty file, and the area of its smallest NAND2. Raises ConfigError for a file without one."""
    text = read_text(path)
    cells = re.findall(r'\bcell\s*\(\s*"?(\w+)"?\s*\)\s*\{[^{}]*?\barea\s*:\s*(\d+\.?\d*|\.\d+)', text)
    nands = [float(area) for name, area in cells if "nand2" in name.lower()]
    if not nands:
        raise ConfigError(f"{path}: found no cell NAND2 with an area, expected a Liberty file of standard cells")
    return text, min(nands)


def library_kge(component: Any, library: tuple[str, float]) -> float:
    """Logic and flip-flops outside of macros in the cells of a library, in thousand areas of its NAND2. Raises SimulationError, MissingExtra."""
    text, nand = library
    log = run_yosys(_SCRIPT + _LIBRARY.format("cells.lib"), rtlil_of(component, "top", MACRO), "stat.txt", **{"cells.lib": text})
    (area,) = re.findall(r"Chip area for module .*: ([\d.]+)", log)
    return float(area) / nand / 1000


def _path(module: ByName) -> tuple[int, int]:
    """(gates, macros) on the path with most gates and macros. A read of a memory or a search of a CAM is one macro."""
    driver: dict[int, str] = {}
    inputs: dict[str, list[int]] = defaultdict(list)
    for name, cell in module["cells"].items():
        kind = cell["type"]
        if kind == "$_DFF_P_":
            continue
        if kind == "$mem_v2":
            _memory_ports(name, cell, driver, inputs)
            continue
        for port, bits in cell["connections"].items():
            if port == "match" if kind == "cam" else cell["port_directions"][port] == "output":
                driver |= {bit: name for bit in bits if isinstance(bit, int)}
            elif kind != "cam" or port == "key":
                inputs[name] += [bit for bit in bits if isinstance(bit, int)]
    before = {name: {driver[bit] for bit in bits if bit in driver} for name, bits in inputs.items()}
    longest: dict[str, tuple[int, int]] = {}
    for name in TopologicalSorter(before).static_order():
        gates, macros = max((longest[b] for b in before.get(name, ())), default=(0, 0))
        is_macro = name not in module["cells"] or module["cells"][name]["type"] == "cam"
        longest[name] = (gates, macros + 1) if is_macro else (gates + 1, macros)
    return max(longest.values(), default=(0, 0))


def _memory_ports(name: str, cell: ByName, driver: dict[int, str], inputs: dict[str, list[int]]) -> None:
    """Each read port is a node of its own: from its address to its data."""
    addresses, data = cell["connections"]["RD_ADDR"], cell["connections"]["RD_DATA"]
    ports = int(cell["parameters"]["RD_PORTS"], 2)
    for port in range(ports):
        node, a, d = f"{name} {port}", len(addresses) // ports, len(data) // ports
        driver |= {bit: node for bit in data[d * port : d * (port + 1)] if isinstance(bit, int)}
        inputs[node] += [bit for bit in addresses[a * port : a * (port + 1)] if isinstance(bit, int)]
