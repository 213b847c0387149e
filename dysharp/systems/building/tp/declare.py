"""`sub_layer` registers a plan that gets its sub-layer under construction."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.systems.building.tp.sublayer import Machine
from dysharp.systems.building.tp.ways import Ways
from dysharp.systems.collective_system import collective
from dysharp.workload.sublayer import SUB_LAYER, SubLayer

Plan = Callable[[Ways, Any], None]
SUMS = "it multicasts and adds there"
"""What the switch does for multimem."""


def sub_layer(name: str, source: str, options: type, *, switch: str = "", **machine: Any) -> Callable[[Plan], Plan]:
    """Register a plan function (Ways, options), which adds ops. `machine`: fields of `Machine`, or functions (work, options) of them.

    `options` has `seed` and `chunk_bytes`.
    """

    def register(plan: Plan) -> Plan:
        @wraps(plan)
        def whole(work: SubLayer, cluster: Cluster, options: Any) -> Program:
            chosen = {key: value(work, options) if callable(value) else value for key, value in machine.items()}
            build = Ways(work, cluster, Machine(seed=options.seed, chunk_bytes=options.chunk_bytes, **chosen))
            plan(build, options)
            return build.build()

        collective(name, source=source, options=options, operations=(SUB_LAYER,), switch=switch)(whole)
        return plan

    return register
