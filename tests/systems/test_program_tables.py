"""The Program of every system, form, option and machine keeps its tables. New values: `python -m tests.systems.program_tables`."""

from __future__ import annotations

import pytest

from tests.systems.program_tables import SYSTEMS, TABLES, Point, cells, points_of, stored

STORED = stored()


def changes(point: Point) -> list[str]:
    """The tables of a point that differ from the file."""
    _, *found = cells(point)
    expected = STORED.get(point.name, [])
    if len(found) != len(expected):
        return [f"{point.name}: found {' '.join(found)}, expected {' '.join(expected) or 'no such point'}"]
    pairs = zip(TABLES if len(found) > 1 else ("",), found, expected, strict=True)
    return [f"{point.name}: {table}" for table, new, old in pairs if new != old]


@pytest.mark.parametrize("half", ["first", "second"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_programs_keep_their_tables(name: str, half: str) -> None:
    points = points_of(name)[half == "second" :: 2]
    assert [line for point in points for line in changes(point)] == []


def test_one_program_of_every_system_keeps_its_tables() -> None:
    """The same for some of all systems at once: what a module says at its import shows in some of them only."""
    points = [point for name in SYSTEMS for point in points_of(name)]
    assert [point.name for point in points] == list(STORED)
    built = [point for point in reversed(points) if len(STORED[point.name]) > 1]
    chosen = {(point.system, point.machine[:3], "x" in point.machine.partition("/")[2]): point for point in built}
    assert [line for point in chosen.values() for line in changes(point)] == []
