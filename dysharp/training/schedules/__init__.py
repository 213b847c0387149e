"""Pipeline schedules as lists of cells."""

from dysharp.training.schedules.cells import Cell, Schedule, ScheduleShape, Slot, Times, equal_times, in_flight
from dysharp.training.schedules.registry import ScheduleFamily, all_schedules, get_schedule, make_schedule, usual_schedule
