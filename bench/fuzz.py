"""Runs generated inputs through every reader and option of the command line: `python bench/fuzz.py --count 10000 --seed 1`.

Prints one line per kind of end, and every finding with what repeats it. Exit code 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections import Counter

from dysharp.cli import main
from tests.fuzz.fuzz import run_inputs
from tests.fuzz.fuzz_inputs import RUN, inputs


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", default="", help="only inputs of this family")
    parser.add_argument("--keep", default="", help="folder for the files of findings")
    asked = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    load_slow_modules()
    ends: Counter[str] = Counter()
    found: Counter[str] = Counter()
    begun = time.monotonic()
    chosen = (item for item in inputs(asked.count, asked.seed) if asked.family in item.family)
    for number, outcome in enumerate(run_inputs(main, chosen)):
        ends[f"exit {outcome.code}"] += 1
        for finding in outcome.findings:
            found[finding.kind] += 1
            print(f"{finding.kind} [{finding.input.family}] {[a[:80] for a in finding.input.args]}\n    {finding.text}", flush=True)
            if asked.keep:
                folder = os.path.join(asked.keep, str(number))
                os.makedirs(folder, exist_ok=True)
                for name, data in finding.input.files.items():
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(data)
    print(f"{sum(ends.values())} inputs in {time.monotonic() - begun:.0f} s, seed {asked.seed}")
    print("  ".join(f"{end}: {n}" for end, n in sorted(ends.items())))
    print("findings: " + ("  ".join(f"{kind}: {n}" for kind, n in sorted(found.items())) or "none"))
    return 1 if found else 0


def load_slow_modules() -> None:
    """Import and compile before the first fork, so that an input costs milliseconds."""
    import matplotlib.figure  # noqa: F401
    import rich.progress
    import rich.table  # noqa: F401

    import dysharp.api
    import dysharp.measured.validation
    import dysharp.show.validation_page
    import dysharp.workload.importers  # noqa: F401

    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        os.chdir(folder)
        for args in ([*RUN, "--model", "S-8"], ["network", "--k", "2", "--load", "0.1", "--period", "50", "--warm-up", "1"]):
            with contextlib.suppress(SystemExit):
                main(args)
        os.chdir(here)


if __name__ == "__main__":
    sys.exit(run())
