"""The Row of one point of a figure or study, simulated in its part of the memory."""

from __future__ import annotations

from typing import Any

from dysharp.experiments.figure import Point


def row_of(point: Point, jobs: int = 1) -> dict[str, Any]:
    """Simulate a point with its share of the memory. Raises ConfigError for wrong input, SimulationError for a deadlock.

    Raises OverShare for a point that fits into the memory, but not into its share.
    """
    import dysharp
    from dysharp.api.memory import shared_by
    from dysharp.specs.choices import choices_overridden
    from dysharp.systems import all_systems

    all_systems()  # reads the defaults of options now, from the packaged choices, before choices are overridden
    with choices_overridden(dict(point.choices)), shared_by(jobs):
        row = dysharp.run(
            point.system,
            model=point.model,
            cluster=point.cluster,
            gpus=point.gpus,
            tokens=point.tokens,
            routing=point.routing or None,
            direction=point.direction,
            seed=point.seed,
            fidelity=point.fidelity,
            options=dict(point.options),
        )
    return row.to_dict()
