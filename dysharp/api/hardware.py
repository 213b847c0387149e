"""`hardware`: a block of hardware with its parameters, memories, Verilog and checks (extra "rtl")."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dysharp.api.arguments import HardwareArgs
from dysharp.base import ByName, ConfigError, Tally, frozen, write_text
from dysharp.runs import DEFAULT_CLUSTER, takes
from dysharp.silicon.area import Spread
from dysharp.silicon.cluster_area import Published, beside, published
from dysharp.silicon.rtl.blocks import BLOCKS, Pin, load_block
from dysharp.specs import load_cluster

if TYPE_CHECKING:
    from dysharp.api.port_trace import PortTrace
    from dysharp.silicon.rtl.check import Checked
    from dysharp.silicon.rtl.formal import Proven
    from dysharp.silicon.rtl.synthesis import Synthesized
    from dysharp.silicon.rtl.yosys import MemoryBits


@frozen
class Hardware:
    """What `dysharp rtl` prints. `path`, `testbench`: of the Verilog, None = not written. `checked`: small parameters and what ran with them.
    `interface`: what the pins mean. `library_kge`: logic in the cells of a Liberty file, by its NAND2."""

    block: str
    meaning: str
    cluster: str
    parameters: Tally
    pins: list[Pin]
    interface: str
    memories: list[MemoryBits]
    checked: list[tuple[Tally, Checked]]
    path: str | None
    testbench: str | None
    cost: Synthesized | None
    trace: PortTrace | None
    proven: list[Proven]
    library_kge: float | None

    def to_dict(self) -> ByName:
        """JSON values; `memory_bits` is the sum over `memories`."""
        return asdict(self) | {
            "memory_bits": sum(m.bits for m in self.memories),
            "trace": self.trace and {k: v for k, v in asdict(self.trace).items() if k != "steps"},
            "cost": self.cost and self.cost.to_dict(),
            "checked": [{"parameters": p} | asdict(done) for p, done in self.checked],
        }


@takes(HardwareArgs)
def hardware(block: str, cluster: str = DEFAULT_CLUSTER, **request: Unpack[HardwareArgs]) -> Hardware:
    """Build `block` for `cluster` and do what is asked with it. `trace`: reduction-table only. `testbench`: with `sequences` (20) as vectors.

    Raises ConfigError for an unknown block or cluster, MissingExtra without the extra "rtl", SimulationError where block and model differ.
    """
    from dysharp.api.port_trace import trace_port
    from dysharp.silicon.rtl.check import check_block, pins_of
    from dysharp.silicon.rtl.formal import prove
    from dysharp.silicon.rtl.synthesis import cost_of, library_kge, read_library
    from dysharp.silicon.rtl.yosys import memories_of, verilog_of

    found, machine = load_block(block), load_cluster(cluster)
    parameters = found.parameters.of_cluster(machine)
    sequences, seed, trace = request["sequences"], request["seed"], request["trace"]
    out, testbench, liberty = request["out"], request["testbench"], request["liberty"]
    if trace and block != "reduction-table":
        raise ConfigError(f"--trace of {block}: found no run that logs its packets, expected reduction-table")
    library = read_library(Path(liberty)) if liberty is not None else None
    checked = check_block(found, sequences, seed=seed) if sequences else []
    component = found.component(parameters)
    memories = memories_of(component)
    if out is not None:
        write_text(out, verilog_of(found.component(parameters), block.replace("-", "_")))
    if testbench is not None:
        from dysharp.silicon.rtl.testbench import with_testbench

        write_text(testbench, with_testbench(found, sequences or 20, seed=seed))
    return Hardware(
        block, found.summary, machine.name, asdict(parameters), pins_of(component), inspect.cleandoc(found.component.__doc__ or ""),
        memories, checked, out, testbench, cost_of(found.component(parameters)) if request["area"] else None, trace and trace_port(*trace),
        prove(block) if request["prove"] else [], library_kge(found.component(parameters), library) if library else None,
    )  # fmt: skip


def every_block(cluster: str = DEFAULT_CLUSTER, **request: Unpack[HardwareArgs]) -> list[Hardware]:
    """`hardware` of all blocks."""
    return [hardware(block, cluster, **request) for block in BLOCKS]


def beside_papers(blocks: list[Hardware]) -> list[tuple[Published, dict[str, Spread]]]:
    """The published areas with our areas by named part. `blocks`: every block with its costs."""
    costs = {block.block: block.cost for block in blocks if block.cost}
    rows = published(load_cluster(blocks[0].cluster))
    return [(row, beside(row, {name: costs[name].parts_mm2(row.node) for name in row.blocks})) for row in rows]
