"""What an event of the burst loop costs: `python bench/events.py [--runs 10]`.

A copy of the package handles each delivery of a store twice: the first time the delivery only goes back into its ring, due at once.
So it has one more event per copy that is stored, and the same Trace. Both run in turn, each time in a fresh process.
Printed: the least CPU seconds of the loop of each, and their ratio. Leaving the delivery's event out cannot save more than the added one costs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LOOP = "dysharp/engine/burst/loop.py"
CHANGES = {
    "import member_due": "import member_due, member_schedule",
    "    LEAF_UP,\n": "    LEAF_UP,\n    MEMBER_WAITS,\n",
    "                deliver(filled, now, ops, members, links, clock)\n": (
        "                if members.mem[filled, MEMBER_WAITS] == 0:\n"
        "                    members.mem[filled, MEMBER_WAITS] = 1\n"
        "                    member_schedule(leaf - leaf_rings, filled, now, members, clock)\n"
        "                    filled = -1\n"
        "                else:\n"
        "                    deliver(filled, now, ops, members, links, clock)\n"
    ),
}
POINT = """
import json, sys, time, types
import dysharp, dysharp.engine.burst.run as burst
burst.time = types.SimpleNamespace(perf_counter=time.process_time)
model, tokens, systems = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def once(system):
    row = dysharp.run(system, model=model, cluster="paper-gh200-nvl32", tokens=tokens, routing="uniform").to_dict()
    return row["wall_s"]["engine"], row["digest"]
print(json.dumps({system: min(once(system) for _ in range(3)) for system in systems}))
"""


def doubled(folder: Path) -> Path:
    """A copy of the package in `folder` with one more event per delivery. Raises SystemExit if the loop has changed."""
    shutil.copytree(HERE / "dysharp", folder / "dysharp", ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / LOOP).read_text()
    for was, becomes in CHANGES.items():
        if text.count(was) != 1:
            raise SystemExit(f"{LOOP}: found {text.count(was)} times {was.strip()!r}, expected it once: mend CHANGES")
        text = text.replace(was, becomes)
    (folder / LOOP).write_text(text)
    return folder


def measure(root: Path, arguments: list[str]) -> dict[str, tuple[float, str]]:
    """CPU seconds of the loop and the digest per system, with the package at `root`."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", POINT, *arguments], env=environment, cwd=root, capture_output=True, text=True, check=True)
    return {system: (seconds, digest) for system, (seconds, digest) in json.loads(done.stdout).items()}


def main() -> None:
    """Print one line per system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="pairs of processes, each runs a system three times (default: 10)")
    parser.add_argument("--systems", nargs="+", default=["deepep", "dysharp", "comet"], help="default: deepep dysharp comet")
    parser.add_argument("--model", default="L-8", help="default: L-8")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per GPU (default: 1024)")
    options = parser.parse_args()
    point = [options.model, str(options.tokens), *options.systems]
    with tempfile.TemporaryDirectory() as folder:
        roots = (HERE, doubled(Path(folder)))
        for root in roots:
            measure(root, point)  # compiles the kernels
        pairs = [[measure(root, point) for root in roots] for _ in range(options.runs)]
    print(f"{'system':14}{'as it is, s':>14}{'one more, s':>14}{'ratio':>8}")
    for system in options.systems:
        least = [min(pair[side][system] for pair in pairs) for side in (0, 1)]
        if least[0][1] != least[1][1]:
            raise SystemExit(f"{system}: the Trace changed, so the copy did something else")
        print(f"{system:14}{least[0][0]:14.4f}{least[1][0]:14.4f}{least[1][0] / least[0][0]:8.3f}")


if __name__ == "__main__":
    main()
