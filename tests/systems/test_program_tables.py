"""One Program of every system keeps its tables: what a module says at its import shows in some of them only."""

from __future__ import annotations

from tests.stored_values import differences, read
from tests.systems.program_tables import STORED, SYSTEMS, points_of, told


def test_one_program_of_every_system_keeps_its_tables() -> None:
    rows = read(STORED.path)
    points = [(f"{point.system} {point.direction}".strip(), point) for name in SYSTEMS for point in points_of(name)]
    assert sorted((row, point.name) for row, point in points) == sorted((row, name) for row, columns in rows.items() for name in columns)
    built = [(row, point) for row, point in reversed(points) if rows[row][point.name] != "refused"]
    chosen = {(point.system, point.machine[:3], "x" in point.machine.partition("/")[2]): (row, point) for row, point in built}
    pairs = [(row, {point.name: told(point)}, {point.name: rows[row][point.name]}) for row, point in chosen.values()]
    assert [line for row, found, stored in pairs for line in differences(STORED, row, found, stored)] == []
