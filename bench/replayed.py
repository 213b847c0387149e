"""Bars of `serve --requests`: `python bench/replayed.py [--traces DIR] [--million] [--rows FILE]`. DIR, FILE: real ones, read where they lie.

Scheduler against step-by-step references, Little's law, the formula against the replay, hits against a plain LRU, the grid of step times against
`step_time`, seconds and memory. Expectations: docs/notebook/2026-11-28-replay-expected.md; last results: 2026-11-29-formula-and-replay-found.md,
2026-11-29-long-prompts-found.md.
"""

from __future__ import annotations

import argparse
import csv
import random
import resource
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.out_of_sight import cookbook_rows
from dysharp.costs.machine import machine_of
from dysharp.measured.serving.setting import setting_of
from dysharp.model.batch import StepBatch
from dysharp.model.formats import formats_of
from dysharp.serving.engine import engine_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.replay.fleet import TierSize, acceptance_of, replay
from dysharp.serving.replay.prefixes import PrefixCache
from dysharp.serving.replay.prices import StepPrices
from dysharp.serving.replay.request import Request
from dysharp.serving.replay.requests import Requests, requests_of
from dysharp.serving.search import ServePoint, search
from dysharp.serving.step import step_time
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_whole
from tests.serving.replay.cases import CASES, little, plain_lru, same_times

FEWEST = 600
"""Requests of a point: of few users a mean over 30 rounds is that of 30 drawn lengths (chosen after the first run was seen)."""
RATIO = 0.2
SPREAD = ((1 - RATIO) / (1 + RATIO)) ** 2 / 3
"""Shortest over longest length, and what `Scenario` says of it."""
SHAPES = (("qwen3-30b", "tp=1"), ("deepseek-v3", "dp=8,ep=8"), ("gpt-oss-120b", "tp=2"))


SEARCHED = (("qwen3-30b", "hw-dgx-h100", 8), ("qwen3-235b", "hw-dgx-b200", 8), ("deepseek-v3", "hw-dgx-h200-x2", 16))
LENGTHS = ((1024, 256), (4096, 1024), (1024, 1024), (8192, 128), (20000, 64), (20000, 512))
ENGINES = ("vllm", "sglang", "trtllm")


def searched(most: int, spread: float = 0.0) -> list[ServePoint]:
    """All points of all searches whose ten prompts of each user are at most so many requests."""
    found = list[ServePoint]()
    for (model, cluster, gpus), (prompt, answer), engine in product(SEARCHED, LENGTHS, ENGINES):
        start = Replica(load_whole(model), formats_of("fp8"), serve_layout_of("tp=1"), machine_of(load_cluster(cluster), "serving"))
        found += search(start, engine_of(engine), Scenario(1.0, prompt, answer, spread=spread), gpus)[0]
    return [point for point in found if point.scenario.concurrency * 10 <= most]


def says(name: str, errors: np.ndarray) -> str:
    """Median and 90th percentile of absolute differences, median with its sign."""
    if not len(errors):
        return f"{name}: no point"
    size = np.abs(errors)
    return f"{name} {np.median(size):.1%}, 90 % within {np.percentile(size, 90):.0%}, sign {np.median(errors):+.1%}"


def replica_of(model: str = "qwen3-30b", layout: str = "tp=2") -> Replica:
    """A model in FP8 on H200."""
    return Replica(load_whole(model), formats_of("fp8"), serve_layout_of(layout), machine_of(load_cluster("hw-dgx-h200"), "serving"))


def references() -> None:
    """Tiny cases, each rule once and drawn ones."""
    wrong = [name for name, case in CASES.items() if not same_times(case)]
    print(f"scheduler: {len(CASES) - len(wrong)} of {len(CASES)} cases as the step-by-step reference; differ: {wrong or 'none'}")


def by_little() -> None:
    """Requests in the system against rate times time in the system."""
    done = replay(replica_of(), engine_of("vllm"), requests_of("rate=12,isl=1000,osl=200,spread=1,n=20000"))
    for name, (inside, law) in {"whole run": little(done), "measured part": little(done, measured=True)}.items():
        print(f"Little's law, {name}: {inside:.2f} requests inside, rate x time {law:.2f} ({inside / law - 1:+.2%})")


def agreement(points: int, seed: int) -> None:
    """The formula beside the replay on points drawn at random from searches."""
    drawn = random.Random(seed).sample([p for p in searched(6000, SPREAD) if p.replica.layout.pp == 1], points)
    errors = []
    for point in drawn:
        asked = point.scenario
        text = f"users={asked.concurrency:g},isl={asked.isl:g},osl={asked.osl:g},ratio={RATIO},n={max(FEWEST, int(asked.concurrency) * 30)}"
        ran = replay(point.replica, point.table.engine.together(point.replica.layout.dp), requests_of(text), cap=point.memory.requests)
        errors.append((point.served.rate / ran.rate - 1, point.served.tpot / ran.tpot.mean - 1, point.served.ttft / ran.ttft.mean - 1))
    found = np.array(errors)
    one = np.array([point.replica.layout.dp == 1 for point in drawn])
    for words, part in (("all layouts", slice(None)), ("one attention group", one), ("several groups", ~one)):
        named = "; ".join(says(name, found[part, i]) for i, name in enumerate(("rate", "TPOT", "TTFT")))
        print(f"formula against replay, {words}, {len(found[part])} points: {named}")


def hits(folder: Path) -> None:
    """The cache beside a plain LRU, and reuse without a limit."""
    for name in ("conversation", "synthetic"):
        file = folder / f"mooncake_{name}.jsonl.gz"
        if not file.exists():
            print(f"{file.name}: absent")
            continue
        traced = [one.hashes for one in requests_of(str(file)).rows]
        for capacity in (2_000, 20_000, 100_000, 1 << 40):
            cache = PrefixCache(capacity)
            own = sum(cache.touch(one) for one in traced)
            blocks = sum(map(len, traced))
            print(f"{name}, {capacity:,} blocks: {own:,} of {blocks:,} hit ({own / blocks:.1%}), plain LRU {plain_lru(traced, capacity):,}")


def grid(seed: int) -> None:
    """Steps on the grid beside `step_time`."""
    draw, errors = random.Random(seed), []
    for model, layout in SHAPES:
        prices = StepPrices(replica_of(model, layout), engine_of("vllm"))
        for _ in range(70):
            decodes, context, tokens = int(2 ** draw.uniform(0, 9)), 2 ** draw.uniform(7, 15), draw.choice((0, int(2 ** draw.uniform(6, 13))))
            past = draw.choice((0.0, 2 ** draw.uniform(8, 15)))
            new = min(float(tokens), 2 ** draw.uniform(6, 13))
            batch = StepBatch(decodes=decodes, context=context, prompts=tokens, seen=past + new / 2, past=past)
            if not tokens:
                batch = StepBatch(decodes=decodes, context=context)
            exact = step_time(prices.replica, batch, tokens / new if tokens else 0.0).device
            errors.append(prices.device(decodes, context, tokens, new, past) / exact - 1)
    print(f"grid against step_time, {len(errors)} shapes: {says('device time', np.array(errors))}")


def speed(count: int) -> None:
    """Seconds of one core and the peak of memory."""
    asked = requests_of(f"rate=22,isl=1155,osl=211,spread=1,n={count}")
    begin = time.process_time()
    done = replay(replica_of(), engine_of("vllm"), asked)
    took, peak = time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{count:,} requests: {took:.1f} s of one core, {peak:.2f} GiB at most; {done.steps:,} steps, busy {done.busy:.0%} of the time")


MACHINES = ("MI300X", "B200", "H100")


def published(file: Path) -> None:
    """SGLang's runs of its cookbook beside their replay."""
    errors, text = [], file.read_text(encoding="utf-8")
    for row, run in zip(csv.DictReader(text.splitlines()), cookbook_rows(text), strict=True):
        setting = setting_of(run)
        asked = f"users={row['concurrency']},isl={row['isl_mean']},osl={row['osl_mean']},ratio=0,n={row['requests']}"
        accepted = float(row["accept_length"] or 1)
        done = replay(setting.replica, setting.engine, requests_of(asked), acceptance=acceptance_of(3 * (accepted > 1), accepted))
        said = np.array([done.tpot.p50, done.tpot.p99, done.ttft.p50]) / 1e3
        measured = np.array([float(row[key]) for key in ("tpot_median_ms", "tpot_p99_ms", "ttft_median_ms")])
        errors.append((row["hardware"], *(said / measured - 1), said[1] / said[0] / (measured[1] / measured[0])))
        print(f"{row['id']} {row['hardware']} {run.model} {setting.replica.layout.name}, {row['concurrency']} users: " + ", ".join(
            f"{what} {a:.1f} (measured {b:.1f})" for what, a, b in zip(("TPOT", "P99", "TTFT"), said, measured, strict=True)))  # fmt: skip
    for words in ("all", *MACHINES):
        part = np.array([one[1:] for one in errors if words in ("all", one[0])])
        print(f"{words}, {len(part)} runs: " + "; ".join(says(name, part[:, i]) for i, name in enumerate(("TPOT p50", "TPOT P99", "TTFT p50"))) +
              f"; P99 over median, predicted over measured: {np.median(part[:, 3]):.2f}")  # fmt: skip


PREFIXES = (1_000, 64_000)


def pairs() -> None:
    """A prefix that is recomputed, in HBM, in host memory: a lone request on one H20."""
    model = replace(load_whole("qwen3-30b"), context=0)
    replica = Replica(model, formats_of("bf16"), serve_layout_of("tp=1"), machine_of(load_cluster("hw-hgx-h20"), "serving"))
    for prefix in PREFIXES:
        names = [tuple((kind, block) for block in range(prefix // 16)) for kind in range(8)]
        again = [Request(200.0 * i, prefix + 16, 2, names[kind]) for i, kind in enumerate((0, 0, *range(1, 8), 0))]
        done = replay(replica, engine_of("vllm"), Requests(tuple(again), "pairs", 16), tiers=[TierSize("host", 500, 54)])
        ttft, text = done.columns["ttft"][np.argsort(done.columns["number"])] / 1e3, engine_of("vllm").token_us * (prefix + 16) / 1e3
        print(f"prefix of {prefix:,}: recomputed {ttft[0]:,.0f} ms, in HBM {ttft[1]:.0f}, from host {ttft[-1]:.0f}; {text:.0f} of each: text")


def main() -> None:
    """Print every bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path("../shared/data/formats/requests"))
    parser.add_argument("--points", type=int, default=240)
    parser.add_argument("--seed", type=int, default=59)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--rows", type=Path, help="only these runs of SGLang")
    parser.add_argument("--pairs", action="store_true", help="only first tokens behind a cached prefix")
    asked = parser.parse_args()
    if asked.pairs:
        pairs()
        return
    if asked.rows:
        published(asked.rows)
        return
    references()
    by_little()
    hits(asked.traces)
    grid(asked.seed)
    speed(100_000)
    agreement(asked.points, asked.seed)
    if asked.million:
        speed(1_000_000)


if __name__ == "__main__":
    main()
