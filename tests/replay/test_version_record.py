"""A stored point changes with a new model version only: each file's hash is recorded once, and no line of the record is rewritten."""

from __future__ import annotations

import json

import pytest
from replay_points import STORED, grown
from version_record import RECORD, earlier_records, faults, file_text, lost_lines, read_record, recorded

FILE, TEXT = STORED.read_text(), RECORD.read_text()
STORED_AS = json.loads(FILE)
VERSION, POINTS = STORED_AS["model_version"], STORED_AS["points"]


def test_the_stored_file_is_the_recorded_one() -> None:
    assert faults(FILE, read_record(TEXT)) == []


def test_the_record_names_every_version_up_to_this_one() -> None:
    versions = [int(line.version) for line in read_record(TEXT)]
    assert sorted(set(versions)) == list(range(3, int(VERSION) + 1))
    assert versions == sorted(versions)


def changed(field: str) -> str:
    """A copy of the stored file with another value in one point."""
    name = next(name for name, value in POINTS.items() if field in value)
    value = POINTS[name][field]
    other = value[::-1] if isinstance(value, str) else value + 1
    return file_text(VERSION, POINTS | {name: POINTS[name] | {field: other}})


@pytest.mark.parametrize("field", ["digest", "time_us", "bound_us", "up_bytes", "n_events"])
def test_a_changed_point_needs_a_new_version(field: str) -> None:
    found = faults(changed(field), read_record(TEXT))
    assert f"model version {VERSION}: found another file than was recorded with {len(POINTS)} points; a change needs a new version" in found


def test_a_new_version_needs_a_line() -> None:
    text = file_text("99", POINTS)
    assert faults(text, read_record(TEXT)) == ["model version 99: found no line in versions.csv, expected one"]
    assert faults(text, [*read_record(TEXT), recorded("99", POINTS)]) == []


def test_points_of_a_new_system_go_to_the_end_and_take_a_line() -> None:
    more = grown(POINTS, {"new": {"digest": "0"}} | POINTS)
    assert list(more) == [*POINTS, "new"]
    text, record = file_text(VERSION, more), read_record(TEXT)
    assert faults(text, record) == [f"model version {VERSION}: found {len(more)} points, expected the {len(POINTS)} that are recorded"]
    assert faults(text, [*record, recorded(VERSION, more)]) == []
    first = file_text(VERSION, {"new": {"digest": "0"}} | POINTS)
    assert "needs a new version" in faults(first, [*record, recorded(VERSION, more)])[0]


@pytest.mark.parametrize("found", [{}, POINTS | {next(iter(POINTS)): {"digest": "0"}}])
def test_a_moved_point_is_not_written_under_its_version(found: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"points moved or gone under model version"):
        grown(POINTS, found)


def test_no_line_of_the_record_was_rewritten() -> None:
    earlier = earlier_records()
    if earlier is None:
        pytest.skip("no git checkout")
    assert lost_lines(TEXT, earlier) == []


def test_a_rewritten_or_missing_line_is_noticed() -> None:
    lines = TEXT.splitlines()
    assert lost_lines("\n".join(lines[:-1]), [TEXT]) == [lines[-1]]
    assert lost_lines(TEXT.replace(lines[-1], lines[-1].replace(",", ",1", 1)), [TEXT]) == [lines[-1]]
    assert lost_lines(TEXT + "99,1,0,\n", [TEXT]) == []
