"""One-line changes of `dysharp/` that the tests notice or not: `python bench/mutants.py --count 300 --seed 3`.

A mutant is the package with one change in one line: a flipped comparison, a constant off by one, `and` for `or`, a dropped call ...
Lines are drawn at random over all folders; a later run with the same seed and a larger count continues the same draw.

1. The quick tests run once in a copy with a probe before every changed statement. A test that meets a probe runs again, in a fork with the
   changed function, until one fails or the mutant's CPU seconds are spent (bench/mutant_session.py). Tests of more than `--longest` CPU
   seconds are cut here.
2. Kernels run as plain Python: random Programs against the oracle, then the same with tests/engine and tests/engine.
3. What no quick test has noticed meets the rest of the gate's tests in the same way: the slow ones, and the quick ones that were cut.
   `by` then starts with "slow: ". Tests of more than SLOW_LONGEST CPU seconds are cut, and say nothing.
4. A change that runs at import has a process of its own with the tests that meet its file, cheap ones first, for `--budget` CPU seconds; one that
   is met by more tests than its CPU seconds allowed has one with those that came late.
5. A kernel's mutant that survives this is compiled, and the quick tests of `COMPILED` run: stored points, packets, flits.

A mutant that no test runs counts as not noticed; a time-out (five times the CPU) counts as noticed. A test counts only if it passes twice
without the change. The checkout is never changed. Results go to bench/mutants.csv; what is known stays in `--work`, so a stopped run goes on.
Expected of the last draw: docs/notebook/2026-11-30-mutants-seventh-expected.md.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import multiprocessing
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from mutant_draw import Mutant, draw
from mutant_session import Session
from mutant_tree import HERE, INSTALL, PYTEST, forked, kernel_files, parts, preload, prepare, sync

RESULTS, TABLE = (HERE / "bench" / name for name in ("mutants.csv", "mutants.md"))
FIELDS = ("id", "file", "line", "operator", "was", "became", "result", "first", "by", "tests")
EQUAL_PROGRAMS = 170  # seeds for a mutant of the burst level's kernels or of the oracle, a random Program of each kind; the test has 510
EQUAL_S = 15.0  # CPU seconds of these
KERNELS = ("tests/engine", "tests/engine")  # tests of kernels, which run them as plain Python
COMPILED = ("tests/replay/test_digests.py", *KERNELS)
COMPILED_S = 100.0  # a fifth of the CPU seconds in which a compiled mutant has to end these
SLOW_LONGEST, SLOW_BUDGET_S = 12.0, 30.0  # CPU seconds of a test of the second round, and of a mutant in all of them
SLOW = "slow: "
QUICK_BUDGET_S = 6.0  # CPU seconds of a mutant in a part of the quick tests
OVERHEAD_S = 2.0  # CPU seconds until a fork runs its first test


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


QUICK, GATE = ("-m", "not slow and not long"), ("-m", "not long")


def _pytest(names: list[str], target: Path) -> int:
    which = GATE if all("::" in name for name in names) else QUICK
    return int(pytest.main([*PYTEST, *which, "-x", "--tb=line", *names], plugins=[FirstFailure(names, target)]))


def attempt(names: list[str], seconds: float, tree: Path, jit: bool) -> tuple[str, str]:
    """("killed", test) or ("timeout", "") or ("survived", "") for one list of tests, which take `seconds` without the change."""
    named = tree.parent / f"{tree.name}.killer"
    named.unlink(missing_ok=True)
    run = partial(_pytest, names, named)
    code = forked(run, tree, tree.parent / f"{tree.name}.log", 5 * (OVERHEAD_S + seconds), jit=jit)
    if code is None:
        return "timeout", "timeout"
    if code in (0, 5):
        return "survived", ""
    return "killed", named.read_text() if named.is_file() else "import or collection"


def _equality(seeds: range) -> int:
    """What tests/engine/burst/test_equality.py compares, one random Program at a time: 1 at the first difference from the oracle."""
    from dysharp.oracle import run_oracle
    from tests.interpreters.mutants import MAX_STEPS, difference
    from tests.interpreters.plain import PlainEngine
    from tests.interpreters.random_points import random_points
    from tests.interpreters.random_programs import random_program
    from tests.interpreters.random_sums import random_sums

    plain = PlainEngine(max_steps=MAX_STEPS)  # reads the changed file
    for seed in seeds:
        for make in (random_program, random_points, random_sums):
            program = make(seed)
            if how := difference(plain, program, run_oracle(program)):
                print(f"{make.__name__}, seed {seed}: {how}")
                return 1
    return 0


def differs(tree: Path) -> tuple[str, str]:
    """The result of the comparison with the oracle on the Programs of tests/engine/burst/test_equality.py; unfinished ones show nothing."""
    code = forked(partial(_equality, range(EQUAL_PROGRAMS)), tree, tree.parent / f"{tree.name}.log", EQUAL_S)
    return ("killed", "tests/engine/burst/test_equality.py") if code else ("survived", "")


def compared(file: str) -> bool:
    """Whether the comparison of engine and oracle runs the file."""
    return file.startswith("dysharp/engine/burst/l") or Path(file).parent.name in ("blocks", "oracle") or file == "dysharp/engine/burst/chains.py"


def compiled(m: Mutant, tree: Path) -> tuple[str, str]:
    """The result of the quick tests that run compiled kernels most. The cache of kernels is keyed by their sources: the mutant's goes afterwards."""
    cache = Path(os.environ["XDG_CACHE_HOME"]) / f"{tree.name}-compiled"
    with changed(m, tree), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        found = attempt([*COMPILED], COMPILED_S, tree, True)
    shutil.rmtree(cache, ignore_errors=True)
    result, by = by_the_change(found, COMPILED_S, tree)
    return result, f"compiled: {by}" if result == "killed" else by


def by_the_change(found: tuple[str, str], seconds: float, tree: Path) -> tuple[str, str]:
    """The result `found` of tests with a change; "survived" where the test that noticed it fails without the change too, in `seconds`."""
    return ("survived", "") if "::" in found[1] and attempt([found[1]], seconds, tree, True)[0] != "survived" else found


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


def alone(m: Mutant, met: list[tuple[str, float]], tree: Path, budget: float) -> tuple[str, str]:
    """The result of the tests that met the mutant, in a process of their own: one case of every test, as many as fit in `budget` seconds."""
    chosen: dict[str, tuple[str, float]] = {}
    for name, seconds in sorted(met, key=lambda t: t[1]):
        if (budget := budget - seconds) > 0:
            chosen.setdefault(name.partition("[")[0], (name, seconds))
    names = sorted(name for name, _ in chosen.values())
    if not names:
        return "survived", ""
    spent = sum(seconds for _, seconds in chosen.values())
    run = partial(attempt, names, spent, tree, m.file not in kernel_files(tree))
    with changed(m, tree):
        found = run()
    if found[0] == "timeout":  # kernels that are not compiled yet take as long
        return ("survived", "") if run()[0] == "timeout" else found
    return by_the_change(found, 5.0, tree)


# ---- all of them


@dataclass(frozen=True, slots=True)
class Part:
    """A folder or file of tests in one of the rounds "quick", "plain" (kernels as Python) and "slow"."""

    name: str
    round: str

    @property
    def text(self) -> str:
        return f"{self.name.replace('/', '-')}.{self.round}"


def _session(part: Part, work: Path, mutants: list[Mutant], longest: float) -> int:
    exec(INSTALL, {})
    tree, spent = work / ("plain" if part.round == "plain" else "probed"), work / "state" / f"{replace(part, round='quick').text}.spent"
    if part.round == "slow":
        done = frozenset(spent.read_text().splitlines()) if spent.is_file() else frozenset()
        plugin = Session(tree, mutants, work / "state", SLOW_LONGEST, SLOW_BUDGET_S, SLOW, done=done)
    else:
        plugin = Session(tree, mutants, work / "state", longest, QUICK_BUDGET_S, spent=spent if part.round == "quick" else None)
    return int(pytest.main([*PYTEST, *(GATE if part.round == "slow" else QUICK), part.name], plugins=[plugin]) not in (0, 1, 5))


def session(part: Part, work: Path, mutants: list[Mutant], longest: float) -> Part:
    """One part of the tests with all mutants, once."""
    log = work / "state" / f"{part.text}.log"
    done, plain = log.with_suffix(".done"), part.round == "plain"
    run = partial(_session, part, work, mutants, longest)
    if not done.is_file() and forked(run, work / ("plain" if plain else "probed"), log, 3600, jit=not plain) == 0:
        done.touch()
    return part


@cache
def in_quick_round(work: Path) -> frozenset[str]:
    """Names of the tests that ended in time in the quick round."""
    return frozenset(name for path in (work / "state").glob("*.spent") for name in path.read_text().splitlines())


Tests = list[tuple[str, float]]


def tests_of(file: Path) -> Tests:
    """Names and CPU seconds of tests; none without the file."""
    return [(n, float(s)) for n, s in (x.split("\t") for x in file.read_text().splitlines())] if file.is_file() else []


def rest(numbered: tuple[int, Mutant], work: Path, budget: float) -> dict[str, Any]:
    """What is stored of a mutant, after the oracle or a process of its own where the sessions say nothing."""
    number, m = numbered
    worker = multiprocessing.current_process()._identity
    tree = work / f"tree{worker[0] if worker else ''}"
    sync(tree)
    killed = work / "state" / f"{number}.killed"
    met, late = (tests_of(work / "state" / f"{number}.{kind}") for kind in ("met", "late"))
    result, by = ("killed", killed.read_text()) if killed.is_file() else ("survived", "")
    survived = killed.with_suffix(".survived")
    if result == "survived" and not survived.is_file():
        result, by = last(m, number, met, late, work, tree, budget)
        (killed if result != "survived" else survived).write_text(by)
    record = {k: getattr(m, k) for k in ("id", "file", "line", "operator", "was", "became")}
    return record | {"result": "timeout" if by.removeprefix(SLOW).startswith("timeout") else result, "by": by, "tests": len(met) + len(late)}


def last(m: Mutant, number: int, met: Tests, late: Tests, work: Path, tree: Path, budget: float) -> tuple[str, str]:
    """The result where the sessions say nothing: of the oracle, then of a process of its own, then of compiled kernels."""
    result, by = "survived", ""
    if compared(m.file):
        with changed(m, tree):
            result, by = differs(tree)
    chosen = met + late  # a fork does not change what the function did at import
    if result == "survived" and chosen:
        result, by = alone(m, chosen, tree, budget)
        by = f"{SLOW}{by}" if "::" in by and by not in in_quick_round(work) else by
    if result == "survived" and m.file in kernel_files(tree):
        result, by = compiled(m, tree)
    return result, by


def stored() -> dict[str, dict[str, Any]]:
    """Results by the mutant's id."""
    return {r["id"]: dict(r) for r in csv.DictReader(RESULTS.open(newline=""))} if RESULTS.is_file() else {}


def store(results: dict[str, dict[str, Any]], order: dict[str, int]) -> None:
    """Write all results, in the order of the draw."""
    ordered = sorted(results.values(), key=lambda r: order[r["id"]])
    with RESULTS.open("w", newline="") as file:
        out = csv.DictWriter(file, FIELDS, lineterminator="\n")
        out.writeheader()
        out.writerows(ordered)
    TABLE.write_text(table(ordered))


def wilson(part: int, whole: int) -> str:
    """A share and its interval of 95 %."""
    if not whole:
        return "-"
    z, p = 1.96, part / whole
    middle, half = p + z * z / (2 * whole), z * math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole))
    low, high = ((middle + sign * half) / (1 + z * z / whole) for sign in (-1, 1))
    return f"{p:.0%} ({low:.0%} to {high:.0%})"


def table(results: list[dict[str, Any]]) -> str:
    """The markdown page: counts per folder, and every mutant that no test noticed when drawn."""
    folders: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for r in results:
        folders[str(Path(r["file"]).parts[1]) if r["file"].count("/") > 1 else "dysharp"].append(r)
    lines = [
        "# Mutants",
        "",
        "Made by `python bench/mutants.py`; the script's first lines say what a mutant is and which tests it runs.",
        "",
        '"When drawn" is before any test was written for a mutant of this draw; shares have the interval of 95 % (Wilson).',
        "The last column counts the quick tests alone, those of up to 1.4 CPU seconds.",
        "",
        "| folder | mutants | killed | timeout | survived | noticed now | noticed when drawn | by quick tests |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in [*sorted(folders.items()), ("all", results)]:
        count = {k: sum(r["result"] == k for r in found) for k in ("killed", "timeout", "survived")}
        first = sum(r["first"] != "survived" for r in found)
        quick = sum(r["first"] not in ("survived", "slow") for r in found)
        now = count["killed"] + count["timeout"]
        lines.append(
            f"| {name} | {len(found)} | {count['killed']} | {count['timeout']} | {count['survived']} "
            f"| {wilson(now, len(found))} | {wilson(first, len(found))} | {wilson(quick, len(found))} |"
        )
    lines += ["", "## Mutants that no test noticed when drawn", "", "| id | file, line | was | became | tests that run the line | now |"]
    lines += ["|---|---|---|---|---|---|"]
    for r in results:
        if r["first"] == "survived":
            was, became = (f"`{r[k]}`".replace("|", "\\|") for k in ("was", "became"))
            now = r["by"] if r["result"] == "killed" else r["result"]
            lines.append(f"| {r['id']} | {r['file'].removeprefix('dysharp/')}:{r['line']} | {was} | {became} | {r['tests']} | {now} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, store and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants of the draw (default: 300)")
    parser.add_argument("--seed", type=int, default=3, help="seed of the draw (default: 3)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--longest", type=float, default=0.7, help="CPU seconds of a test (default: 0.7)")
    parser.add_argument("--budget", type=float, default=20.0, help="CPU seconds of tests of a mutant that runs at import (default: 20)")
    parser.add_argument("--work", type=Path, default=Path("/tmp/dysharp-mutants"), help="folder of copies and results; an empty one after an edit")
    options = parser.parse_args()
    mutants = [m for m in (x.mutant(HERE) for x in draw(HERE, options.seed)[: options.count]) if m]
    order, work, before = {m.id: n for n, m in enumerate(mutants)}, options.work.resolve(), stored()
    (work / "state").mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    preload()
    prepare(work, mutants)
    quick = [*(Part(name, "quick") for name in parts()), *(Part(name, "plain") for name in KERNELS)]
    results: dict[str, dict[str, Any]] = {}
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for every in (quick, [Part(name, "slow") for name in parts()]):
            for part in pool.imap_unordered(partial(session, work=work, mutants=mutants, longest=options.longest), every, chunksize=1):
                print(part.text, file=sys.stderr, flush=True)
        slow_last = sorted(enumerate(mutants), key=lambda one: one[1].file.startswith("dysharp/engine/"))  # kernels are compiled
        for found in pool.imap_unordered(partial(rest, work=work, budget=options.budget), slow_last, chunksize=1):
            drawn = "slow" if found["by"].startswith(SLOW) else found["result"]
            first = before.get(found["id"], {}).get("first", drawn)  # a result when drawn stays when tests have come
            results[found["id"]] = found | {"first": first}
    store(results, order)
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
