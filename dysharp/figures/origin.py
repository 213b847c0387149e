"""Where the Row of a point comes from: a simulation, or a calculation (`figures.metric.calculated`). No other module asks which of the two it is."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dysharp.base import ByName
from dysharp.figures.metric import Calculated, all_calculated
from dysharp.runs import Point, is_workload
from dysharp.specs import Scalar
from dysharp.specs.fields import problems, raise_if

OF_STEPS = ("step.", "paper_step.")
"""How choices of training steps begin. They change no layer."""


def _simulated(name: str) -> Any:
    """The system called `name`: of sub-layers, of layers, or of collectives."""
    from dysharp.systems import all_systems, get_system
    from dysharp.systems.collectives import all_collectives, all_tensor_parallel

    return (all_tensor_parallel() | all_collectives() | all_systems()).get(name) or get_system(name)


class _Simulation:
    """What the points of a simulated system answer."""

    def check(self, point: Point) -> None:
        """Raise ConfigError for an unknown system or option of a point."""
        from dysharp.runs.options import options_of, split_fabric

        options_of(_simulated(point.system), split_fabric(dict(point.options), "packet")[1])

    def row(self, point: Point, part: float = 1.0) -> ByName:
        """The Row of a point as plain values. `part`: the part of the memory that the run may take."""
        return row_of(point, part)

    def with_choices(self, point: Point, choices: Mapping[str, Scalar]) -> Point:
        """The point with `choices`. A choice that is an option of the point's system becomes that option.

        A choice that is an option of other systems only leaves the point as it is, so the point is not run again. So does one of training
        steps: metrics read it where they make steps of layers.
        """
        from dysharp.runs.options import option_choices
        from dysharp.systems import all_systems

        own = {c.name: field for field, c in option_choices(_simulated(point.system)).items() if c is not None}
        everywhere = {c.name for s in all_systems().values() for c in option_choices(s).values() if c is not None}
        options = dict(point.options) | {own[name]: value for name, value in choices.items() if name in own}
        rest = dict(point.choices) | {name: value for name, value in choices.items() if name not in everywhere and not name.startswith(OF_STEPS)}
        return replace(point, options=tuple(sorted(options.items())), choices=tuple(sorted(rest.items())))

    def in_direction(self, point: Point, direction: str) -> Point:
        """The point for another pass."""
        return replace(point, direction=direction)


@dataclass(frozen=True)
class _Calculation(_Simulation):
    """The same of a calculated system: choices and passes change nothing."""

    of: Calculated

    def check(self, point: Point) -> None:
        raise_if(problems(self.of.options, dict(point.options)), f"{point.label}: option")

    def row(self, point: Point, part: float = 1.0) -> ByName:
        self.check(point)
        return self.of.row(point, self.of.options(**dict(point.options)))

    def with_choices(self, point: Point, choices: Mapping[str, Scalar]) -> Point:
        return point

    def in_direction(self, point: Point, direction: str) -> Point:
        return point


def origin_of(system: str) -> _Simulation:
    """What the points of a system answer. Any name that is no calculated system is a simulated one."""
    found = all_calculated().get(system)
    return _Simulation() if found is None else _Calculation(found)


def row_of(point: Point, part: float = 1.0) -> ByName:
    """Simulate a point in its part of the memory of this computer. Raises ConfigError for wrong input, SimulationError for a deadlock.

    Raises OverShare for a point that fits into the memory, but not into its part.
    """
    import dysharp
    from dysharp.runs.memory import within
    from dysharp.specs.choices import choices_overridden
    from dysharp.systems import all_systems

    with suppress(OSError):  # the peak of this process's memory is that of the point that begins now (Linux), not of a larger one before it
        Path("/proc/self/clear_refs").write_text("5")
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
