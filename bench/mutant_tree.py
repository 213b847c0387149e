"""Copies of the checkout for `bench/mutants.py`, probes in them, and forks that run in them.

A probe is one line `__probe__(n)` before the statement that mutant `n` changes. It costs nothing elsewhere, so one run of the tests tells the
tests of all mutants. A line that runs at import gets its probes at the start of every function of its file instead.
Compiled kernels take no probe: theirs stand in a second copy, whose kernels run as plain Python.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from mutant_draw import Mutant

HERE = Path(__file__).resolve().parents[1]
MEMORY_BYTES = 10 << 30
PYTEST = ["-q", "--no-header", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist"]  # a cut may fall where no line is
PYTEST += ["-o", "addopts=--strict-markers --import-mode=importlib"]
INSTALL = '''"""Probes of the mutants, also in processes that a test starts."""
import builtins, os
_seen = {}
def __probe__(n):
    target = os.environ.get("DYSHARP_PROBES", "")
    if target and _seen.get(n) != target:
        _seen[n] = target
        with open(target, "a") as file:
            file.write(f"{n}\\n")
builtins.__probe__ = __probe__
'''


# ---- copies


def sync(tree: Path) -> None:
    """Make `tree` a copy of this checkout; times of files are kept, so compiled files stay good."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=HERE, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        source, target = HERE / name, tree / name
        if source.is_file() and (not target.is_file() or target.read_bytes() != source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@cache
def kernel_files(tree: Path) -> frozenset[str]:
    """Files whose text enters a compiled kernel."""
    engine = tree / "dysharp" / "engine"
    found = {*engine.glob("*.py"), *(engine / "blocks").glob("*.py"), *(p for p in engine.rglob("*.py") if p.stem in ("columns", "records", "state"))}
    found |= {p for p in (tree / "dysharp").rglob("*.py") if b"dysharp.engine.kernel" in p.read_bytes()}
    return frozenset(str(p.relative_to(tree)) for p in found)


def probe(tree: Path, mutants: list[tuple[int, Mutant]]) -> None:
    """Put the probes of the numbered mutants into the copy."""
    by_file: dict[str, list[tuple[int, Mutant]]] = defaultdict(list)
    for number, m in mutants:
        by_file[m.file].append((number, m))
    for file, inside in by_file.items():
        text = (HERE / file).read_text()
        (tree / file).write_text(with_probes(text, text, inside))
    (tree / "sitecustomize.py").write_text(INSTALL)


def with_probes(text: str, original: str, inside: list[tuple[int, Mutant]]) -> str:
    """`text`, a file with or without a change in a line, with the probes of its mutants. Places are those of the `original`."""
    places = [(at, n) for n, m in inside for at in probe_lines(ast.parse(original), m)]
    lines = text.splitlines()
    for (line, column), n in sorted(places, reverse=True):
        lines.insert(line - 1, " " * column + f"__probe__({n})")
    return "\n".join(lines) + "\n"


def probe_lines(tree: ast.Module, m: Mutant) -> list[tuple[int, int]]:
    """Where a mutant's probes go: (line, column), before the innermost statement of a function around its line, or in all functions of the file."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    around = [f for f in functions if f.body[0].lineno <= m.line <= (f.end_lineno or 0)]
    if around:
        inner = max(around, key=lambda f: f.lineno)
        return [_before(inner, m.line)]
    return [(f.body[0].lineno, f.body[0].col_offset) for f in functions if f.body[0].lineno > f.lineno and not _docstring(f.body[0])] + [
        (f.body[1].lineno, f.body[1].col_offset) for f in functions if _docstring(f.body[0]) and len(f.body) > 1
    ]


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _before(inside: ast.AST, line: int) -> tuple[int, int]:
    """The last place of a block before the statement around `line`: a branch `elif` or `case` is told by its whole chain."""
    place = (line, 0)
    stack: list[ast.AST] = [inside]
    while stack:
        node = stack.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(node, name, []):
                last = getattr(child, "end_lineno", None) or child.body[-1].end_lineno
                first = child.lineno if hasattr(child, "lineno") else child.pattern.lineno
                if isinstance(child, ast.stmt):
                    first = min([first, *(d.lineno for d in getattr(child, "decorator_list", []))])
                if first <= line <= last:
                    chained = name == "orelse" and isinstance(node, ast.If) and isinstance(child, ast.If) and child.col_offset == node.col_offset
                    if isinstance(child, ast.stmt) and not chained:
                        place = (first, child.col_offset)
                    stack.append(child)
    return place


# ---- kernels without the compiler


def _uncompiled(**_: Any) -> Any:
    """In place of `numba.njit`: the function itself, with the attributes that a caller reads."""

    def named(function: Any) -> Any:
        function.signatures, function.py_func = ("plain",), function
        return function

    return named


class _As64Bits(ast.NodeTransformer):
    """Numbers as compiled code has them: 64 bits wide also from an int32 array and after a shift, and 0 for a shift by a negative number."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return self._call("__shift__", node, node.left, node.right) if isinstance(node.op, ast.LShift) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        return self._call("__item__", node, node) if isinstance(node.ctx, ast.Load) else node

    @staticmethod
    def _call(name: str, at: ast.expr, *arguments: ast.expr) -> ast.expr:
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(arguments), []), at)


def _shift(value: int, by: int) -> int:
    shifted = value << by if by >= 0 else 0
    return shifted if -(1 << 63) <= shifted < 1 << 63 else (shifted + (1 << 63)) % (1 << 64) - (1 << 63)


REFUSAL = "if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]\n        raise"
"""In `dysharp/engine/kernel.py`: nobody else runs kernels without the compiler."""


def run_plain(kernels: frozenset[str], tree: Path) -> None:
    """From here on this process imports kernels as plain Python."""
    import numba
    import numpy as np

    numba.config.DISABLE_JIT, numba.njit = 1, _uncompiled
    vars(builtins).update(__shift__=_shift, __item__=lambda x: int(x) if isinstance(x, np.int32) else x)
    paths = {str(tree / name) for name in kernels}
    usual = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> Any:
        path = self.get_filename(name)
        if path not in paths:
            return usual(self, name)
        parsed = _As64Bits().visit(ast.parse(Path(path).read_text().replace(REFUSAL, "if False:\n        raise")))
        return compile(ast.fix_missing_locations(parsed), path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    from dysharp.engine import address

    address.by_address, address.prefetch = (lambda state: state), (lambda *_: None)


# ---- forks


def _limit(tree: Path, log: Path, cpu_s: float, writes_bytecode: bool, jit: bool) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    sys.dont_write_bytecode = not writes_bytecode
    if not writes_bytecode:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if not jit:
        run_plain(kernel_files(tree), tree)


def forked(work: Any, tree: Path, log: Path, cpu_s: float, *, writes_bytecode: bool = False, jit: bool = True) -> int | None:
    """Exit code of `work()` in a fork inside `tree`, None if it took more than `cpu_s` seconds of a CPU, 0 if it hung: a busy machine looks alike."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            _limit(tree, log, cpu_s, writes_bytecode, jit)
            code = int(work())
        finally:
            sys.stdout.flush()
            os._exit(code)
    fd = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([fd], [], [], 20 * cpu_s + 60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not ended:
            return 0
        return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
    finally:
        os.close(fd)


LIBRARIES = "numpy.testing numba hypothesis pydantic click.testing rich.console ml_dtypes duckdb matplotlib.figure torch transformers"


def preload() -> None:
    """Import the libraries once; forks inherit them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    for name in LIBRARIES.split():
        with contextlib.suppress(ImportError):
            __import__(name)


# ---- what is run


def _compile_kernels() -> int:
    """Fill the cache of kernels, so that no test is charged for it, and none is cut while numba holds its lock."""
    from tests.conftest import COMPILES

    for code in COMPILES:
        exec(code, {})
    return 0


def parts() -> list[str]:
    """Folders and files of tests."""
    tests = HERE / "tests"
    folders = [p for p in sorted(tests.iterdir()) if p.is_dir() and any(p.rglob("test_*.py"))]
    return [str(p.relative_to(HERE)) for p in [*folders, *sorted(tests.glob("test_*.py"))]]


def prepare(work: Path, mutants: list[Mutant]) -> None:
    """Make the copies: one to change, one with probes, one with probes in kernels."""
    for name in ("tree", "probed", "plain"):
        sync(work / name)
    kernels = kernel_files(work / "tree")
    probe(work / "probed", [x for x in enumerate(mutants) if x[1].file not in kernels])
    probe(work / "plain", [x for x in enumerate(mutants) if x[1].file in kernels])
    forked(_compile_kernels, work / "probed", work / "compile.log", 600)
