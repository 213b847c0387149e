"""The example of the README runs and prints what it says."""

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "dysharp" / "engine" / "packet" / "README.md"


def test_example() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
