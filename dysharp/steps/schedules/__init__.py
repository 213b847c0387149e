"""Pipeline schedules as lists of cells."""

from dysharp.steps.schedules.registry import (
    Cell,
    Family,
    Schedule,
    Shape,
    Slot,
    Times,
    all_schedules,
    equal_times,
    get_schedule,
    in_flight,
    make_schedule,
)

__all__ = ["Cell", "Family", "Schedule", "Shape", "Slot", "Times", "all_schedules", "equal_times", "get_schedule", "in_flight", "make_schedule"]
