"""The sentence of a value out of range."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.program.names import check_range, fail_where


def test_the_first_bad_row_is_named() -> None:
    check_range(np.array([0, 2]), 0, 3, "row {i}: column")
    check_range(np.array([], int), 0, 0, "row {i}: column")
    with pytest.raises(ProgramError, match=r"^row 1: column: found 3, expected 0 \.\. 2$"):
        check_range(np.array([2, 3, -1]), 0, 3, "row {i}: column")
    with pytest.raises(ProgramError, match=r"^row 2: column: found -1, expected 0 \.\. 0$"):
        check_range(np.array([0, 0, -1]), 0, 1, "row {i}: column")
    with pytest.raises(ProgramError, match=r"^row 0: column: found 0, expected no entries at all$"):
        check_range(np.array([0]), 0, 0, "row {i}: column")


def test_the_first_true_is_told() -> None:
    fail_where(np.zeros(3, bool), str)
    with pytest.raises(ProgramError, match=r"^1$"):
        fail_where(np.array([False, True, True]), str)
