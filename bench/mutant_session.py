"""Mutants inside one run of the tests, for `bench/mutants.py`: a test that meets a probe runs again in a fork with the changed function.

A change inside a function is the function with other code, so a fork needs no import: it swaps the code and runs the test again, fixtures
of the test included. A change that runs at import, and a line that only a fixture of a wider scope meets, are left to a process of their own.
"""

from __future__ import annotations

import ast
import gc
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from mutant_draw import Mutant
from mutant_tree import HERE, with_probes

CASES = 2  # cases of one test function that a mutant meets


class Session:
    """Pytest plugin: tests are cut after twice `longest` CPU seconds, a mutant has `budget_s`. Tests of `done` are left out.

    Writes `<state>/<number>.killed` with the name of a test after `prefix`, `<number>.met` with one line for each test that ran the line,
    `<number>.late` with those that ran it when the budget was spent, and to `spent` the names of the tests that ended in time.
    """

    def __init__(
        self,
        tree: Path,
        mutants: list[Mutant],
        state: Path,
        longest: float,
        budget_s: float,
        prefix: str = "",
        *,
        done: frozenset[str] = frozenset(),
        spent: Path | None = None,
    ) -> None:
        self.tree, self.mutants, self.state, self.longest, self.prefix, self.done, self.spent = tree, mutants, state, longest, prefix, done, spent
        self.left: dict[int, float] = defaultdict(lambda: budget_s)
        self.cases: dict[tuple[int, str], int] = defaultdict(int)
        self.swaps: dict[int, tuple[list[FunctionType], CodeType] | None] = {}
        self.failed, self.forks, self.function = False, False, ""
        self.hung: set[str] = set()  # tests that do not end in a fork, most of them with processes of their own
        self.probes = state / f"probes.{os.getpid()}"
        os.environ["DYSHARP_PROBES"] = str(self.probes)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        gc.unfreeze()  # tests/conftest.py freezes what has been collected, and frozen functions are not found

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if i.nodeid not in self.done]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        """A test is cut after twice the longest time; a fork has a limit of its own."""

        def late(*_: object) -> None:
            raise TimeoutError("too long")

        if not self.forks:
            signal.signal(signal.SIGPROF, late)
            signal.setitimer(signal.ITIMER_PROF, 2 * self.longest)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.outcome != "passed"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
        # One name of the file for each test, so that every test counts its probes anew.
        self.probes.unlink(missing_ok=True)
        self.probes = self.probes.with_name(f"probes.{os.getpid()}.{time.monotonic_ns()}")
        os.environ["DYSHARP_PROBES"] = str(self.probes)
        self.failed, begin = False, time.process_time()
        if item.nodeid.partition("[")[0] != self.function:
            self.function = item.nodeid.partition("[")[0]
            for cached in self.caches():
                cached.cache_clear()
        result = yield
        spent = time.process_time() - begin
        if not self.failed and self.spent:
            with self.spent.open("a") as file:
                file.write(f"{item.nodeid}\n")
        if not self.failed and self.probes.is_file():
            for number in sorted({int(word) for word in self.probes.read_text().split()}):
                self.met(number, item, spent)
        return result

    def caches(self) -> list[Any]:
        """Caches of the package: a cached value hides a line."""
        modules = sorted(name for name in sys.modules if name.startswith("dysharp"))
        if modules != getattr(self, "known", None):
            self.known = modules
            self.cached = [
                x for x in gc.get_objects() if isinstance(x, _lru_cache_wrapper) and str(getattr(x, "__module__", "")).startswith("dysharp")
            ]
        return self.cached

    def met(self, number: int, item: Any, spent: float) -> None:
        """Run the test again with the mutant, unless enough tests have."""
        killed, test = self.state / f"{number}.killed", item.nodeid.partition("[")[0]
        self.cases[number, test] += 1
        if killed.is_file() or self.cases[number, test] > CASES:
            return
        late = self.left[number] <= 0
        with open(self.state / f"{number}.{'late' if late else 'met'}", "a") as file:
            file.write(f"{item.nodeid}\t{spent:.3f}\n")
        if late:
            return
        if number not in self.swaps:
            self.swaps[number] = swap(self.tree, self.mutants, number)
        if self.swaps[number] is None or test in self.hung:
            return
        (self.state / f"{number}.swapped").touch()
        self.left[number] -= spent + 0.05
        code = self.forked(number, item, spent)
        if code != 0 and self.forked(-1, item, spent) == 0:  # a test that fails when it runs twice says nothing
            killed.write_text(f"{self.prefix}{item.nodeid if code else f'timeout {item.nodeid}'}")

    def forked(self, number: int, item: Any, spent: float) -> int | None:
        """0 where the test passes with the mutant (-1: without), 1 where it fails, None for more than five times the CPU."""
        functions, changed = self.swaps.get(number) or ([], None)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                limit = int(4 + 5 * spent)
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
                self.forks = True
                for function in functions:
                    function.__code__ = changed
                for cached in self.caches():
                    cached.cache_clear()
                os.environ.pop("DYSHARP_PROBES", None)
                item._initrequest()
                reports = runtestprotocol(item, log=False, nextitem=item)
                code = int(any(report.failed for report in reports))
            finally:
                os._exit(code)
        fd = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([fd], [], [], 10 + 10 * spent)
            if not ended:
                os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            os.close(fd)
        if not ended:
            self.hung.add(item.nodeid.partition("[")[0])
            return 0  # a busy machine looks alike
        return None if status in (-signal.SIGXCPU, -signal.SIGKILL) else status


def swap(tree: Path, mutants: list[Mutant], number: int) -> tuple[list[FunctionType], CodeType] | None:
    """The functions whose code changes, and their new code; None for a line that runs at import."""
    m, path = mutants[number], tree / mutants[number].file
    raw = (HERE / m.file).read_bytes()
    inside = [(n, x) for n, x in enumerate(mutants) if x.file == m.file]
    text = with_probes((raw[: m.start] + m.new.encode() + raw[m.stop :]).decode(), raw.decode(), inside)
    line = with_probes(raw.decode(), raw.decode(), inside).splitlines()
    place = min(i for i, (a, b) in enumerate(zip(line, text.splitlines(), strict=True), 1) if a != b)
    parsed = ast.parse(text)
    outer = [f for f in ast.walk(parsed) if isinstance(f, ast.FunctionDef) and f.body[0].lineno <= place <= (f.end_lineno or 0)]
    if not outer:
        return None
    first = min(outer, key=lambda f: f.lineno)
    start = min([first.lineno, *(d.lineno for d in first.decorator_list)])
    new = _code_at(compile(text, str(path), "exec"), first.name, start)
    found = [f for f in gc.get_objects() if isinstance(f, FunctionType) and f.__code__.co_filename == str(path)]
    found = [f for f in found if f.__code__.co_name == first.name and f.__code__.co_firstlineno == start]
    return (found, new) if found and new else None


def _code_at(code: CodeType, name: str, line: int) -> CodeType | None:
    if code.co_name == name and code.co_firstlineno == line:
        return code
    inner = (_code_at(const, name, line) for const in code.co_consts if isinstance(const, CodeType))
    return next((c for c in inner if c), None)
