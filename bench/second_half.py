"""The second half of the house (systems, columns, options, words): every bar of that work with its number, from a clean clone.

    python bench/second_half.py [--paired OTHER]

Exits with 1 if a bar is missed. `--paired` times this checkout against another one as well (bench/paired.py). Sentences and names are read by a
person: `python bench/sentences.py --seed N` draws them, bench/sentences.csv has what a reader found in each draw.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from house import ROOT, counts
from house_runs import runs
from one_layer import Line, recorded, report

MOST = {
    "token lines of the package": 52_500,
    "lines of the package": 77_000,
    "public functions and classes": 2_400,
    "class names with several meanings": 40,
    "words of docs, without the notebook": 70_000,
}
"""Most of what `house.counts` counts."""
TOKENS_PER_LINE = 12.64
"""Of commit 1a3ddb46, where this work began."""
TOYS = {"toy_push": 36, "toy_phases": 57, "toy_gather": 37, "toy_tensor": 40}
"""Lines of the systems that the docs show, at commit 28e9a222."""
READ = ROOT / "bench" / "sentences.csv"
READ_MOST = {"sentences": 3, "names": 3}
PAIRED_MOST = 1.03


def _house() -> Iterator[Line]:
    size = counts(ROOT)
    for what, bar in MOST.items():
        yield Line(what, f"at most {bar:,}", f"{size[what]:,}", size[what] <= bar)
    dense = size["tokens per token line"]
    yield Line("tokens per token line", f"at most {TOKENS_PER_LINE}", f"{dense:.2f}", round(dense, 2) <= TOKENS_PER_LINE)
    files = runs(ROOT)["compare of two systems"]["files"]
    yield Line("files from command to number: compare", "at most 65", f"{files}", files <= 65)


def _toys() -> Iterator[Line]:
    for name, before in TOYS.items():
        now = len((ROOT / "examples" / f"{name}.py").read_text().splitlines())
        yield Line(f"lines of examples/{name}.py", f"below {before}", f"{now}", now < before)


def _read() -> Iterator[Line]:
    """The last draw of each kind that a reader has judged."""
    rows = list(csv.DictReader(READ.read_text().splitlines())) if READ.exists() else []
    for kind, bar in READ_MOST.items():
        of_kind = [row for row in rows if row["kind"] == kind]
        if not of_kind:
            yield Line(f"{kind} that must be read twice", f"at most {bar}", "no draw is judged", False)
            continue
        last = of_kind[-1]
        found = f"{last['twice']} of {last['drawn']} (seed {last['seed']})"
        yield Line(f"{kind} that must be read twice", f"at most {bar}", found, int(last["twice"]) <= bar)


def _paired(other: Path | None) -> Iterator[Line]:
    what, bar = "paired bench: longest part", f"at most {PAIRED_MOST}"
    if other is None:
        yield Line(what, bar, "not timed; --paired OTHER does", None)
        return
    own = [sys.executable, str(ROOT / "bench" / "paired.py"), str(other), "--runs", "7"]
    text = subprocess.run(own, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    print(text)
    ratios = [float(one) for line in text.splitlines() if re.search(r"plan|engine|total", line) for one in re.findall(r"\d\.\d{3}\b", line)[-1:]]
    yield Line(what, bar, f"{max(ratios):.3f}", max(ratios) <= PAIRED_MOST)


def lines(other: Path | None) -> Iterator[Line]:
    """All bars."""
    yield from recorded()
    yield from _house()
    yield from _read()
    yield from _toys()
    yield from _paired(other)


def main() -> None:
    """Print the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paired", type=Path, help="root of another checkout")
    report(lines(parser.parse_args().paired))


if __name__ == "__main__":
    main()
