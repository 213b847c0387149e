"""Every number in the code has a place it comes from, and those without a source are counted."""

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
from dysharp.specs.constants import constants_of
from dysharp.specs.fitted import fitted
from dysharp.specs.numbers import BETWEEN, CLUSTERS, EVERYTHING, ROOMS, _ListedNumber, counted, lines, numbers, parts, shares

ROOT = Path(dysharp.__file__).parent
FOLDERS = ("analysis", "costs", "measured", "model", "planning", "runs", "serving", "specs", "systems", "training", "workload")
"""Folders whose numbers can move a prediction: each number is listed. Other folders have an entry in `[rooms]`."""
INSIDE = (
    *("dysharp.costs.", "dysharp.model.", "dysharp.training.", "dysharp.serving.", "dysharp.measured.expert_loads", "dysharp.measured.families."),
    *("dysharp.measured.serving.setting", "dysharp.measured.training.setting"),
)
"""Modules of formulas, whose functions and classes are searched too."""
PLAIN = (-1, 0, 1, 2, 0.5, 100, 1e3, 1e6, 1e9)
"""Numbers inside functions that need no entry: halves and doubles, ends of ranges, percent, conversions of units."""
NUMBER_LINE = re.compile(r"(\w+) = ([\d.]+)\s*#(.*)")
IN_SIGHT = re.compile(r"\bfit\b|fitted|chosen|read off|multimem", re.IGNORECASE)
"""Words of a comment on a number that measurements fixed. multimem: a row of in-switch times."""
SAID = re.compile(r"\bchosen (after|with|while|alike)|in sight|\bread off\b|by hand|median of \d+ measured", re.IGNORECASE)
"""Words of docstrings and comments in code that say so."""
OWN_READERS = ("fitted.toml", "choices.toml", "numbers.toml", "validated.toml")
"""Files whose readers ask for sources."""


def _modules(folders: tuple[str, ...] = FOLDERS) -> Iterator[tuple[str, str]]:
    """(module, its text)."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield ".".join(("dysharp", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"), path.read_text()


def _rooms() -> tuple[str, ...]:
    return tuple(name for module, name in _kinds() if module == ROOMS)


def _kinds() -> dict[tuple[str, str], str]:
    return {number.place: number.kind for number in numbers().values()}


def _has_number(node: ast.AST, plain: tuple[float, ...] = (), kinds: tuple[type, ...] = (int, float)) -> bool:
    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return any(isinstance(v, kinds) and not isinstance(v, bool) and v not in plain for v in values)


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [each.id for each in names if isinstance(each, ast.Name)]


def _names(node: ast.stmt) -> list[str]:
    return [f"{node.name}()"] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else _assigned(node)


def _is_facts(node: ast.expr) -> bool:
    """Whether a value is the facts of a system, which name their own source."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Facts", "replace")


def _at_top(tree: ast.Module, kinds: tuple[type, ...] = (int, float)) -> Iterator[str]:
    """Names of a module whose values have a number."""
    for node in tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and not _is_facts(value) and _has_number(value, kinds=kinds):
            yield from _assigned(node)


def _found() -> set[tuple[str, str]]:
    found = set()
    for module, text in _modules():
        tree = ast.parse(text)
        found |= {(module, name) for name in _at_top(tree)}
        for node in tree.body if module.startswith(INSIDE) else []:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and any(_has_number(part, PLAIN) for part in node.body):
                found |= {(module, name) for name in _names(node)}
    return found


def _said(text: str) -> Iterator[list[str]]:
    """Names of each statement of a module whose docstring, comment or the comment before it says that measurements were in sight."""
    rows, body, end = text.splitlines(), ast.parse(text).body, 0
    for node, behind in zip(body, [*body[1:], None], strict=True):
        last = behind.end_lineno if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) else node.end_lineno
        if _names(node) and SAID.search(" ".join(rows[end:last])):
            yield _names(node)
        end = last or end


def test_every_number_is_listed() -> None:
    missing = sorted(_found() - set(_kinds()))
    assert missing == [], "list them in dysharp/specs/data/numbers.toml"


def test_every_folder_is_searched_or_says_why_not() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/*.py")}
    assert folders == {*FOLDERS, *_rooms()}
    assert not set(FOLDERS) & set(_rooms())


def test_every_float_of_other_folders_is_listed() -> None:
    found = {(module, name) for module, text in _modules(_rooms()) for name in _at_top(ast.parse(text), (float,))}
    assert sorted(found - set(_kinds())) == [], "list them in dysharp/specs/data/numbers.toml"
    assert len(found) < 60


def test_numbers_that_were_chosen_in_sight_of_measurements_are_counted() -> None:
    names = [(module, statement) for module, text in _modules() for statement in _said(text)]
    kinds = _kinds()
    assert [(module, said) for module, said in names if "counted" not in [kinds.get((module, name)) for name in said]] == []
    assert {("dysharp.training.recipe", "SAVE_STATES"), ("dysharp.measured.families.blocks", "BlockCase()")} <= {(m, s[0]) for m, s in names}


CHOSEN = (
    *("training.recipe: SAVE_STATES", "costs.operators: KEPT", "model.operators: PASSES"),
    *("measured.training.setting: NEW_FROM", "measured.families.attention: XQA_HEADS", "measured.families.operator: GemmsCase()"),
    *("measured.families.attention: _with_surroundings()", "measured.families.blocks: BlockCase()", "measured.serving.setting: _setting()"),
    *("serving.balance: SPREAD", "serving.balance: BALANCED_FROM"),
)
"""What a review found uncounted (bench/findings/trust.csv, A1)."""


def test_what_a_review_found_uncounted_is_counted() -> None:
    kinds = {f"{module.removeprefix('dysharp.')}: {name}": kind for (module, name), kind in _kinds().items()}
    assert {name: kinds.get(name) for name in CHOSEN} == dict.fromkeys(CHOSEN, "counted")


def test_every_entry_is_in_the_code() -> None:
    for module, name in _kinds():
        assert module in (ROOMS, CLUSTERS) or hasattr(importlib.import_module(module), name.removesuffix("()")), (module, name)


def test_the_search_finds_numbers() -> None:
    found = _found()
    assert {("dysharp.costs.moe", "LAYER_CALLS"), ("dysharp.systems.megamoe", "COUNTS"), ("dysharp.serving.step", "decode_batch()")} <= found
    assert ("dysharp.measured.expert_loads", "_loads()") in found


def test_fitted_and_counted_numbers_stay_within_the_budgets() -> None:
    """These budgets are missed: their totals must not grow."""
    found = {share.part: share for share in shares(fitted())}
    missed = {name: (share.total, share.budget) for name, share in found.items() if share.holds is False}
    assert missed == {BETWEEN: (10, 8), "serving": (13, 12), "operators and training": (21, 10)}
    assert found["all but later parts"].total <= 59
    everything = found[EVERYTHING]
    assert everything.total == sum(part.total for part in parts(fitted())) == len(fitted()) + sum(number.count for number in counted())
    assert all(number.meaning and number.of in {part.part for part in parts(fitted())} for number in counted())


def _chosen_in_sight(text: str) -> Iterator[tuple[str, float]]:
    """Keys and numbers of a file whose comment says that measurements fixed them."""
    for line in text.splitlines():
        if (found := NUMBER_LINE.match(line)) and IN_SIGHT.search(found[3]):
            yield found[1], float(found[2])


def test_numbers_of_cluster_files_that_measurements_fixed_are_counted() -> None:
    listed = {(number.place[1], number.value) for number in numbers().values() if number.place[0] == CLUSTERS}
    files = sorted((ROOT / "specs" / "data" / "clusters").glob("*.toml"))
    assert {each for file in files for each in _chosen_in_sight(file.read_text())} == listed
    assert list(_chosen_in_sight("hbm_GBps = 3000  # chosen after a run")) == [("hbm_GBps", 3000.0)]
    assert list(_chosen_in_sight("hbm_GBps = 3000  # datasheet")) == []


def _files() -> list[Path]:
    """Files with numbers of software and hardware, beside cluster files and those whose readers ask for sources."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.toml")]
    return sorted(path for path in found if path.name not in OWN_READERS and path.parent.name != "clusters")


def test_no_number_of_other_files_was_fixed_by_measurements() -> None:
    assert {file.name: found for file in _files() if (found := list(_chosen_in_sight(file.read_text())))} == {}


def _bare(text: str) -> list[str]:
    """Lines with a number whose source is not beside it.

    A rate (a number with a point) has a comment on its line or on the line before. A whole number may also have a key `source` or a comment in its
    table, or sources in the comment at the top of the file.
    """
    found, head = [], bool(re.match(r"(#.*\n)*?#.*\bSources?\b", text))
    for block in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
        told, before = head or bool(re.search(r"^(#|source = )", block, re.MULTILINE)), ""
        for line in block.splitlines():
            value = re.match(r"[\w.\"-]+ = ([^\"#]*(?:\"[^\"]*\"[^\"#]*)*)", line)
            digits = re.sub(r'"[^"]*"', "", value[1]) if value else ""
            if re.search(r"\d", digits) and "#" not in line and not before.startswith("#") and ("." in digits or not told):
                found.append(line)
            before = line
    return found


def test_every_number_of_a_file_has_a_source() -> None:
    assert {file.name: _bare(file.read_text()) for file in _files() if _bare(file.read_text())} == {}
    assert _bare("[a]\nrate = 0.5\n") == ["rate = 0.5"]
    assert _bare('[a]\nsource = "x"\nrate = 0.5\nn = 3\n') == ["rate = 0.5"]
    assert _bare("# Source: x.\n[a]\nn = 3\n[b]\nrate = 0.5  # y\n") == []
    assert _bare('[a]\nkept = { "x.1" = 0.7 }\nname = "v2"\n') == ['kept = { "x.1" = 0.7 }']


def test_a_gpu_without_a_datasheet_quotes_none() -> None:
    texts = {file.name: file.read_text() for file in (ROOT / "specs" / "data" / "gpus").glob("*.toml")}
    assert [name for name, text in texts.items() if "no public datasheet" in text and "# datasheet" in text] == []


def test_every_number_of_a_real_machine_has_a_source() -> None:
    """Beside the number, or in the file that it builds on."""
    for file in sorted((ROOT / "specs" / "data" / "clusters").glob("hw-*.toml")):
        bare = [line for line in file.read_text().splitlines() if re.match(r"\w+ = [\d.]+\s*$", line)]
        assert bare == [], file.name


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('A = { sauce = "x" }', "x: m.A.meaning: .* m.A.kind: found '', expected source or definition .*m.A.sauce: unknown key"),
        ('A = { source = "x", rule = "y" }', "x: m.A.rule: unknown key"),
        ('A = { source = "x", count = 1 }', "x: m.A.source: found count 1 and value None, expected count = 1 or more beside counted"),
        ('A = { counted = "x", count = 0 }', "x: m.A.counted: found count 0 and value None, expected count = 1 or more beside counted"),
        ('A = { source = "x", value = 3.0 }', r"x: m.A.source: found count 0 and value 3.0, expected .*a value in \[clusters\] and nowhere else"),
        ('A = { source = "" }', "x: m.A.meaning: found '', expected String should have at least 1 character"),
    ],
)
def test_bad_entries_are_refused(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        constants_of(_ListedNumber, f"[m]\n{entry}\n", "x")


def test_the_page_has_the_count_of_today() -> None:
    keys = ("part", "fitted", "counted", "total", "budget", "holds", "later")
    shown = table(keys, [[cell(line[key]) for key in keys] for line in lines(fitted())])
    assert shown in (ROOT.parent / "docs" / "validation.md").read_text(), "write it anew: dysharp validate --bars prints the table"
