"""Rooms of the package stay within their budgets of token lines (`house_budget.toml`)."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tokens(monkeypatch):
    """bench/house_tokens.py."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("house_tokens")


@pytest.fixture
def house(tmp_path):
    """A checkout with two rooms, of 3 and 1 token lines."""
    (tmp_path / "dysharp" / "front").mkdir(parents=True)
    (tmp_path / "dysharp" / "__init__.py").write_text('"""The house."""\n')
    text = '"""A docstring\nof two lines."""\n\n# a comment\nONE = (\n    1,\n)\n\n"""Says what it is."""\n'
    (tmp_path / "dysharp" / "front" / "door.py").write_text(text)
    (tmp_path / "dysharp" / "loose.py").write_text("TWO = 2  # even\n")
    return tmp_path


def test_rooms_stay_within_their_budgets(tokens):
    over = tokens.over_budget(ROOT, tomllib.loads((ROOT / tokens.BUDGET).read_text()))
    assert not over, "\n".join(over)


def test_comments_and_docstrings_are_no_token_lines(tokens, house):
    assert {room: size.lines for room, size in tokens.sizes(house).items()} == {"front": 3, "loose": 1, "": 0}


def test_a_room_above_its_budget_is_one_line(tokens, house):
    assert tokens.over_budget(house, {"front": 2, "loose": 1}) == ["room front: found 3 token lines, budget 2 (raise it in a commit that says why)"]


def test_rooms_and_budgets_belong_together(tokens, house):
    ask = "(`python bench/house.py --budget` prints tests/house_budget.toml)"
    assert tokens.over_budget(house, {"front": 3, "attic": 9}) == [
        f"room loose: found 1 token lines and no budget, expected one {ask}", f"room attic: found a budget and no files {ask}",
    ]  # fmt: skip


def test_the_printed_budget_is_read_back(tokens, house):
    budget = tomllib.loads(tokens.budget_text(house))
    assert budget == {"front": 8, "loose": 6}
    assert tokens.over_budget(house, budget) == []
