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


def exponent(rows: list[dict[str, Any]], x: str, y: str) -> float:
    """Slope of log(seconds) over log(size): 1 is linear."""
    xs, ys = [math.log(r[x]) for r in rows], [math.log(r["wall_s"][y]) for r in rows]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - mx) * (b - my) for a, b in zip(xs, ys, strict=True)) / sum((a - mx) ** 2 for a in xs)


def first_compare() -> dict[str, float]:
    """Whole-process seconds of the default `compare` with an empty kernel cache, then with a filled one."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "NUMBA_CACHE_DIR": cache}
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", "from dysharp.cli import main; main()", "compare", "--json"], env=env, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begin)
    return {"first_s": seconds[0], "later_s": seconds[1]}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n{'system':14s} {'model':5s} {'GPUs':>4s} {'tokens':>6s} {'events':>10s}", end="")
    print(f" {'engine s':>9s} {'total s':>8s} {'peak MB':>8s} {'Mevents/s':>9s}")
    for r in rows:
        w = r["wall_s"]
        print(
            f"{r['system']:14s} {r['model']:5s} {r['gpus']:4d} {r['tokens_per_gpu']:6d} {r['n_events']:10d} {w['engine']:9.2f} "
            f"{w['total']:8.2f} {r['peak_rss_mb']:8.0f} {r['n_events'] / w['engine'] / 1e6:9.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    groups = {"quick": QUICK} if parser.parse_args().quick else {"headline": HEADLINE, "tokens": TOKENS, "gpus": GPUS, "large": LARGE}
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    result: dict[str, Any] = {"machine": machine}
    result["compare"] = first_compare()
    print(f"default compare: first {result['compare']['first_s']:.1f} s (compilation included), later {result['compare']['later_s']:.1f} s")
    for name, points in groups.items():
        result[name] = [measure(p) for p in points]
        show(name, result[name])
    if "tokens" in groups:
        by_tokens, by_gpus = exponent(result["tokens"], "tokens_per_gpu", "engine"), exponent(result["gpus"], "gpus", "engine")
        result["growth"] = {"tokens": by_tokens, "gpus": by_gpus}
        print(f"\nengine time grows as tokens^{by_tokens:.2f} and GPUs^{by_gpus:.2f}")
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
