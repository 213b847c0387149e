"""The tests marked `long`, which no gate runs: `python tests/long_tests.py [FILE ...]` runs those of some files, or all.

What passed stands in `long_passed.toml` beside this file, by file of tests: date, commit, model version, number of tests and seconds; commit it.
A file with a failure keeps its old entry. `--left` runs the files that have not passed at today's model version, so a stopped run goes on;
`--last` prints what the record says. `-n N` goes to pytest (else `-n auto`).
Sittings of version 35, before there was a record by file: docs/notebook/2026-11-30-long-tests-found.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dysharp.analysis import MODEL_VERSION

TESTS = Path(__file__).parent
PASSED = TESTS / "long_passed.toml"
Record = dict[str, dict[str, Any]]
"""File of tests -> date, commit, model_version, passed, skipped, seconds."""


def git(*words: str) -> str:
    """What git prints, empty outside a checkout."""
    try:
        return subprocess.run(["git", *words], cwd=TESTS, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def pytest(*words: str) -> subprocess.CompletedProcess[str]:
    """Pytest on the tests marked `long`."""
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "long", *words], cwd=TESTS.parent, check=False, capture_output=True, text=True)


def collected(files: list[str]) -> Counter[str]:
    """File -> number of its long tests. A file that cannot be collected ends the command: it would count as one without long tests."""
    found = pytest("--collect-only", *files)
    if found.returncode not in (0, 5):  # 5: no test is collected
        sys.exit(f"found tests that are not collected:\n{found.stdout[-2000:]}{found.stderr[-2000:]}")
    return Counter(line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line)


def passed(report: str, day: date, commit: str) -> Record:
    """Entries of the files without a failure. `report` is pytest's JUnit XML; skipped tests do not count as passed."""
    (suite,) = ElementTree.fromstring(report).iter("testsuite")
    out: Record = {}
    failed: set[str] = set()
    for case in suite.iter("testcase"):
        module = Path(*case.attrib["classname"].split("."))
        name = next((str(path) for one in (module, *module.parents) if (TESTS.parent / (path := one.with_suffix(".py"))).is_file()), str(module))
        one = out.setdefault(name, {"date": day, "commit": commit, "model_version": MODEL_VERSION, "passed": 0, "skipped": 0, "seconds": 0.0})
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        one["skipped" if case.find("skipped") is not None else "passed"] += 1
        one["seconds"] += float(case.attrib["time"])
    return {name: one for name, one in out.items() if name not in failed}


def text_of(record: Record) -> str:
    """The record as TOML."""
    return "\n".join(
        f'["{name}"]\ndate = {one["date"]}\ncommit = "{one["commit"]}"\nmodel_version = "{one["model_version"]}"\n'
        f"passed = {one['passed']}\nskipped = {one['skipped']}\nseconds = {one['seconds']:.0f}\n"
        for name, one in sorted(record.items())
    )


def last_line(record: Record, version: str = MODEL_VERSION) -> str:
    """One line on what has passed at which model version. `version` is today's."""
    by = Counter[str]()
    for one in record.values():
        by[one["model_version"]] += one["passed"]
    said = [f"{n} passed at model version {at} ({sum(one['model_version'] == at for one in record.values())} files)" for at, n in by.most_common()]
    left = "" if set(by) == {version} else f"; today's is {version}: run python tests/long_tests.py --left"
    return f"long tests: {', '.join(said) or 'none has passed'}{left}"


def never(record: Record) -> str:
    """The files of tests marked `long` that have no entry, in words; "" where all have one."""
    marked = sorted(str(file.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py") if "mark.long" in file.read_text())
    left = [name for name in marked if name not in record]
    return f"; never passed: {', '.join(left)}" if left else ""


def main(words: list[str]) -> int:
    """The command. The exit code is pytest's, and 1 where uncommitted changes leave the commit open."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--left", action="store_true")
    parser.add_argument("--last", action="store_true")
    parser.add_argument("-n", default="auto")
    asked = parser.parse_args(words)
    record: Record = tomllib.loads(PASSED.read_text()) if PASSED.exists() else {}
    if asked.last:
        print(last_line(record) + never(record))
        return 0
    if git("status", "--porcelain", "--untracked-files=no"):
        print("found uncommitted changes, expected none: the record names the commit that passed", file=sys.stderr)
        return 1
    commit = git("rev-parse", "HEAD")
    todo = collected(asked.files)
    if asked.left:
        todo = Counter({name: n for name, n in todo.items() if record.get(name, {}).get("model_version") != MODEL_VERSION})
    code = 0
    for name, n in sorted(todo.items(), key=lambda one: one[1], reverse=True):  # one file at a time: a stopped run keeps what has passed
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            done = pytest("-n", asked.n, f"--junitxml={report}", name)
            print(f"{name}: {n} long tests; {done.stdout.strip().splitlines()[-1]}", flush=True)
            if done.returncode:
                print(done.stdout[-4000:], file=sys.stderr)
            code = code or done.returncode
            record |= passed(report.read_text(), date.today(), commit) if done.returncode in (0, 1) else {}  # others: a run that was stopped
        PASSED.write_text(text_of(record))
    print(last_line(record))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
