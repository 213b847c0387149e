"""The tests marked `long`, which no gate runs: `python tests/long_tests.py` runs them all.

If all pass, the command writes date, commit, model version, number of tests and seconds to `long_passed.toml` beside this file;
commit that file. `--last` prints the record, and what has changed since. All other words go to pytest (`-n 4`).
Expected of a run: docs/notebook/2026-11-30-long-tests-expected.md; found: docs/notebook/2026-11-30-long-tests-found.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

from dysharp.analysis import MODEL_VERSION

TESTS = Path(__file__).parent
PASSED = TESTS / "long_passed.toml"


def git(*words: str) -> str:
    """What git prints, empty outside a checkout."""
    try:
        return subprocess.run(["git", *words], cwd=TESTS, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def record_text(report: str, day: date, commit: str, seconds: float) -> str:
    """The record of a run that passed. `report` is pytest's JUnit XML; skipped tests do not count as passed."""
    (suite,) = ElementTree.fromstring(report).iter("testsuite")
    total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    lines = [f"date = {day}", f'commit = "{commit}"', f'model_version = "{MODEL_VERSION}"']
    return "\n".join([*lines, f"passed = {total - skipped}", f"skipped = {skipped}", f"seconds = {seconds:.0f}"]) + "\n"


def last_line(text: str, version: str = MODEL_VERSION, since: str = "") -> str:
    """One line on the last run that passed. `version` is today's model version, `since` the number of commits after the run."""
    r = tomllib.loads(text)
    words = [f"long tests: {r['passed']} passed, {r['skipped']} skipped on {r['date']} in {r['seconds']} s, commit {r['commit'][:10]}"]
    if since:
        words.append(f"{since} commits ago")
    if r["model_version"] != version:
        words.append(f"at model version {r['model_version']}, today's is {version}: run python tests/long_tests.py")
    return ", ".join(words)


def run(words: list[str]) -> int:
    """Run the tests; write the record if all pass. The exit code is pytest's, and 1 where uncommitted changes leave the commit open."""
    if git("status", "--porcelain", "--untracked-files=no"):
        print("found uncommitted changes, expected none: the record names the commit that passed", file=sys.stderr)
        return 1
    commit, started = git("rev-parse", "HEAD"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "long", f"--junitxml={report}", *(words or ["-n", "auto"])]
        if code := subprocess.run(command, cwd=TESTS.parent, check=False).returncode:
            return code
        PASSED.write_text(record_text(report.read_text(), date.today(), commit, time.monotonic() - started))
    print(last_line(PASSED.read_text()))
    return 0


def main(words: list[str]) -> int:
    """The command."""
    if words == ["--last"] and not PASSED.exists():
        print("long tests: no run has passed yet, see python tests/long_tests.py")
        return 0
    if words == ["--last"]:
        commit = tomllib.loads(PASSED.read_text())["commit"]
        print(last_line(PASSED.read_text(), since=git("rev-list", "--count", f"{commit}..HEAD")))
        return 0
    return run(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
