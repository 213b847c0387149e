"""The formula of `serve` beside the run step by step, on points drawn at random from searches over models, machines, engines and lengths.

    python bench/serve_loop.py [--points 200] [--seed 31] [--ratio 0.8] [--rounds 10] [--requests 20000]

Runs step by step are judged against measurements (`dysharp validate`); the formula is what `serve` searches with.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time

import numpy as np

from dysharp.costs.machine import machine_of
from dysharp.model.formats import formats_of
from dysharp.serving.engine import engine_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.loop import run_closed_loop
from dysharp.serving.search import ServePoint, search
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_whole

CASES = (("qwen3-30b", "hw-dgx-h100", 8), ("qwen3-235b", "hw-dgx-b200", 8), ("deepseek-v3", "hw-dgx-h200-x2", 16))
LENGTHS = ((1024, 256), (4096, 1024), (1024, 1024), (8192, 128), (20000, 64), (20000, 512))
ENGINES = ("vllm", "sglang", "trtllm")


def searched(most: int, spread: float = 0.0) -> list[ServePoint]:
    """All points of all searches whose ten prompts of each user are at most so many requests."""
    found = list[ServePoint]()
    for (model, cluster, gpus), (prompt, answer), engine in itertools.product(CASES, LENGTHS, ENGINES):
        start = Replica(load_whole(model), formats_of("fp8"), serve_layout_of("tp=1"), machine_of(load_cluster(cluster), "serving"))
        found += search(start, engine_of(engine), Scenario(1.0, prompt, answer, spread=spread), gpus)[0]
    return [point for point in found if point.scenario.concurrency * 10 <= most]


def main() -> None:
    """Prints differences of the formula from the run by share of prompts, and where the rate falls with more users."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--ratio", type=float, default=0.8, help="shortest over longest prompt and answer of a run")
    parser.add_argument("--rounds", type=int, default=10, help="prompts of each user of a run")
    parser.add_argument("--requests", type=int, default=20_000, help="points with more requests are left out, whatever their values")
    asked = parser.parse_args()
    begin = time.perf_counter()
    points = searched(asked.requests)
    searches = len(CASES) * len(LENGTHS) * len(ENGINES)
    print(f"{len(points)} points of {searches} searches ({time.perf_counter() - begin:.0f} s); rate falls with more users at {falls(points)}")
    drawn = random.Random(asked.seed).sample(points, asked.points)
    errors = np.array([errors_of(point, asked.ratio, asked.rounds) for point in drawn])
    for low, high in ((0.0, 2.0), (0.0, 0.4), (0.4, 0.7), (0.7, 2.0)):
        inside = (errors[:, 0] >= low) & (errors[:, 0] < high)
        words = "all" if high - low == 2.0 else f"prompts take {low:.0%} to {min(high, 1.0):.0%}"
        print(f"{words}: {inside.sum()} points; " + "; ".join(says(name, errors[inside, i]) for i, name in ((1, "rate"), (2, "TPOT"), (3, "TTFT"))))


def falls(points: list[ServePoint]) -> str:
    """How many pairs of neighbours in users lose more than 1 % of requests per second, and the largest loss."""
    pairs = [(a, b) for a, b in itertools.pairwise(points) if a.table is b.table]
    lost = [1 - b.served.rate / a.served.rate for a, b in pairs]
    return f"{sum(loss > 0.01 for loss in lost)} of {len(pairs)} pairs, largest loss {max(lost):.0%}"


def errors_of(point: ServePoint, ratio: float, rounds: int) -> tuple[float, float, float, float]:
    """(share of prompts of the run, relative differences of rate, TPOT and TTFT)."""
    ran = run_closed_loop(point.table, point.scenario, point.memory.requests, ratio=ratio, rounds=rounds)
    said = point.served
    return ran.prompt_share, said.rate / ran.rate - 1, said.tpot / ran.tpot - 1, said.ttft / ran.ttft - 1


def says(name: str, errors: np.ndarray) -> str:
    """Median and 90th percentile of absolute differences, median with its sign."""
    if not len(errors):
        return f"{name}: no point"
    size = np.abs(errors)
    return f"{name} {np.median(size):.1%}, 90 % within {np.percentile(size, 90):.0%}, sign {np.median(errors):+.1%}"


if __name__ == "__main__":
    main()
