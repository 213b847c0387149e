"""Every row of every table of regression values is as it was stored, and the helper says what differs (`stored_values.py`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import stored_values
from tests.stored_values import TESTS, Digests, Table, cells, check, differences, digests, read, scripts, short, write

MADE = [name for name in scripts() if ".test_" in name]
SCRIPTS = {name: importlib.import_module(f"tests.{name}") for name in scripts() if name not in MADE}
OTHERS = {"replay/digests.json", "replay/answers.json", "specs/architectures.json",
          *(f"measured/formats/samples/{name}" for name in ("bench.jsonl", "aiperf.json"))}  # fmt: skip
"""Files of another kind: records, whose lines stay, counts by another library, and samples."""


MANY = 8
"""Parts of a table, a third of which the quick selection has."""


def compared(module: ModuleType) -> Callable[[str], None]:
    """A test for each part of a table."""
    parts = getattr(module, "PARTS", {row: [row] for row in module.CASES})
    slow = getattr(module, "SLOW", ())

    @pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.slow] * (part in slow)) for part in parts])
    def test(part: str) -> None:
        if reason := getattr(module, "why_not_compared", lambda part: "")(part):
            pytest.skip(reason)
        check(module.STORED, {row: module.CASES[row] for row in parts[part]})

    return pytest.mark.sampled(test) if len(parts) > MANY else test


for _name, _module in SCRIPTS.items():
    globals()[f"test_{_name.replace('.', '_')}"] = compared(_module)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_table_has_the_rows_of_today(name: str) -> None:
    module = SCRIPTS[name]
    assert [*read(module.STORED.path)] == [*module.CASES]
    assert sorted(row for rows in getattr(module, "PARTS", {"": module.CASES}).values() for row in rows) == sorted(module.CASES)


def test_the_command_finds_every_table_and_text() -> None:
    files = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.json*")}
    assert files - OTHERS == {module.STORED.path.relative_to(TESTS).as_posix() for module in SCRIPTS.values()}
    users = [path for path in TESTS.rglob("*.py") if path.parent != TESTS and "stored_lines" in path.read_text(encoding="utf-8")]
    assert sorted(".".join(path.relative_to(TESTS).with_suffix("").parts) for path in users) == sorted([*MADE, "show.held"])


NEAR = {"number": 1 + 1e-8, "zero": 1e-13, "word": "x", "list": [1, 2.0, [True, None]], "digests": Digests(a="abc", b="abd")}


def lines(found: dict[str, Any], stored: dict[str, Any], **more: Any) -> list[str]:
    """What differs between rows."""
    table = Table("t.py", **more)
    return [*differences(table, "row", cells(table, found), stored)]


def test_a_difference_names_its_place() -> None:
    stored = {"number": 1.0, "zero": 0.0, "word": "x", "list": [1, 2.0, [True, None]], "digests": "abcabd"}
    assert lines(NEAR, stored) == []
    wrong = {"number": 1.1, "zero": 1e-11, "word": "y", "list": [1, 2.0, [1, None]], "digests": Digests(a="abc", b="xyz", c="new"), "new": 3}
    assert lines(wrong, stored | {"gone": 4}) == [
        "row, number: found 1.1, stored 1.0", "row, zero: found 1e-11, stored 0.0", "row, word: found 'y', stored 'x'",
        "row, list, 2, 0: found 1, stored True", "row, digests, b: found 'xyz', stored 'abd'", "row, digests, c: found 'new', stored nothing",
        "row, new: found 3, stored nothing", "row, gone: found nothing, stored 4",
    ]  # fmt: skip
    assert lines({"a": [1, 2]}, {"a": [1]}) == ["row, a: found [1, 2], stored [1]"]
    assert lines({"d": Digests(a="abc")}, {"d": "abcabd"}) == ["row, d, no 1: found nothing, stored 'abd'"]
    assert lines({"a": 1, "b": 2}, {"b": 2, "a": 1}) == ["row: found ['a', 'b'], stored in another order"]


def test_how_near_numbers_must_be() -> None:
    assert lines({"a": 1 + 1e-6}, {"a": 1.0}) != []
    assert lines({"a": 1 + 1e-6}, {"a": 1.0}, close=2e-6) == []
    assert lines({"a": 1 + 1e-6, "b": 1e-4}, {"a": 1.0, "b": 0.0}, zero=1e-3, loose={"row": 1e-6 + 1e-9}) == []
    assert lines({"a": 10**9 + 1}, {"a": 10**9}, close=2e-6) != [], "whole numbers are exact"


def test_many_numbers_become_one_that_moves_with_each() -> None:
    numbers = [1e-3, 2.0, 3e3, 4e6, 5.0]
    table = Table("t.py")
    stored = cells(table, {"a": numbers})
    assert stored["a"][0] == len(numbers)
    for at in range(len(numbers)):
        assert lines({"a": [*numbers[:at], numbers[at] * 1.0001, *numbers[at + 1 :]]}, stored) != []
    assert short([1, 2, 3, 4, 5]) != short([1, 2, 3, 5, 4])
    assert cells(Table("t.py", whole=True), {"a": iter(numbers)}) == {"a": numbers}
    with pytest.raises(AssertionError, match="twice"):
        cells(table, [("a", 1), ("a", 1)])


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_is_read_as_it_was_written(packed: bool, tmp_path: Path) -> None:
    table = Table(str(tmp_path / "t.py"), packed=packed)
    rows: dict[str, dict[str, Any]] = {"near": NEAR, "long": {str(n): "x" * n for n in range(40)}}
    assert write(table, {name: row.copy for name, row in rows.items()}) == (2, 2)
    check(table, {name: row.copy for name, row in rows.items()})
    before = table.path.read_bytes()
    assert write(table, {"near": lambda: NEAR | {"number": 1 + 2e-8}, "long": lambda: rows["long"]}) == (0, 2)
    assert table.path.read_bytes() == before, "what is near enough stays"
    assert write(table, {"near": lambda: NEAR | {"number": 2.0}, "new": lambda: {"a": 1}}) == (3, 2)
    with pytest.raises(AssertionError, match=r"2 values differ from t.json.*\n.*near, number: found 3.0, stored 2.0\n.*near, word"):
        check(table, {"near": lambda: NEAR | {"number": 3.0, "word": "z"}})
    with pytest.raises(SystemExit, match="no"):
        write(table, {}, lambda before, rows: "no" if "near" in before.keys() - rows.keys() else "")
    assert [*read(table.path)] == ["near", "new"]


def test_the_command_writes_what_it_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("STORED = Table(__file__)\n")
    (tmp_path / "two.py").write_text("TEXTS: dict[str, int] = {\n")
    (tmp_path / "three.py").write_text("X = 'STORED = Table('\n")
    assert scripts(tmp_path) == ["one", "two"]
    made = type("module", (), {"STORED": Table(str(tmp_path / "one.py")), "CASES": {"row": lambda: {"a": 1, "b": digests({"x": [1.0, len]})}}})
    monkeypatch.setattr(importlib, "import_module", lambda name: made)
    stored_values.main(["one"])
    stored_values.main(["one"])
    assert capsys.readouterr().out == "one: 1 of 1 changed\none: 0 of 1 changed\n"
