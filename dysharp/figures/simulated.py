"""The Row of one point of a figure or study, simulated in its part of the memory."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from dysharp.runs.point import Point, is_workload


def row_of(point: Point, part: float = 1.0) -> dict[str, Any]:
    """Simulate a point in its part of the memory of this computer. Raises ConfigError for wrong input, SimulationError for a deadlock.

    Raises OverShare for a point that fits into the memory, but not into its part.
    """
    import dysharp
    from dysharp.runs.memory import within
    from dysharp.specs.choices import choices_overridden
    from dysharp.systems import all_systems

    _forget_peak()
    all_systems()  # reads the defaults of options now, from the packaged choices, before choices are overridden
    with choices_overridden(dict(point.choices)), within(part):
        row = dysharp.run(
            point.system,
            **{"workload" if is_workload(point.model) else "model": point.model},  # type: ignore[arg-type]
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


def _forget_peak() -> None:
    """The peak of this process's memory is that of the point that begins now (Linux), not of a larger one before it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
