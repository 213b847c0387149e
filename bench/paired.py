"""Speed and memory of this checkout against another one, run in turn: `python bench/paired.py OTHER [--runs 5]`.

OTHER is the root of another checkout of the repository. Each case runs in a fresh process, this checkout and the other in turn (A B A B ...),
so that a machine whose speed drifts does not favour one of them. Printed: medians of both and the median of the ratios, pair by pair.
Kernels are compiled once before the first pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CASES = {
    "dysharp, L-8 x 2048": "run dysharp --model L-8 --tokens 2048",
    "deepep, L-8 x 2048": "run deepep --model L-8 --tokens 2048",
    "comet, L-8 x 1024": "run comet --model L-8 --tokens 1024",
    "dysharp, S-8 x 64, packet level": "run dysharp --model S-8 --tokens 64 --fidelity packet",
}
FIELDS = ("plan", "engine", "total")


def row(root: Path, command: str) -> dict[str, float]:
    """Seconds of the steps and peak memory (MB) of one run of the checkout at `root`."""
    line = [sys.executable, "-m", "dysharp", *command.split(), "--json"]
    done = subprocess.run(line, env=os.environ | {"PYTHONPATH": str(root)}, cwd=root, capture_output=True, text=True, check=True)
    values = json.loads(done.stdout)
    return {name: values["wall_s"][name] for name in FIELDS} | {"rss_mb": values["peak_rss_mb"]}


def main() -> None:
    """Print one line per case and field."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("--runs", type=int, default=5, help="pairs per case (default: 5)")
    arguments = parser.parse_args()
    if not (arguments.other / "dysharp").is_dir():
        parser.error(f"{arguments.other}: found no folder dysharp, expected the root of a checkout")
    print(f"{'case':34}{'field':>8}{'this':>10}{'other':>10}{'ratio':>8}")
    for name, command in CASES.items():
        for root in (HERE, arguments.other):
            row(root, command)
        pairs = [(row(HERE, command), row(arguments.other, command)) for _ in range(arguments.runs)]
        for field in (*FIELDS, "rss_mb"):
            this, other = (statistics.median(pair[side][field] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(a[field] / b[field] for a, b in pairs)
            print(f"{name:34}{field:>8}{this:10.3f}{other:10.3f}{ratio:8.3f}", flush=True)


if __name__ == "__main__":
    main()
