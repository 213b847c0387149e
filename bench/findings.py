"""Findings from outside: every finding with cause, answer and test, and every bar of that work, from a clean clone.

    python bench/findings.py [--tests] [--bars]

Without options: the table of `bench/findings/*.csv`, and whether each row has what it needs. `--tests` runs the tests that the rows name; `--bars`
runs the attack, the interruptions, the questions and the mutants (hours on two cores). Exits with 1 if anything is open or fails.
What was expected of them stands in docs/notebook/2026-11-30-findings-closed-expected.md, what came out in 2026-11-30-findings-closed-found.md.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from house import ROOT

FOLDER = Path(__file__).with_name("findings")
STATES = ("mended", "answered", "later", "open")
"""mended: a test holds it. answered: left, with a reason. later: part of a larger issue, which is named. open: neither."""
BARS = (
    ("10,000 malformed inputs: traceback, hang over 20 s, lost file", "0", ("bench/attack.py", "--count", "10000")),
    ("50 interruptions of each long command, 20 kills: other results", "0", ("bench/interrupt.py", "--signals", "50", "--kills", "20")),
    ("foreign study folders of ten shapes: files touched outside", "0", ("-m", "pytest", "-q", "tests/runs/test_foreign_folders.py")),
    ("400 questions: wrong direction; notes", "0; at most 2 %", ("bench/directions.py", "--count", "400")),
    ("300 fresh mutants noticed", "at least 88 %", ("bench/mutants.py", "--seed", "52", "--count", "300")),
)  # fmt: skip


class Finding(NamedTuple):
    """A row of a review."""

    id: str
    finding: str
    state: str
    cause: str
    answer: str
    test: str

    def lacks(self) -> str:
        """What a row of this state needs and has not; "" if nothing."""
        if self.state not in STATES or self.state == "open":
            return f"state {self.state or 'empty'}"
        if self.state == "mended" and not (self.test and (ROOT / self.test.split("::")[0]).exists()):
            return f"no such test: {self.test or 'none named'}"
        return "" if self.answer else "no answer"


def findings() -> Iterator[tuple[str, Finding]]:
    """(review, row) of every file."""
    for path in sorted(FOLDER.glob("*.csv")):
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
            yield path.stem, Finding(**row)


def _table() -> int:
    lacking = 0
    counts = dict.fromkeys(STATES, 0)
    for review, row in findings():
        counts[row.state] = counts.get(row.state, 0) + 1
        lacks = row.lacks()
        lacking += bool(lacks)
        print(f"{'open' if lacks else row.state:<9}{review:<11}{row.id:<12}{row.finding}")
        print(f"{'':<32}{lacks or ' | '.join(text for text in (row.cause, row.answer, row.test) if text)}")
    print(f"{sum(counts.values())} findings: " + ", ".join(f"{number} {state}" for state, number in counts.items()) + f"; {lacking} lack something")
    return lacking


def _passes(command: tuple[str, ...]) -> bool:
    print("$ python " + " ".join(command), flush=True)
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode == 0


def main() -> None:
    """Print the table; run what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", action="store_true", help="run the tests that rows name")
    parser.add_argument("--bars", action="store_true", help="run attack, interruptions, questions, mutants")
    args = parser.parse_args()
    bad = _table()
    if args.tests:
        named = sorted({row.test for _, row in findings() if row.state == "mended" and not row.lacks()})
        bad += bool(named) and not _passes(("-m", "pytest", "-q", "-m", "slow or not slow", *named))
    for what, bar, command in BARS if args.bars else ():
        print(f"\n{what}: {bar}")
        bad += not _passes(command)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
