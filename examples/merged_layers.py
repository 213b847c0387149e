"""Two MoE layers on one machine: the forward pass of micro-batch A beside the backward pass of micro-batch B.

    python examples/merged_layers.py [SYSTEM]

Prints the time of both side by side and one behind the other on every GPU, then of each alone, then where the time of the merge goes.
"""

from __future__ import annotations

import sys

import dysharp
from dysharp.analysis.attribution import critical_path
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.program.merge import Part, merge
from dysharp.program.verify import verify
from dysharp.systems import get_system
from dysharp.workload import make_routing


def parts(system: str, gpus: int = 8, tokens: int = 256) -> list[Part]:
    """Forward of one micro-batch and backward of another, each planned as always."""
    known, model, cluster = get_system(system), dysharp.load_model("mixtral-8x7b"), dysharp.load_cluster("paper-gh200-nvl32").with_gpus(gpus)
    options = known.options()
    out = []
    for number, (label, direction) in enumerate((("A", "fwd"), ("B", "bwd"))):
        routing = known.served(make_routing("uniform", model, gpus, tokens, seed=number), options)
        out.append(Part(label, known.plan(model, cluster, routing, direction, options), microbatch=number, direction=direction))
    return out


def time_us(program: Program) -> float:
    """Time of a verified Program at burst level."""
    verify(program)
    return run_burst(program)[0].time_ps / 1e6


def main(system: str = "dysharp") -> None:
    both = parts(system)
    alone = {part.label: time_us(part.program) for part in both}
    behind = time_us(merge(both, streams=[["A", "B"]]))
    merged = merge(both)
    verify(merged)
    trace = run_burst(merged)[0]
    beside = trace.time_ps / 1e6
    print(f"{system}: side by side {beside:.1f} us, one behind the other {behind:.1f} us: {behind / beside:.2f}x")
    print("alone: " + ", ".join(f"{part.label} ({part.direction}) {alone[part.label]:.1f} us" for part in both))
    path = critical_path(merged, trace)[1]
    print("critical path: " + ", ".join(f"{name} {ps / 1e6:.1f} us" for name, ps in path.items() if ps))


if __name__ == "__main__":
    main(*sys.argv[1:])
