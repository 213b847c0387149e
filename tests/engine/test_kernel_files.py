"""The digest of the kernel cache covers every file whose text enters a compiled kernel: a stale binary would give old numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import dysharp
from dysharp.engine.kernel import kernel_files

PACKAGE = Path(dysharp.__file__).parent
FILES = kernel_files()
DECORATORS = ("kernel", "block", "routine")


def decorated(path: Path) -> bool:
    """Whether a function of the file is decorated as a kernel or a part of one."""
    text = path.read_text()
    if not any(f"@{name}" in text for name in DECORATORS):
        return False
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    return any(isinstance(d, ast.Name) and d.id in DECORATORS for f in functions for d in f.decorator_list)


def imported(path: Path) -> set[Path]:
    """Files of the package that a file imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        found |= {PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in names if name.startswith("dysharp.")}
    return {p for p in found if p.is_file()}


def test_every_file_with_a_kernel_is_in_the_digest() -> None:
    kernels = {p for p in PACKAGE.rglob("*.py") if decorated(p)}
    assert len(kernels) > 15
    assert kernels - set(FILES) == set()


def test_what_kernel_files_import_is_in_the_digest() -> None:
    """Constants and the order of fields of a NamedTuple are compiled in."""
    assert {str(q.relative_to(PACKAGE)) for p in FILES if decorated(p) for q in imported(p) - set(FILES)} == set()


def test_no_other_file_uses_numba() -> None:
    users = {p for p in PACKAGE.rglob("*.py") if "numba" in p.read_text() and "numba" in {n.split(".")[0] for n in _imports(p)}}
    assert users - set(FILES) == set()


def _imports(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return plain + [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module]


def test_named_tuples_for_kernels_are_in_the_digest() -> None:
    """A kernel reads the fields of a tuple by position, so their order is compiled in."""
    tuples = {p for p in (PACKAGE / "engine").rglob("*.py") if "(NamedTuple)" in p.read_text()}
    assert tuples - set(FILES) == set()
