"""Recordings, Timelines and task graphs stay. New values: `python -m tests.timeline.timeline_tables`."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from tests.systems.program_tables import digest
from tests.timeline.timeline_tables import NAMES, made, stored, words

STORED = stored()


@pytest.mark.parametrize("name", [*NAMES, "words"])
def test_a_line_stays(name: str) -> None:
    found = words() if name == "words" else made(name)
    expected = [STORED[name][i : i + 3] for i in range(0, len(STORED[name]), 3)]
    pairs = zip_longest(found.items(), expected, fillvalue=("no such entry", None))
    assert [entry[0] for entry, old in pairs if digest(entry[1]) != old] == []


def test_the_file_has_the_lines_of_today() -> None:
    assert list(STORED) == [*NAMES, "words"]
