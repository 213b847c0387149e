"""What one switch port of a run at packet level does with its reduction table, step by step, and the same steps through the block of hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dysharp.base import frozen
from dysharp.engine.blocks.tables import RED_BYPASS, RED_RESULT
from dysharp.engine.packet.columns import LOG_REQUEST, LOG_RESPONSE
from dysharp.engine.packet.fabric import FabricConfig
from dysharp.engine.packet.program import run_packet
from dysharp.silicon.rtl.blocks import PortStep
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing

if TYPE_CHECKING:
    from dysharp.silicon.rtl.check import Checked


@frozen
class PortTrace:
    """Steps of a port, and what the packet level counted at this port: `results`, `bypasses`, `evictions`."""

    model: str
    routing: str
    steps: list[PortStep]
    results: int
    bypasses: int
    evictions: int
    checked: Checked


def _port_steps(model: str, routing: str, entries: int, gpus: int, tokens: int, port: int) -> list[PortStep]:
    """Steps of `port` (a link) in Dispatch and Combine of `tokens` per GPU under DySHARP, with a table of `entries` sessions."""
    shape, machine = load_model(model), load_cluster("paper-gh200-nvl32").with_gpus(gpus)
    placed = make_routing(routing, shape, gpus, tokens, seed=0, layer=None, placement="auto")
    system = get_system("dysharp")
    program = system.plan(shape, machine, placed, "fwd", system.options(dispatch_window=tokens, combine_window=tokens, compute=False))
    config = FabricConfig(n_planes=machine.n_switches, reduction_entries=entries, al_entries=0)
    number: dict[int, int] = {}  # a row of the packet level is used again; the port's sessions count up
    steps: list[PortStep] = []
    for kind, row, count, outcome in run_packet(program, config, listen=port).port_log.tolist():
        if kind == LOG_REQUEST:
            left = number.get(outcome, -1) if outcome >= 0 else -1
            number[row] = len({step.session for step in steps})
            steps.append(PortStep("request", number[row], count, f"evicts {left}" if left >= 0 else ""))
        elif kind == LOG_RESPONSE:
            steps.append(PortStep("response", number[row], count, {RED_BYPASS: "bypass", RED_RESULT: "result"}.get(outcome, "")))
        else:
            raise ValueError("an expiry in a run without timeouts")
    return steps


def trace_port(model: str = "S-8", routing: str = "uniform", *, entries: int = 8, gpus: int = 4, tokens: int = 64, port: int = 0) -> PortTrace:
    """The steps of `_port_steps` through the block, beside `protocol.reduction`: sums, results, bypasses and evictions of all three are equal.

    Raises SimulationError where they differ, MissingExtra without the extra "rtl".
    """
    from dysharp.silicon.rtl.reduction_table import replay

    steps = _port_steps(model, routing, entries, gpus, tokens, port)
    outcomes = [step.outcome.split()[0] if step.outcome else "" for step in steps]
    n = {name: int(np.sum([o == name for o in outcomes])) for name in ("result", "bypass", "evicts")}
    return PortTrace(model, routing, steps, n["result"], n["bypass"], n["evicts"], replay(steps, entries))
