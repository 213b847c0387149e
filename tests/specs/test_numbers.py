"""Every number in formulas and systems has a place it comes from, and those without a source are counted."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.base.text import cell
from dysharp.show.markdown import table
from dysharp.specs.fitted import ALL, fitted, lines, shares
from dysharp.specs.numbers import BETWEEN, CLUSTERS, counted, numbers, numbers_from_toml

ROOT = Path(dysharp.__file__).parent
FOLDERS = ("costs", "measured", "systems")
PLAIN = (-1, 0, 1, 2, 0.5, 1e3, 1e6)
"""Numbers inside functions that need no entry: halves and doubles, ends of ranges, conversions of units."""
NUMBER_LINE = re.compile(r"(\w+) = ([\d.]+)\s*#(.*)")
IN_SIGHT = re.compile(r"\bfit\b|fitted|chosen|read off|multimem", re.IGNORECASE)
"""Words of a comment on a number that measurements fixed. multimem: a row of in-switch times."""
INSIDE = ("dysharp.costs.", "dysharp.measured.expert_loads")
"""Modules of formulas, whose functions are searched too."""


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(("dysharp", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
            yield name, ast.parse(path.read_text())


def _has_number(node: ast.AST, plain: tuple[float, ...] = ()) -> bool:
    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return any(isinstance(v, (int, float)) and not isinstance(v, bool) and v not in plain for v in values)


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [each.id for each in names if isinstance(each, ast.Name)]


def _is_facts(node: ast.expr) -> bool:
    """Whether a value is the facts of a system, which name their own source."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Facts", "replace")


def _found() -> set[tuple[str, str]]:
    found = set()
    for module, tree in _modules():
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and not _is_facts(node.value) and _has_number(node.value):
                found |= {(module, name) for name in _assigned(node)}
            inside = node.body if isinstance(node, ast.FunctionDef) and module.startswith(INSIDE) else []
            if any(_has_number(part, PLAIN) for part in inside):
                found.add((module, f"{getattr(node, 'name', '')}()"))
    return found


def test_every_number_is_listed() -> None:
    missing = sorted(_found() - set(numbers()))
    assert missing == [], "list them in dysharp/specs/data/numbers.toml"


def test_every_entry_is_in_the_code() -> None:
    for number in (n for n in numbers().values() if n.module != CLUSTERS):
        assert hasattr(importlib.import_module(number.module), number.name.removesuffix("()")), number


def test_the_search_finds_numbers() -> None:
    found = _found()
    assert {("dysharp.costs.moe", "LAYER_CALLS"), ("dysharp.systems.megamoe", "COUNTS")} <= found
    assert ("dysharp.measured.expert_loads", "_loads()") in found


def test_fitted_and_counted_numbers_stay_within_the_budgets() -> None:
    """Between domains more numbers are counted than the bar allows: that part must not grow."""
    found = {share.part: share for share in shares(fitted())}
    assert {name for name, share in found.items() if not share.holds} <= {BETWEEN}
    assert found[BETWEEN].total <= 10
    assert found["all but later parts"].total <= ALL
    assert sum(share.total for share in found.values()) - found["all but later parts"].total == len(fitted()) + sum(n.count for n in counted())
    assert all(number.text and number.of in found for number in counted())


def _chosen_in_sight(text: str) -> Iterator[tuple[str, float]]:
    """Keys and numbers of a cluster file whose comment says that measurements fixed them."""
    for line in text.splitlines():
        if (found := NUMBER_LINE.match(line)) and IN_SIGHT.search(found[3]):
            yield found[1], float(found[2])


def test_numbers_of_cluster_files_that_measurements_fixed_are_counted() -> None:
    listed = {(number.name, number.value) for number in numbers().values() if number.module == CLUSTERS}
    files = sorted((ROOT / "specs" / "data" / "clusters").glob("*.toml"))
    assert {each for file in files for each in _chosen_in_sight(file.read_text())} == listed
    assert list(_chosen_in_sight("hbm_GBps = 3000  # chosen after a run")) == [("hbm_GBps", 3000.0)]
    assert list(_chosen_in_sight("hbm_GBps = 3000  # datasheet")) == []


def test_every_number_of_a_real_machine_has_a_source() -> None:
    """Beside the number, or in the file that it builds on."""
    for file in sorted((ROOT / "specs" / "data" / "clusters").glob("hw-*.toml")):
        bare = [line for line in file.read_text().splitlines() if re.match(r"\w+ = [\d.]+\s*$", line)]
        assert bare == [], file.name


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('A = { sauce = "x" }', "x: m: A: found .* expected one of source"),
        ('A = { source = "x", count = 1 }', "x: m: A: found .* expected one of source"),
        ('A = { counted = "x", count = 0 }', "x: m: A: count: found 0, expected a whole number of at least 1"),
        ('A = { source = "" }', "x: m: A: source: found '', expected a text"),
    ],
)
def test_bad_entries_are_refused(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        numbers_from_toml(f"[m]\n{entry}\n", "x")


def test_the_page_has_the_count_of_today() -> None:
    keys = ("part", "fitted", "counted", "total", "budget", "holds", "later")
    shown = table(keys, [[cell(line[key]) for key in keys] for line in lines(fitted())])
    assert shown in (ROOT.parent / "docs" / "validation.md").read_text(), "write it anew: dysharp validate --bars prints the table"
