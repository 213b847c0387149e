"""The verifier's verdicts on wrong Programs and the results of `program/` stay. New values: `python -m tests.program.fault_tables`."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from tests.program.fault_tables import QUICK, lines, stored
from tests.systems.program_tables import digest

LINES, STORED = lines(), stored()


def test_the_file_has_the_lines_of_today() -> None:
    assert list(LINES) == list(STORED)


@pytest.mark.parametrize("line", [pytest.param(x, marks=pytest.mark.slow) if x[:6] == "verify" and x[7:] not in QUICK else x for x in LINES])
def test_a_line_stays(line: str) -> None:
    found, expected = LINES[line](), [STORED[line][i : i + 3] for i in range(0, len(STORED[line]), 3)]
    pairs = zip_longest(found.items(), expected, fillvalue=("no such entry", None))
    assert [(entry[0], entry[1]) for entry, old in pairs if digest(entry[1]) != old] == []
