"""The size of the house: one table of this checkout, beside another one if given.

    python bench/house.py [OTHER_CHECKOUT] [--rooms] [--runs] [--quantities] [--budget]

Counts say where to look; they are no target of their own. Bars are in `bench/one_layer.py`.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from house_map import circles, file_imports, room_imports
from house_runs import runs
from house_tokens import budget_text, sizes, total

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES, FOLDER_FILES, ARGUMENTS, FUNCTION_LINES, SAME_NAME = 450, 25, 12, 60, 3
LARGEST = 3


def counts(root: Path) -> dict[str, float]:
    """{what: how many} of the checkout `root`."""
    files = {path: path.read_text() for path in sorted((root / "dysharp").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in files.items()}
    folders = Counter(path.parent for path in files)
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = Counter(path.name for path in files if path.name not in ("__init__.py", "__main__.py"))
    pages = [path for path in (root / "docs").rglob("*.md") if "notebook" not in path.parts]
    notebook = [path for path in (root / "docs").rglob("*.md") if "notebook" in path.parts]
    imports = file_imports(root)
    rooms, size = room_imports(root, imports), total(sizes(root))
    return {
        "Python files of the package": len(files),
        "lines of the package": sum(text.count("\n") for text in files.values()),
        "token lines of the package": size.lines,
        "tokens per token line": round(size.tokens / size.lines, 2),
        "lines of tests": sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py")),
        "rooms": len(rooms),
        "arrows between rooms": sum(map(len, rooms.values())),
        "rooms in circles of imports": sum(map(len, circles(rooms))),
        "files in circles of imports": sum(map(len, circles(imports))),
        "two-file circles": sum(a < b and a in imports[b] for a, others in imports.items() for b in others),
        f"files over {FILE_LINES} lines": sum(text.count("\n") > FILE_LINES for text in files.values()),
        f"folders over {FOLDER_FILES} files": sum(n > FOLDER_FILES for n in folders.values()),
        f"functions with more than {ARGUMENTS} arguments": sum(_arguments(node) > ARGUMENTS for node in functions),
        f"functions over {FUNCTION_LINES} lines": sum(1 + (node.end_lineno or 0) - node.lineno > FUNCTION_LINES for node in functions),
        "public functions and classes": sum(not name.startswith("_") for tree in trees.values() for name in _defined(tree)),
        "class names with several meanings": _several(trees.values()),
        f"file names used {SAME_NAME} times or more": sum(n >= SAME_NAME for n in names.values()),
        "words of docs, without the notebook": _words(pages),
        "words of the notebook": _words(notebook),
        "words of README": _words([root / "README.md"]),
    }


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = node.args
    return len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs)


def _defined(tree: ast.Module) -> list[str]:
    """Functions and classes of a module."""
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]


def _several(trees: Iterable[ast.Module]) -> int:
    """Names of classes that stand in several modules."""
    places = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return sum(n > 1 for n in places.values())


def _words(pages: list[Path]) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def _print_rooms(root: Path) -> None:
    """Token lines, tokens per line and arrows of every room, and the largest files."""
    arrows = room_imports(root, file_imports(root))
    print(f"\n{'room':<16}{'token lines':>12}{'per line':>10}{'imports':>9}{'imported by':>13}")
    for room, size in sizes(root).items():
        into = sum(room in others for others in arrows.values())
        out = len(arrows[room]) if room in arrows else 0
        print(f"{room or '(package)':<16}{size.lines:>12,}{size.tokens / max(1, size.lines):>10.2f}{out:>9}{into:>13}")
    largest = sorted(((path.read_text().count("\n"), path) for path in (root / "dysharp").rglob("*.py")), reverse=True)[:LARGEST]
    print("largest files: " + ", ".join(f"{path.relative_to(root)} ({n})" for n, path in largest))


def _print_runs(root: Path) -> None:
    print(f"\n{'from command to number':<24}{'files':>7}{'lines':>9}{'functions':>11}{'rooms':>7}")
    for name, one in runs(root).items():
        print(f"{name:<24}{one['files']:>7}{one['lines']:>9,}{one['functions']:>11}{one['rooms']:>7}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", nargs="?", type=Path, help="another checkout, in a second column")
    parser.add_argument("--rooms", action="store_true", help="also every room, and the largest files")
    parser.add_argument("--runs", action="store_true", help="also files that run from command to number (20 s)")
    parser.add_argument("--quantities", action="store_true", help="also statements per quantity")
    parser.add_argument("--budget", action="store_true", help="only the budgets of today's rooms, for tests/house_budget.toml")
    asked = parser.parse_args()
    if asked.budget:
        print(budget_text(ROOT), end="")
        return
    tables = [counts(root) for root in (ROOT, asked.other) if root is not None]
    for what in tables[0]:
        print(f"{what:<45}" + "".join(f"{table[what]:>10,}" for table in tables))
    if asked.rooms:
        _print_rooms(ROOT)
    if asked.runs:
        _print_runs(ROOT)
    if asked.quantities:
        from quantities import table

        print("\nstatements per quantity", *table(), sep="\n")


if __name__ == "__main__":
    main()
