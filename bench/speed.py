"""Speed and memory of the burst level: every point in a fresh process through the public API, growth as ratios.

    python bench/speed.py                 all points, writes bench/results.json and prints the tables
    python bench/speed.py --quick         S-8 points only

Wall times hold for the machine they were taken on; compare commits by ratios on one machine, alone on it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
HEADLINE = [(s, "L-8", "paper-gh200-nvl32", 32, 8192) for s in ("dysharp", "deepep", "comet", "fusion-only", "nvls", "ideal")]
TOKENS = [("dysharp", "L-8", "paper-gh200-nvl32", 32, t) for t in (1024, 2048, 4096, 8192)]
GPUS = [("dysharp", "L-8", "paper-nvl72", g, 4096) for g in (8, 16, 32, 64, 72)]
LARGE = [
    ("dysharp", "L-8", "paper-gh200-nvl64", 64, 16384),
    ("deepep", "L-8", "paper-gh200-nvl64", 64, 16384),
    ("dysharp", "L-8", "paper-nvl72", 72, 8192),
]
QUICK = [(s, "S-8", "paper-gh200-nvl32", 32, 1024) for s in ("dysharp", "deepep")]

POINT = """
import json, sys
import dysharp
system, model, cluster, gpus, tokens = sys.argv[1:]
row = dysharp.run(system, model=model, cluster=cluster, gpus=int(gpus), tokens=int(tokens), routing="uniform").to_dict()
fields = "system model cluster gpus tokens_per_gpu time_us n_ops n_events wall_s compile_s peak_rss_mb digest"
print(json.dumps({k: row[k] for k in fields.split()}))
"""


def measure(point: tuple[str, str, str, int, int]) -> dict[str, Any]:
    """One point in a fresh process. Wall seconds by phase, MB."""
    out = subprocess.run([sys.executable, "-c", POINT, *map(str, point)], capture_output=True, text=True, check=True)
    return dict(json.loads(out.stdout))


def exponent(rows: list[dict[str, Any]], size: str, value: Callable[[dict[str, Any]], float]) -> float:
    """Slope of log(value) over log(size): 1 is linear."""
    xs, ys = [math.log(r[size]) for r in rows], [math.log(value(r)) for r in rows]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - mx) * (b - my) for a, b in zip(xs, ys, strict=True)) / sum((a - mx) ** 2 for a in xs)


def first_compare() -> dict[str, float]:
    """Whole-process seconds of the default `compare` with an empty kernel cache, then with a filled one."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "NUMBA_CACHE_DIR": cache}
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", "dysharp", "compare", "--json"], env=env, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begin)
    return {"first_s": seconds[0], "later_s": seconds[1]}


HEAD = "| system | model | GPUs | tokens per GPU | events | engine s | total s | peak MB | Mevents/s |"


def table(rows: list[dict[str, Any]]) -> str:
    """One line a point, as Markdown."""
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for r in rows:
        w = r["wall_s"]
        speed = f"{w['engine']:.2f} | {w['total']:.2f} | {r['peak_rss_mb']:.0f} | {r['n_events'] / w['engine'] / 1e6:.2f}"
        lines.append(f"| {r['system']} | {r['model']} | {r['gpus']} | {r['tokens_per_gpu']} | {r['n_events']} | {speed} |")
    return "\n".join(lines) + "\n"


def report(result: dict[str, Any]) -> str:
    """All tables of a results file."""
    m, c = result["machine"], result["compare"]
    parts = [f"# Measured\n\n{m['cpu']}, {m['cores']} cores, Python {m['python']}.\n"]
    parts.append(f"Default `dysharp compare`: first {c['first_s']:.1f} s (compilation included), later {c['later_s']:.1f} s.\n")
    for name in ("quick", "headline", "tokens", "gpus", "large"):
        if name in result:
            parts.append(f"## {name}\n\n{table(result[name])}")
    for axis, size in (("tokens", "tokens_per_gpu"), ("gpus", "gpus")):
        if axis in result:
            by_time = exponent(result[axis], size, lambda r: r["wall_s"]["engine"])
            by_events = exponent(result[axis], size, lambda r: r["n_events"])
            parts.append(f"Engine time grows as {size}^{by_time:.2f}, events as {size}^{by_events:.2f}.\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="S-8 points only, nothing is written")
    parser.add_argument("--tables", action="store_true", help="only write results.md anew from results.json")
    args = parser.parse_args()
    if args.tables:
        RESULTS.with_suffix(".md").write_text(report(json.loads(RESULTS.read_text())))
        return
    groups = {"quick": QUICK} if args.quick else {"headline": HEADLINE, "tokens": TOKENS, "gpus": GPUS, "large": LARGE}
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    result: dict[str, Any] = {"machine": machine, "compare": first_compare()}
    for name, points in groups.items():
        result[name] = []
        for point in points:
            result[name].append(measure(point))
            print(table(result[name][-1:]).splitlines()[-1], flush=True)
    print(report(result))
    if not args.quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(report(result))


if __name__ == "__main__":
    main()
