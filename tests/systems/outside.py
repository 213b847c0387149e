"""Systems from outside the tree: plan functions with five arguments that a test registers and that are gone when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model
from dysharp.systems import Change, Costs, Facts, Moves, Shown, system
from dysharp.systems.building.experts import fused, one_after_another
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.paper_layers import copy_per_gpu
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.facts import OTHER_COLOUR
from dysharp.systems.registry import _REGISTRY
from dysharp.workload import Routing

MOVES = Moves("one_copy_per_gpu")


@dataclass(frozen=True, slots=True)
class Options:
    form: str = "auto"


@dataclass(frozen=True, slots=True)
class PaperOptions:
    pass


def plan_paper(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any) -> Program:
    """Phases, one after the other."""
    copy_per_gpu(layer := LayerBuilder(model, cluster, routing, direction))
    return layer.build(MOVES)


def plan_fused(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any) -> Program:
    """Tile by tile."""
    layer = LayerBuilder(model, cluster, routing, direction)
    layer.dispatch_puts()
    fused(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row)
    return layer.build(MOVES)


def plan_real(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any) -> Program:
    """Phases behind a launch and a barrier."""
    layer = LayerBuilder(model, cluster, routing, direction)
    steps = SoftwareSteps(layer)
    start = steps.delay("launch", steps.costs.kernel_ps)
    puts = layer.dispatch_puts()
    layer.wait_first(puts, start)
    finished = one_after_another(layer, steps.barrier_after("dispatch", "received", start, puts))
    layer.wait_first(layer.combine_puts(Discipline.PROGRAM_ORDER), finished)
    return layer.build(MOVES)


@contextmanager
def registered(
    name: str,
    plan: Any = plan_paper,
    options: type = Options,
    *,
    permutes: int = 0,
    fused: bool = False,
    colour: str = OTHER_COLOUR,
    change: Change | None = None,
    **facts: Any,
) -> Iterator[str]:
    """`name` is a system while the block runs. `facts`: further fields of `Facts`."""
    costs, shown = Costs(permutes=permutes, fused=fused), Shown(colour, change)
    declared = Facts(source="a test", options=options, moves=MOVES, costs=costs, shown=shown, **facts)
    system(name, declared, real=None if options is PaperOptions else plan_real)(plan)
    try:
        yield name
    finally:
        del _REGISTRY[name]
