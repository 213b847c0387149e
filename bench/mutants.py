"""One-line changes of `dysharp/` that the tests notice or not: `python bench/mutants.py --count 300 --seed 1`.

A mutant is the package with one change in one line: a flipped comparison, a constant off by one, `and` for `or`, a dropped call ...
Lines are drawn at random over all folders; a later run with the same seed and a larger count continues the same draw.
Each mutant runs the tests of its own folder (TESTS_OF), in two steps:

1. the tests that run the changed line, cheap modules first, until one fails;
2. if none fails: the other tests of those folders that touch the file, as many as fit in `--budget` seconds;
3. if none fails: the tests of those folders that were too long for the map, in test files that touch or name the file, with the compiler.

A map of which test runs which line is recorded once per folder of tests (package `coverage`, which is no dependency of dysharp).
Mutants of kernels run without numba's compiler, but for step 3. A test of more than `--longest` seconds waits for that step.
Tests marked slow or long never run.
The checkout is never changed: mutants live in a copy under `--work`, and each test run is a fork of a process that has imported the libraries.
Results go to bench/mutants.json after each mutant; a run that was stopped continues there. A mutant's id depends on the text of its line:
results of lines that have changed since are dropped. bench/mutants.md is the table,
with the judgements of bench/survivors.toml on each mutant that no test noticed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import _lru_cache_wrapper, cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[1]
RESULTS, TABLE, JUDGED = (HERE / "bench" / name for name in ("mutants.json", "mutants.md", "survivors.toml"))
MEMORY_BYTES = 10 << 30
EQUAL_PROGRAMS = 170  # random Programs for a mutant of the burst level's kernels or of the oracle; the test has 510
LATE_S = 20.0  # seconds that a test without a time in the map may take
LATE_BUDGET_S = 300.0  # seconds of tests that are too long for the map

# The tests that speak for a folder or a file (the longest name counts): its own, then those that drive it by design. "" is dysharp/*.py.
TESTS_OF = {
    "": ["specs", "cli"],
    "analysis": ["analysis"],
    "api": ["api", "cli"],
    "cli": ["cli"],
    "cli/plan.py": ["planning", "cli"],
    "cli/report.py": ["reports", "cli"],
    "cli/reproduce.py": ["figures", "cli"],
    "cli/rtl.py": ["silicon"],
    "cli/serve.py": ["serving", "cli"],
    "cli/step.py": ["steps", "cli"],
    "compute": ["compute", "measured"],
    "engine": ["engine/flit", "engine/packet"],
    "engine/burst": ["engine/burst/test_memory.py"],
    "engine/flit": ["engine/flit"],
    "engine/packet": ["engine/packet"],
    "figures": ["figures"],
    "studies": ["studies"],
    "runs": ["runs", "api"],
    "advice": ["advice"],
    "functional": ["functional/*.py", "functional/network", "testing"],
    "functional/torch": ["functional/torch"],
    "isa": ["isa"],
    "measured": ["measured"],
    "measured/cluster_fit.py": ["cli/test_calibrate.py", "measured"],
    "oracle": ["oracle"],
    "planning": ["planning"],
    "program": ["program", "oracle"],
    "protocol": ["protocol"],
    "reports": ["reports", "cli"],
    "serving": ["serving"],
    "silicon": ["silicon"],
    "specs": ["specs"],
    "steps": ["steps"],
    "systems": ["systems"],
    "testing": ["testing"],
    "timeline": ["timeline"],
    "uarch": ["uarch", "engine/burst/test_memory.py", "protocol/test_uarch_tables.py"],
    "uarch/flit": ["engine/flit"],
    "uarch/packet": ["engine/packet"],
    "workload": ["workload"],
    "workload/lint.py": ["cli/test_lint.py"],
}


# ---- mutants


@dataclass(frozen=True, slots=True)
class Mutant:
    """`file` (from the root) with the characters `start` .. `stop` of its text replaced by `new`."""

    id: str
    file: str
    line: int
    first_line: int
    last_line: int
    operator: str
    start: int
    stop: int
    new: str
    was: str
    became: str

    @property
    def tests(self) -> list[str]:
        """Folders of tests that speak for the file."""
        name = self.file.removeprefix("dysharp/")
        return TESTS_OF[max((key for key in TESTS_OF if not key or key == name or name.startswith(f"{key}/")), key=len)]


FLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in"}
COMPARE = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
BINARY = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
RETURNS = {"int": "0", "float": "0.0", "bool": "False", "str": "''"}


@dataclass(frozen=True, slots=True)
class Site:
    """A possible change: the bytes `start` .. `stop` of a file become `new`."""

    operator: str
    start: int
    stop: int
    new: str


def _plain(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant))


class Sites(ast.NodeVisitor):
    """Collects the possible changes of one file."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.raw = text.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Site] = []
        self.returns: list[str] = []
        self.visit(ast.parse(text))

    def _at(self, node: Any, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return int(self.starts[line - 1] + column)

    def _text(self, node: ast.AST) -> str:
        return self.raw[self._at(node) : self._at(node, True)].decode()

    def _add(self, operator: str, start: int, stop: int, new: str) -> None:
        self.found.append(Site(operator, start, stop, new))

    def _whole(self, node: ast.AST, operator: str, new: str) -> None:
        self._add(operator, self._at(node), self._at(node, True), new)

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str, operator: str) -> None:
        start, stop = self._at(left, True), self._at(right)
        gap = self.raw[start:stop].decode()
        if gap.count(old) == 1 and "#" not in gap:
            at = start + len(gap[: gap.index(old)].encode())
            self._add(operator, at, at + len(old), new)

    # What is not code that runs, or is only text for people.
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *node.kw_defaults]:
            if default is not None:
                self.visit(default)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__repr__":
            return
        self.visit(node.args)
        self.returns.append(ast.unparse(node.returns) if node.returns else "")
        for part in node.body:
            self.visit(part)
        self.returns.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._negate(node)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node)
        self.generic_visit(node)

    def _negate(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, (ast.Constant, ast.Compare)):
            self._whole(node.test, "negated condition", f"not ({self._text(node.test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            old = COMPARE[type(op)]
            self._between(left, right, old, FLIPS[old], "flipped comparison")
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            self._between(left, right, old, new, "and/or")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._whole(node, "negated condition", f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in BINARY and not any(isinstance(side, (ast.JoinedStr, ast.List)) for side in (node.left, node.right)):
            old, new = BINARY[type(node.op)]
            self._between(node.left, node.right, old, new, "arithmetic")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in BINARY and not isinstance(node.value, (ast.List, ast.ListComp, ast.JoinedStr)):
            old, new = BINARY[type(node.op)]
            self._between(node.target, node.value, old + "=", new + "=", "arithmetic")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._whole(node, "constant", str(not value))
        elif isinstance(value, int):
            self._whole(node, "constant", str(value + 1))
            if value > 0:
                self._whole(node, "constant", str(value - 1))
        elif isinstance(value, float):
            self._whole(node, "constant", repr(1.5 * value if value else 0.5))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("min", "max"):
            self._whole(node.func, "min/max", {"min": "max", "max": "min"}[name])
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if len(plain) == len(node.args) and name not in ("isinstance", "getattr", "zip", "min", "max"):
            for a, b in itertools.pairwise(plain):
                if _plain(a) and _plain(b) and ast.dump(a) != ast.dump(b):
                    middle = self.raw[self._at(a, True) : self._at(b)].decode()
                    self._add("swapped arguments", self._at(a), self._at(b, True), self._text(b) + middle + self._text(a))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._whole(node, "dropped call", "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        kind = self.returns[-1] if self.returns else ""
        if node.value is not None and kind in RETURNS and ast.unparse(node.value) != RETURNS[kind]:
            self._whole(node.value, "returned constant", RETURNS[kind])
        if node.value is not None:
            self.visit(node.value)


def _statement_lines(tree: ast.Module, line: int) -> tuple[int, int]:
    """First and last line of the innermost simple statement, or header of a compound one, around `line`."""
    best = (1, 1 << 30)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if node.lineno <= line <= last and last - node.lineno <= best[1] - best[0]:
                best = (node.lineno, last)
    return best if best[1] < 1 << 30 else (line, line)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that can change. `rank` orders the draw; it depends on the line's text, not on its number."""

    rank: str
    file: str
    number: int
    sites: list[Site]

    def mutant(self, root: Path) -> Mutant | None:
        """The one change that the draw picks in this line. An operator is picked first, so that constants do not outnumber the rest."""
        text = (root / self.file).read_text()
        raw, number = text.encode(), int(self.rank, 16)
        operators = sorted({site.operator for site in self.sites})
        of_operator = [site for site in self.sites if site.operator == operators[number % len(operators)]]
        site = of_operator[number // 64 % len(of_operator)]
        after = (raw[: site.start] + site.new.encode() + raw[site.stop :]).decode()
        try:
            ast.parse(after)
        except SyntaxError:
            return None
        first, last = _statement_lines(ast.parse(text), self.number)
        was, became = (t.splitlines()[self.number - 1].strip() for t in (text, after))
        return Mutant(self.rank[:10], self.file, self.number, first, last, *astuple(site), was, became)


def lines_of(path: Path, root: Path, seed: int) -> Iterator[Line]:
    """The lines of a file that can change."""
    text, file = path.read_text(), str(path.relative_to(root))
    raw, texts = text.encode(), text.splitlines()
    by_line: dict[int, list[Site]] = defaultdict(list)
    for site in Sites(text).found:
        if b"\n" not in raw[site.start : site.stop]:
            by_line[raw[: site.start].count(b"\n") + 1].append(site)
    seen: dict[str, int] = defaultdict(int)
    for number, found in sorted(by_line.items()):
        was = texts[number - 1].strip()
        seen[was] += 1
        key = f"{seed}|{file}|{was}|{seen[was]}"
        yield Line(hashlib.blake2b(key.encode(), digest_size=8).hexdigest(), file, number, found)


def draw(root: Path, seed: int, folder: str | None = None) -> list[Line]:
    """All lines below `root`/dysharp that can change, in the order of the draw."""
    found = [line for path in sorted((root / "dysharp").rglob("*.py")) for line in lines_of(path, root, seed)]
    return [x for x in sorted(found, key=lambda x: x.rank) if folder is None or x.file.startswith(f"dysharp/{folder}/")]


# ---- the copy, and runs of pytest in it


def sync(tree: Path) -> None:
    """Bring the copy at `tree` to the files of this checkout; times of files are kept, so compiled files stay good."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    keep = set()
    for name in listed:
        source, target = HERE / name, tree / name
        if source.is_file():
            keep.add(target)
            if not target.is_file() or target.read_bytes() != source.read_bytes() or target.stat().st_mtime_ns != source.stat().st_mtime_ns:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    for part in ("dysharp", "tests"):
        for path in (tree / part).rglob("*.py"):
            if path not in keep:
                path.unlink()


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


CERTAIN = ("equivalent", "harmless", "not run")
"""Judgements that no new test changes."""
REFUSAL = "if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]\n        raise"
"""In `dysharp/uarch/kernel.py`: nobody else runs kernels without the compiler."""


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
    """Exit code of `work()` in a fork inside `tree`, None if it took more than `cpu_s` seconds of a CPU, or 60 times as long."""
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
        ended, _, _ = select.select([fd], [], [], 60 * cpu_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if ended and code not in (-signal.SIGXCPU, -signal.SIGKILL) else None
    finally:
        os.close(fd)


def preload(torch: bool) -> None:
    """Import the libraries once; forks inherit them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    for name in ("numpy.testing", "numba", "hypothesis", "pytest", "pydantic", "click.testing", "rich.console", "ml_dtypes", "coverage"):
        __import__(name)
    if torch:
        with contextlib.suppress(ImportError):
            __import__("torch")
            __import__("transformers")


PYTEST = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--strict-markers --import-mode=importlib", "--no-header"]


# ---- which test runs which line


class Recorder:
    """Pytest plugin: one coverage context per test, another per fixture of a wider scope; CPU seconds of each test that passes."""

    def __init__(self, cov: Any, longest: float) -> None:
        self.cov, self.longest = cov, longest
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.fixtures: dict[str, list[str]] = {}
        self.context, self.n_modules = "", 0
        self.caches: list[Any] = []
        self.collected: Path | None = None  # where the names of the tests go

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if not (item.get_closest_marker("slow") or item.get_closest_marker("long"))]
        if self.collected:
            write(self.collected, json.dumps([item.nodeid for item in items]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self._clear_caches()
        self.context = item.nodeid
        self.fixtures[item.nodeid] = list(item.fixturenames)
        self.cov.switch_context(item.nodeid)
        begin = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - begin

    def _clear_caches(self) -> None:
        """A cached value would hide a line from every test but the first."""
        if len(sys.modules) != self.n_modules:
            self.n_modules = len(sys.modules)
            cached = (x for x in gc.get_objects() if isinstance(x, _lru_cache_wrapper))
            self.caches = [x for x in cached if str(getattr(x, "__module__", "")).startswith("dysharp")]
        for x in self.caches:
            x.cache_clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        self.cov.switch_context(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.cov.switch_context(self.context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Any:
        def late(*_: object) -> None:
            raise TimeoutError(f"more than {self.longest} s")

        signal.signal(signal.SIGPROF, late)
        signal.setitimer(signal.ITIMER_PROF, self.longest)  # a longer test waits for step 3
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def _compile_kernels() -> int:
    """Fill the cache of kernels, so that no test is charged for it."""
    from dysharp.engine.burst.run import run_burst
    from dysharp.engine.flit.network import NetworkConfig, Protocol, Traffic, measure
    from dysharp.engine.packet.program import run_packet
    from tests.interpreters.random_programs import random_program

    for run in (run_burst, run_packet):
        run(random_program(0))
    measure(NetworkConfig("fly", 2), Traffic(), 0.1, protocol=Protocol(50))
    return 0


def _record(tree: Path, files: dict[str, Path], longest: float) -> int:
    """Run the test files (from the root) and write the map of each to its path."""
    import coverage

    cov = coverage.Coverage(data_file=None, include=[f"{tree}/dysharp/*"], config_file=False)
    cov.start()
    cov.switch_context("import")
    plugin = Recorder(cov, longest)
    code = pytest.main([*PYTEST, *files], plugins=[plugin])
    cov.stop()
    data = cov.get_data()
    good = {name: s for name, s in plugin.seconds.items() if name not in plugin.failed}
    users: dict[str, list[str]] = defaultdict(list)
    for name in good:
        for fixture in plugin.fixtures[name]:
            users[f"fixture {fixture}"].append(name)
    lines: dict[str, dict[str, dict[int, list[str]]]] = {file: defaultdict(dict) for file in files}
    for source in data.measured_files():
        for line, contexts in data.contexts_by_lineno(source).items():
            for name in sorted({name for c in contexts for name in users.get(c, [c])} & good.keys()):
                lines[name.partition("::")[0]][str(Path(source).relative_to(tree))].setdefault(line, []).append(name)
    if code in (0, 1, 5):
        for file, target in files.items():
            mine = {name: round(s, 3) for name, s in good.items() if name.partition("::")[0] == file}
            write(target, json.dumps({"seconds": mine, "lines": lines[file]}))
    return 0


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def _map_files(work: Path, tree: Path, folder: str, jit: bool) -> dict[str, Path]:
    """Test file from the root -> where its map is stored. The name of a map depends on the text of the sources, the file and its helpers."""
    roots = sorted((tree / "tests").glob(folder))
    found = sorted({path for root in roots for path in (root.rglob("test_*.py") if root.is_dir() else [root]) if path.name.startswith("test_")})
    sources = sorted((tree / "dysharp").rglob("*.py"))
    helpers = [path for path in sorted((tree / "tests").rglob("*.py")) if not path.name.startswith("test_")]
    common = hashlib.blake2b(b"".join(path.read_bytes() for path in [*sources, *helpers]), digest_size=16)
    maps = {}
    for path in found:
        h = common.copy()
        h.update(path.read_bytes())
        name = str(path.relative_to(tree))
        maps[name] = work / "maps" / f"{name.replace('/', '-')}.{'jit' if jit else 'plain'}.{h.hexdigest()[:12]}.json"
    return maps


@cache
def test_map(work: Path, tree: Path, folder: str, jit: bool, longest: float) -> list[dict[str, Any]]:
    """The maps of one folder of tests, recorded unless they are stored."""
    maps = _map_files(work, tree, folder, jit)
    missing = {name: path for name, path in maps.items() if not path.is_file()}
    if missing:
        print(f"recording {len(missing)} files of tests/{folder}{'' if jit else ' without the compiler'} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        log = work / "record.log"
        if jit:
            forked(_compile_kernels, tree, log, 600)
        forked(partial(_record, tree, missing, longest), tree, log, 3600, writes_bytecode=True, jit=jit)
        if not all(path.is_file() for path in missing.values()):
            raise SystemExit(f"tests/{folder}: cannot be recorded, see {log}")
        print(f"  {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return [dict(json.loads(path.read_text())) | {"file": name, "text": (tree / name).read_text()} for name, path in maps.items()]


def _names(tree: Path, files: list[str], target: Path) -> int:
    """Write the names of all tests of the files that are marked neither slow nor long."""
    plugin = Recorder(None, 0)
    plugin.collected = target
    return int(pytest.main([*PYTEST, "--collect-only", *files], plugins=[plugin]))


@cache
def collected(work: Path, tree: Path, folder: str) -> dict[str, list[str]]:
    """Test file -> names of its tests."""
    files, target = list(_map_files(work, tree, folder, True)), work / "collected.json"
    forked(partial(_names, tree, files, target), tree, work / "record.log", 300)
    found: dict[str, list[str]] = defaultdict(list)
    for name in json.loads(target.read_text()):
        found[name.partition("::")[0]].append(name)
    return found


def too_long(m: Mutant, maps: list[dict[str, Any]], names: dict[str, list[str]], longest: float) -> list[tuple[str, float]]:
    """Tests that the other steps leave out, of files that touch or name the changed file; `LATE_S` seconds where the map has no time."""
    found = []
    for one in maps:
        if m.file in one["lines"] or Path(m.file).stem in one["text"]:
            seconds = {name: one["seconds"].get(name, LATE_S) for name in names.get(one["file"], [])}
            found += [(name, s) for name, s in seconds.items() if s > longest]
    return sorted(found, key=lambda test: test[1])


def tests_for(m: Mutant, maps: list[dict[str, Any]], longest: float) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Tests that run the changed line, and the other tests that touch its file or name its module, with their seconds."""
    on_line: dict[str, float] = {}
    on_file: dict[str, float] = {}
    for found in maps:
        if Path(m.file).stem in found["text"]:  # a constant of the module is read without a line of it
            on_file |= {name: seconds for name, seconds in found["seconds"].items() if seconds <= longest}
        for line, names in found["lines"].get(m.file, {}).items():
            for name in names:
                if found["seconds"][name] <= longest:
                    on_file[name] = found["seconds"][name]
                    if m.first_line <= int(line) <= m.last_line:
                        on_line[name] = found["seconds"][name]
    return _by_module(on_line), _by_module({k: v for k, v in on_file.items() if k not in on_line})


def _by_module(tests: dict[str, float]) -> list[tuple[str, float]]:
    """Cheap modules first, cheap tests first within a module: fixtures of a module are then made once."""
    total: dict[str, float] = defaultdict(float)
    for name, seconds in tests.items():
        total[name.partition("::")[0]] += seconds
    return sorted(tests.items(), key=lambda t: (total[t[0].partition("::")[0]], t[0].partition("::")[0], t[1]))


# ---- one mutant


class FirstFailure:
    """Pytest plugin: keeps the given order and writes the name of the first failure."""

    def __init__(self, order: list[str], target: Path) -> None:
        self.rank, self.target = {name: n for n, name in enumerate(order)}, target

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.rank.get(item.nodeid, 1 << 30))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.target.write_text(report.nodeid)


def _pytest(names: list[str], target: Path) -> int:
    return int(pytest.main([*PYTEST, "-x", "--tb=line", *names], plugins=[FirstFailure(names, target)]))


def _within(tests: list[tuple[str, float]], budget: float) -> dict[str, float]:
    """The cheapest tests that together take `budget` seconds."""
    ordered = sorted(tests, key=lambda t: t[1])
    spent = itertools.accumulate(seconds for _, seconds in ordered)
    return dict(test for test, total in zip(ordered, spent, strict=True) if total <= budget)


def attempt(tests: list[tuple[str, float]], tree: Path, jit: bool) -> tuple[str, str]:
    """("killed", test) or ("timeout", "") or ("survived", "") for one list of tests on the changed copy."""
    if not tests:
        return "survived", ""
    named = tree.parent / f"{tree.name}.killer"
    named.unlink(missing_ok=True)
    limit = 15 + 5 * sum(seconds for _, seconds in tests)
    code = forked(partial(_pytest, [name for name, _ in tests], named), tree, tree.parent / f"{tree.name}.log", limit, jit=jit)
    if code is None:
        return "timeout", ""
    if code == 0:
        return "survived", ""
    return "killed", named.read_text() if named.is_file() else "import or collection"


@cache
def kernel_files(tree: Path) -> frozenset[str]:
    """Files whose text enters a compiled kernel."""
    found = {*(tree / "dysharp" / "uarch").rglob("*.py")}
    found |= {p for p in (tree / "dysharp").rglob("*.py") if b"dysharp.uarch.kernel" in p.read_bytes()}
    return frozenset(str(p.relative_to(tree)) for p in found)


def _equality(m: Mutant, seeds: range) -> int:
    """What tests/engine/burst/test_equality.py compares, one random Program at a time: 1 at the first difference from the oracle."""
    from tests.interpreters.mutants import MAX_STEPS, difference
    from tests.interpreters.plain import PlainEngine
    from tests.interpreters.random_programs import random_program

    run_oracle = __import__("dysharp.oracle", fromlist=["run_oracle"]).run_oracle
    plain = PlainEngine(max_steps=MAX_STEPS)  # reads the changed file
    for seed in seeds:
        program = random_program(seed)
        if how := difference(plain, program, run_oracle(program)):
            print(f"seed {seed}: {how}")
            return 1
    return 0


def differs(m: Mutant, tree: Path) -> tuple[str, str]:
    """The result of the comparison with the oracle on the Programs of tests/engine/burst/test_equality.py."""
    code = forked(partial(_equality, m, range(EQUAL_PROGRAMS)), tree, tree.parent / f"{tree.name}.log", 30)
    return ("timeout", "") if code is None else ("killed", "tests/engine/burst/test_equality.py") if code else ("survived", "")


@contextlib.contextmanager
def changed(m: Mutant, tree: Path) -> Iterator[None]:
    """The copy with the mutant's change, its text and times restored afterwards."""
    path = tree / m.file
    raw, times = path.read_bytes(), path.stat()
    try:
        path.write_bytes(raw[: m.start] + m.new.encode() + raw[m.stop :])
        yield
    finally:
        path.write_bytes(raw)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def judge(m: Mutant, work: Path, tree: Path, longest: float, budget: float) -> dict[str, Any]:
    """The result of one mutant as it is stored."""
    jit = m.file not in kernel_files(tree)
    others: list[tuple[str, float]] = []
    n_on_line, started = 0, time.monotonic()
    result, by = "survived", ""
    kernel, oracle = compared(m.file)
    if kernel:
        with changed(m, tree):
            result, by = differs(m, tree)
        if result != "survived":
            return _record_of(m, result, by, 1, started)
    for folder in m.tests:
        direct, touching = tests_for(m, test_map(work, tree, folder, jit, longest), longest)
        n_on_line += len(direct)
        others += touching
        with changed(m, tree):
            result, by = attempt(direct, tree, jit)
        if result != "survived":
            break
    else:
        with changed(m, tree):
            result, by = differs(m, tree) if oracle else (result, by)
            if result == "survived":
                result, by = attempt(_by_module(_within(others, budget)), tree, jit)
    if result == "survived":
        late = [t for f in m.tests for t in too_long(m, test_map(work, tree, f, jit, longest), collected(work, tree, f), longest)]
        result, by = _by_long_tests(m, _within(late, LATE_BUDGET_S), tree)
    return _record_of(m, result, by, n_on_line, started)


def by_name(m: Mutant, tree: Path, cpu_s: float) -> dict[str, Any]:
    """The result of the test files that name the changed module, those of its own folders first, until `cpu_s` seconds of CPU: no map is needed.

    A mutant that is not noticed by then counts as survived, so the share that is noticed is a lower bound.
    """
    started, path, own = time.monotonic(), Path(m.file), [f"tests/{folder.split('/*')[0]}" for folder in m.tests]
    word = re.compile(rf"\b{re.escape(path.parent.name if path.stem == '__init__' else path.stem)}\b")
    mentions = {str(path.relative_to(tree)): len(word.findall(path.read_text())) for path in sorted((tree / "tests").rglob("test_*.py"))}
    files = sorted((f for f, n in mentions.items() if n), key=lambda f: (not any(f.startswith(o) for o in own), -mentions[f], f))
    files += [f for f in mentions if f not in files and any(f.startswith(o) for o in own)]
    named = tree.parent / f"{tree.name}.killer"
    named.unlink(missing_ok=True)
    words = [*PYTEST, "-x", "--tb=line", "-m", "not slow and not long", *files]
    run = partial(_until_failure, words, named)
    with changed(m, tree):  # with the compiler: a test that needs it would fail without a change, too
        code = forked(run, tree, tree.parent / f"{tree.name}.log", cpu_s * (3 if m.file in kernel_files(tree) else 1))
    by = named.read_text() if named.is_file() else "import or collection"
    if code not in (0, 5, None) and (by == "import or collection" or attempt([(by, 5.0)], tree, True)[0] == "survived"):
        return _record_of(m, "killed", by, 0, started)
    return _record_of(m, "survived", "", 0, started)


def _until_failure(words: list[str], target: Path) -> int:
    return int(pytest.main(words, plugins=[FirstFailure([], target)]))


def _by_long_tests(m: Mutant, tests: dict[str, float], tree: Path) -> tuple[str, str]:
    """The result of tests that the map does not know; one that fails without the change, too, says nothing."""
    while tests:
        with changed(m, tree):
            result, by = attempt(list(tests.items()), tree, True)
        if result != "killed" or by not in tests or attempt([(by, tests[by])], tree, True)[0] == "survived":
            return result, by
        del tests[by]
    return "survived", ""


def compared(file: str) -> tuple[bool, bool]:
    """Whether the comparison of engine and oracle runs the file as a kernel, and as the oracle."""
    loop = file == "dysharp/engine/burst/loop.py" or file.startswith("dysharp/engine/burst/lower")
    return loop or Path(file).parent == Path("dysharp/uarch"), Path(file).parent == Path("dysharp/oracle")


def _record_of(m: Mutant, result: str, by: str, n_on_line: int, started: float) -> dict[str, Any]:
    record = {k: getattr(m, k) for k in ("id", "file", "line", "operator", "was", "became")}
    return record | {"result": result, "by": by, "on_line": n_on_line, "seconds": round(time.monotonic() - started, 1)}


# ---- all of them


def stored() -> dict[str, dict[str, Any]]:
    """Results by the mutant's id."""
    return {r["id"]: r for r in json.loads(RESULTS.read_text())["mutants"]} if RESULTS.is_file() else {}


def store(results: dict[str, dict[str, Any]], order: dict[str, int], seed: int) -> None:
    """Write all results, in the order of the draw."""
    ordered = sorted(results.values(), key=lambda r: (order.get(r["id"], 1 << 30), r["id"]))
    write(RESULTS, json.dumps({"seed": seed, "mutants": ordered}, indent=1, ensure_ascii=False) + "\n")
    write(TABLE, table(ordered))


def judgements() -> dict[str, str]:
    """What bench/survivors.toml says of each mutant."""
    return tomllib.loads(JUDGED.read_text()) if JUDGED.is_file() else {}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def table(results: list[dict[str, Any]]) -> str:
    """The markdown page: counts per folder, and every survivor with its judgement."""
    judged = judgements()
    folders: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for r in results:
        folders[str(Path(r["file"]).parts[1]) if r["file"].count("/") > 1 else "dysharp"].append(r)
    lines = [
        "# Mutants",
        "",
        "Made by `python bench/mutants.py`; the script's first lines say what a mutant is and which tests it runs.",
        "",
        '"First run" is the result before any test was written for a mutant of this draw, "now" the last result. A timeout counts as noticed.',
        "",
        "| folder | mutants | killed | timeout | survived | noticed now | noticed at the first run |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in [*sorted(folders.items()), ("all", results)]:
        count = {k: sum(r["result"] == k for r in found) for k in ("killed", "timeout", "survived")}
        first = sum(r.get("first", r["result"]) != "survived" for r in found)
        lines.append(
            f"| {name} | {len(found)} | {count['killed']} | {count['timeout']} | {count['survived']} "
            f"| {_share(count['killed'] + count['timeout'], len(found))} | {_share(first, len(found))} |"
        )
    lines += ["", "## Mutants that no test noticed at the first run", ""]
    lines += ["| id | file, line | was | became | now | judgement |", "|---|---|---|---|---|---|"]
    for r in results:
        if r["result"] == "survived" or r.get("first") == "survived":
            code = [f"`{r[k]}`".replace("|", "\\|") for k in ("was", "became")]
            verdict = judged.get(r["id"], "mended: " + r["by"] if r["result"] != "survived" else "not judged yet")
            lines.append(f"| {r['id']} | {r['file'].removeprefix('dysharp/')}:{r['line']} | {code[0]} | {code[1]} | {r['result']} | {verdict} |")
    return "\n".join(lines) + "\n"


def _task(m: Mutant, work: Path, longest: float, budget: float) -> dict[str, Any]:
    worker = multiprocessing.current_process()._identity
    tree = work / f"tree{worker[0] if worker else 0}"
    if worker:
        sync(tree)
    return judge(m, work, tree, longest, budget) if longest else by_name(m, tree, budget)


def main() -> None:
    """Run, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants of the draw (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its own copy (default: 1)")
    parser.add_argument("--folder", help="only mutants of this folder of dysharp/")
    parser.add_argument("--order", help="folders to run first, separated by commas (default: the order of the draw)")
    parser.add_argument("--again", action="store_true", help="run the stored survivors again that a test may notice")
    parser.add_argument("--table", action="store_true", help="only write bench/mutants.md")
    longest = "leave out tests of more seconds (default: 6); 0: no map, but the files that name the module, for --budget seconds"
    parser.add_argument("--longest", type=float, default=6.0, help=longest)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests beyond those that run the line (default: 40)")
    parser.add_argument("--work", type=Path, default=Path("/tmp/dysharp-mutants"), help="folder of copies and maps")
    options = parser.parse_args()
    chosen = draw(HERE, options.seed, options.folder)
    order = {x.rank[:10]: n for n, x in enumerate(draw(HERE, options.seed))}
    results = {name: r for name, r in stored().items() if name in order}  # a line that changed or went away is another mutant, or none
    if options.table:
        store(results, order, options.seed)
        return
    os.environ["NUMBA_CACHE_DIR"] = str(options.work / "numba")
    survived = {name for name, r in results.items() if r["result"] == "survived" and not judgements().get(name, "").startswith(CERTAIN)}
    lines = [x for x in chosen if x.rank[:10] in survived] if options.again else [x for x in chosen[: options.count] if x.rank[:10] not in results]
    todo = [m for m in (x.mutant(HERE) for x in lines) if m]
    options.work.mkdir(parents=True, exist_ok=True)
    sync(options.work / "tree0")
    if options.order:  # one folder after the other: a map is recorded when it is needed
        named = options.order.split(",")
        todo.sort(key=lambda m: next((n for n, name in enumerate(named) if f"{m.file}/".startswith(f"dysharp/{name}")), len(named)))
    preload(torch=any("functional/torch" in m.tests for m in todo))
    work = partial(_task, work=options.work.resolve(), longest=options.longest, budget=options.budget)
    pool = multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=None) if options.jobs > 1 else None
    done = pool.imap_unordered(work, todo) if pool else map(work, todo)
    for n, record in enumerate(done, 1):
        first = results.get(record["id"], {}).get("first", results.get(record["id"], {}).get("result"))
        results[record["id"]] = record | ({"first": first} if first else {})
        store(results, order, options.seed)
        head = f"{n}/{len(todo)} {record['result']:8} {record['seconds']:6.1f} s  {record['file']}:{record['line']}"
        print(f"{head}  {record['was'][:70]}  ->  {record['became'][:70]}  [{record['by']}]", file=sys.stderr, flush=True)
    if pool:
        pool.close()
    print(table(list(results.values())))


if __name__ == "__main__":
    main()
