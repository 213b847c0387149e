"""The size of the house: one table of this checkout, beside another one if given.

    python bench/house.py [OTHER_CHECKOUT]

Counts say where to look; they are no target of their own.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

FILE_LINES, FOLDER_FILES, ARGUMENTS, FUNCTION_LINES, SAME_NAME = 450, 25, 12, 60, 3


def counts(root: Path) -> dict[str, int]:
    """{what: how many} of the checkout `root`."""
    files = {path: path.read_text() for path in sorted((root / "dysharp").rglob("*.py"))}
    folders = Counter(path.parent for path in files)
    functions = [node for text in files.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = {_module(path, root): _imported(text) for path, text in files.items()}
    names = Counter(path.name for path in files if path.name not in ("__init__.py", "__main__.py"))
    pages = [path for path in (root / "docs").rglob("*.md") if "notebook" not in path.parts]
    notebook = [path for path in (root / "docs").rglob("*.md") if "notebook" in path.parts]
    return {
        "Python files of the package": len(files),
        "lines of the package": sum(text.count("\n") for text in files.values()),
        "lines of tests": sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py")),
        f"files over {FILE_LINES} lines": sum(text.count("\n") > FILE_LINES for text in files.values()),
        f"folders over {FOLDER_FILES} files": sum(n > FOLDER_FILES for n in folders.values()),
        f"functions with more than {ARGUMENTS} arguments": sum(_arguments(node) > ARGUMENTS for node in functions),
        f"functions over {FUNCTION_LINES} lines": sum(1 + (node.end_lineno or 0) - node.lineno > FUNCTION_LINES for node in functions),
        "two-file circles": sum(a < b and a in imports.get(b, ()) for a, others in imports.items() for b in others),
        f"file names used {SAME_NAME} times or more": sum(n >= SAME_NAME for n in names.values()),
        "words of docs, without the notebook": _words(pages),
        "words of the notebook": _words(notebook),
        "words of README": _words([root / "README.md"]),
    }


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = node.args
    return len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs)


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imported(text: str) -> set[str]:
    """Modules that a file names in its imports, those for type checking included; `from package import module` counts as the module, too."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    return {node.module or "" for node in nodes} | {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def _words(pages: list[Path]) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def main() -> None:
    """Print the table."""
    roots = [Path(__file__).resolve().parents[1], *map(Path, sys.argv[1:2])]
    tables = [counts(root) for root in roots]
    for what in tables[0]:
        print(f"{what:<45}" + "".join(f"{table[what]:>10,}" for table in tables))


if __name__ == "__main__":
    main()
