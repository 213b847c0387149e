"""Rankings, grids of settings and answers about libraries stay. New values: `python -m tests.advice.advice_tables`."""

from __future__ import annotations

from itertools import zip_longest

import pytest

from tests.advice.advice_tables import lines, plain, stored
from tests.systems.program_tables import digest

LINES, STORED = lines(), stored()


@pytest.mark.parametrize("line", LINES)
def test_a_line_stays(line: str) -> None:
    expected = [STORED[line][i : i + 3] for i in range(0, len(STORED[line]), 3)]
    assert [found for found, old in zip_longest(map(plain, LINES[line]()), expected) if digest(found) != old] == []


def test_the_file_has_the_lines_of_today() -> None:
    assert list(LINES) == list(STORED)
