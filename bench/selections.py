"""What the tests of each selection find per minute: `python bench/selections.py` prints the table from stored data.

Seconds are those of `bench/selections.json`: CPU seconds per test function, the processes that it starts included.
`--time quick` (or slow, long, or files of tests) runs tests one after the other and stores their seconds.
A function that was timed on some of its parameters has `timed` below `tests`; the table scales its seconds.

Mutants are those of `bench/mutants.csv` (`by`: the test that noticed the mutant). Mutants run quick tests only.
So slow and long tests are judged by what the quick tests of their file found, per minute that these take.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[1]
TIMES, MUTANTS = HERE / "bench" / "selections.json", HERE / "bench" / "mutants.csv"
SELECTIONS = ("quick", "slow", "long")
COMPILES_S = 50.0  # a first test that takes so long compiled a kernel; its neighbours say what it takes


def cpu_s() -> float:
    """CPU seconds of this process and of those that it waited for."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def selection_of(item: pytest.Item) -> str:
    """The one selection that a test is in."""
    return next((name for name in ("slow", "long") if item.get_closest_marker(name)), "quick")


class Timer:
    """Pytest plugin: CPU seconds of the tests of one selection (or of all), and the number of tests of every function."""

    def __init__(self, selection: str | None) -> None:
        self.selection = selection
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.counts[selection_of(item)][function_of(item.nodeid)] += 1
        items[:] = [item for item in items if self.selection in (None, selection_of(item))]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        before = cpu_s()
        try:
            return (yield)
        finally:
            self.seconds[f"{selection_of(item)} {function_of(item.nodeid)}"].append(cpu_s() - before)


def function_of(nodeid: str) -> str:
    """The test function, without its parameters."""
    return nodeid.partition("[")[0]


def time_tests(selection: str | None, files: list[str]) -> None:
    """Run the tests and store their seconds."""
    plugin = Timer(selection)
    pytest.main(["-q", "-p", "no:xdist", "-o", "addopts=--strict-markers --import-mode=importlib", *files], plugins=[plugin])
    stored = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    for key, seconds in plugin.seconds.items():
        name, function = key.split(" ", 1)
        stored.setdefault(name, {})[function] = record(seconds, plugin.counts[name][function])
    write(stored)


def record(seconds: list[float], tests: int) -> dict[str, Any]:
    """One function: number of tests, of timed ones, and seconds of these; a test that compiled a kernel takes as long as the next dearest."""
    used = sorted(seconds)
    if len(used) > 1 and used[-1] > COMPILES_S > 4 * used[-2]:
        used[-1] = used[-2]
    return {"tests": tests, "timed": len(seconds), "seconds": round(sum(used), 2)}


def write(stored: dict[str, Any]) -> None:
    """Store all seconds, one function a line."""
    parts = []
    for name in SELECTIONS:
        lines = ",\n".join(f"  {json.dumps(f)}: {json.dumps(r)}" for f, r in sorted(stored.get(name, {}).items()))
        parts.append(f'"{name}": {{\n{lines}\n}}')
    TIMES.write_text("{" + ",\n".join(parts) + "}\n")


def whole_s(entry: dict[str, Any]) -> float:
    """Seconds of all tests of a function, by those that were timed."""
    return float(entry["seconds"]) * entry["tests"] / entry["timed"]


def rows_of(stored: dict[str, Any], mutants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per test file: seconds of each selection, mutants that its quick tests noticed, and mutants per quick minute."""
    files: dict[str, dict[str, Any]] = defaultdict(lambda: {**dict.fromkeys(SELECTIONS, 0.0), "found": 0})
    for name in SELECTIONS:
        for function, entry in stored.get(name, {}).items():
            files[function.partition("::")[0]][name] += whole_s(entry)
    for m in mutants:
        file = m["by"].partition("::")[0]
        if m["result"] == "killed" and file in files:
            files[file]["found"] += 1
    return [{"file": file, **row, "per_minute": row["found"] / row["quick"] * 60 if row["quick"] else None} for file, row in files.items()]


def table(rows: list[dict[str, Any]], least_s: float) -> str:
    """Markdown: files with slow or long tests, and files that take `least_s` in the quick selection; dearest first."""
    shown = [row for row in rows if row["slow"] or row["long"] or row["quick"] >= least_s]
    shown.sort(key=lambda row: -sum(row[name] for name in SELECTIONS))
    lines = ["| tests | quick s | slow s | long s | mutants found | found per quick minute |", "|---|---|---|---|---|---|"]
    for row in shown:
        seconds = " | ".join(f"{row[name]:.0f}" if row[name] else "-" for name in SELECTIONS)
        rate = "-" if row["per_minute"] is None else f"{row['per_minute']:.1f}"
        lines.append(f"| {row['file'].removeprefix('tests/')} | {seconds} | {row['found']} | {rate} |")
    sums = " | ".join(f"{sum(row[name] for row in rows):.0f}" for name in SELECTIONS)
    return "\n".join([*lines, f"| all files that were timed ({len(rows)}) | {sums} | {sum(row['found'] for row in rows)} | |"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", nargs="+", metavar="SELECTION|FILE", help="run a selection or files of tests and store their seconds")
    parser.add_argument("--least", type=float, default=5.0, help="show files without slow and long tests from so many seconds on (default: 5)")
    options = parser.parse_args()
    if options.time:
        one = options.time[0] if options.time[0] in SELECTIONS else None
        time_tests(one, options.time[1:] if one else options.time)
    if not TIMES.exists():
        sys.exit(f"{TIMES}: not there, run with --time")
    print(table(rows_of(json.loads(TIMES.read_text()), list(csv.DictReader(MUTANTS.open(newline="")))), options.least))


if __name__ == "__main__":
    main()
