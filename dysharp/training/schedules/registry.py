"""The register of schedules: a function of this folder with `@schedule` is a family."""

from collections.abc import Callable, Sequence

from dysharp.base import ConfigError, entry_of, frozen, import_all
from dysharp.training.schedules.cells import Cell, Schedule, ScheduleShape, Slot, Times, equal_times

Build = Callable[[ScheduleShape], Sequence[Sequence[Slot | Cell]]]


@frozen
class ScheduleFamily:
    """A family of schedules. `chunks`: model parts of a rank (0: the user's number, at least 2). `two_way`: micro-batches enter at both ends.

    `greedy`: the order depends on the times. `splits`: weight gradients are cells of their own.
    """

    name: str
    summary: str
    source: str
    build: Build
    chunks: int = 1
    two_way: bool = False
    greedy: bool = False
    splits: bool = False

    def stages(self, ranks: int, chunks: int) -> int:
        """Stages of the model on `ranks` ranks."""
        return ranks if self.two_way else ranks * (self.chunks or chunks)


_REGISTRY: dict[str, ScheduleFamily] = {}


def schedule(
    name: str, source: str, *, chunks: int = 1, two_way: bool = False, greedy: bool = False, splits: bool = False
) -> Callable[[Build], Build]:
    """Register a function (`ScheduleShape`) -> slots of every rank as the family `name`. The first line of its docstring is shown to users."""

    def register(build: Build) -> Build:
        summary = (build.__doc__ or "").strip().splitlines()[0]
        _REGISTRY[name] = ScheduleFamily(name, summary, source, build, chunks, two_way, greedy, splits)
        return build

    return register


def all_schedules() -> dict[str, ScheduleFamily]:
    """Every registered family by name."""
    import_all("dysharp.training.schedules")
    return dict(sorted(_REGISTRY.items()))


def get_schedule(name: str) -> ScheduleFamily:
    """The family `name`. Raises ConfigError with the nearest name."""
    return entry_of(name, all_schedules(), f"schedule {name!r}: unknown")


def usual_schedule(chunks: int) -> str:
    """The schedule that nobody names, for so many chunks of a rank."""
    return "interleaved" if chunks > 1 else "1f1b"


def make_schedule(name: str, ranks: int, microbatches: int, chunks: int = 2, group: int = 0, times: Times | None = None) -> Schedule:
    """The schedule of a family for `ranks` pipeline ranks and `microbatches` of the step (both directions together).

    `chunks` counts for interleaved families only. `times` (by default equal, one unit for each kind) guide the greedy families. Raises
    ConfigError for an unknown name and for numbers that the family cannot serve.
    """
    family = get_schedule(name)
    for found, what in ((ranks, "ranks"), (microbatches, "micro-batches")):
        if found < 1:
            raise ConfigError(f"schedule {name}: found {found} {what}, expected 1 or more")
    if not family.chunks and chunks < 1:
        raise ConfigError(f"schedule {name}: found {chunks} chunks of a rank, expected 1 or more")
    chunks = family.chunks or chunks
    stages = family.stages(ranks, chunks)
    if times is not None and len(times.forward) != stages:
        raise ConfigError(f"schedule {name}: found times of {len(times.forward)} stages, expected {stages}")
    rows = family.build(ScheduleShape(ranks, microbatches, chunks, group, times or equal_times(stages)))
    slots = tuple(tuple((one,) if isinstance(one, Cell) else one for one in row) for row in rows)
    ways = 2 if family.two_way else 1
    return Schedule(name, stages, microbatches // ways, ways, slots).check()
