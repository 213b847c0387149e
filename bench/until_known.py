"""Until the answer is known: drawn layers, stopped (`precision_of_time`) against whole.

    python bench/until_known.py [--points N] [--seed S] [--precision P] [--csv FILE] [--directions N] [--cost] [--earlier FILE] [--overlapped]

A line for each point: where it stopped, its error, its interval, processor seconds of both runs. Then the bars of
docs/notebook/2026-11-28-until-known-expected.md; the exit code says whether they hold. `--directions`: so many of the points also with other links
and tokens, stopped and whole. `--cost`: processor time against tokens. `--earlier`: the points of `bench/leading.py` beside the errors of leading
tokens (docs/notebook/2026-11-23-leading-tokens.csv), whole runs from that file. `--overlapped`: what a line would say where GEMMs overlap transfers.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from quick import request

import dysharp
from dysharp.base.errors import DysharpError
from dysharp.runs.known import T90, first_workload
from dysharp.runs.request import Workload
from dysharp.runs.run import _Runs, prepare
from dysharp.systems import get_system

PAPER = ("deepep", "nvls", "deepep-ll", "dysharp-basic", "megatron-a2a", "dysharp", "comet", "fusion-only", "dysharp-comet", "moe-hub")
REAL = (
    "deepep", "deepep-v2", "deepep-ll", "hybrid-ep", "megatron-a2a", "megatron-ag", "trtllm-a2a", "nccl-ep", "mori", "flashinfer", "uccl-ep",
    "megamoe", "ccfuser", "tutel", "comet-flux",
)  # fmt: skip
MODELS = {
    "paper": ("S-8", "M-8", "L-8", "M-16", "paper-mixtral-8x7b", "paper-qwen3-235b", "deepseek-v2-lite"),
    "hw": ("deepseek-v3", "qwen3-235b", "mixtral-8x7b", "gpt-oss-120b", "glm-4.5-air", "minimax-m2.5", "moonlight-16b"),
}
CLUSTERS = {
    "paper": (("paper-dgx-h100", 8), ("paper-gh200-nvl32", 16), ("paper-gh200-nvl32", 32), ("paper-dgx-h100-x2", 16)),
    "hw": (("hw-dgx-h100", 8), ("hw-dgx-b200", 8), ("hw-dgx-h200", 8), ("hw-gb200-nvl72", 16), ("hw-gb200-nvl72", 32), ("hw-dgx-h100-x2", 16)),
}
TOKENS = {8: (2048, 3072, 4096, 6144, 8192, 12288), 16: (2048, 3072, 4096), 32: (1024, 2048)}
ROUTINGS = (None, "uniform", "lognormal:0.3", "lognormal:0.65", "powerlaw:0.5")
CHANGES = (("link_GBps", 2.0, -1), ("link_GBps", 0.5, 1), ("tokens", 1.25, 1))
WITHIN = ((0.005, 0.9), (0.015, 1.0))
"""(error, share of all points that are within it)."""
COVERED = 0.85
"""Share of the stopped points whose time is inside the interval, which is meant for nine of ten."""
Point = dict[str, Any]


def points(seed: int, count: int) -> Iterator[Point]:
    """Drawn layers; a system that does not run on a cluster is drawn again."""
    draw = random.Random(seed)
    while count:
        family = draw.choice(("paper", "hw"))
        cluster, gpus = draw.choice(CLUSTERS[family])
        point: Point = {"system": draw.choice(PAPER if family == "paper" else REAL), "model": draw.choice(MODELS[family]), "cluster": cluster}
        point |= {"gpus": gpus, "tokens": draw.choice(TOKENS[gpus]), "routing": draw.choice(ROUTINGS), "seed": draw.randrange(1000)}
        try:
            dysharp.run(**point | {"tokens": 32})
        except DysharpError:
            continue
        count -= 1
        yield point


def timed(point: Point, **more: Any) -> tuple[dysharp.Row, float]:
    """The Row and its processor seconds, compilation aside."""
    begin = time.process_time()
    row = dysharp.run(**point, **more)
    return row, time.process_time() - begin - row.compile_s


def words(point: Point) -> str:
    """The point on one line."""
    return " ".join(str(value) for value in point.values())


def stopped_against_whole(point: Point, precision: float) -> dict[str, Any]:
    """One point, both ways."""
    row, seconds = timed(point, precision_of_time=precision)
    exact, whole_s = timed(point, exact=True) if row.window else (row, seconds)
    low, high = (row.window["low_us"], row.window["high_us"]) if row.window else (row.time_us, row.time_us)
    return {
        **point, "stopped": row.window.get("tokens", 0), "us": row.layer_us, "whole_us": exact.layer_us, "error": row.layer_us / exact.layer_us - 1,
        "wide": (high - low) / 2 / row.layer_us, "inside": low <= exact.layer_us <= high, "seconds": seconds, "whole_seconds": whole_s,
    }  # fmt: skip


def changed(point: Point, key: str, factor: float) -> Point:
    """The point with other links or tokens."""
    if key == "tokens":
        return point | {"tokens": int(point["tokens"] * factor)}
    rate = dysharp.load_cluster(point["cluster"]).link_bytes_per_us / 1000 * factor
    return point | {"cluster": f"{point['cluster']},{key}={rate:g}"}


def wrong_directions(found: list[dict[str, Any]], count: int, precision: float) -> list[str]:
    """Changes of the first stopped points whose stopped difference has another sign than the whole one, where that is past the precision."""
    wrong = []
    for one in [one for one in found if one["stopped"]][:count]:
        point = {key: one[key] for key in ("system", "model", "cluster", "gpus", "tokens", "routing", "seed")}
        for key, factor, _ in CHANGES:
            other = stopped_against_whole(changed(point, key, factor), precision)
            whole, few = other["whole_us"] / one["whole_us"] - 1, other["us"] / one["us"] - 1
            print(f"  {words(point)}: {key} x {factor:g}: whole {whole:+.2%}, stopped {few:+.2%}", flush=True)
            if whole * few < 0 and max(abs(whole), abs(few)) > precision:
                wrong.append(f"{words(point)}: {key} x {factor:g}")
    return wrong


def cost() -> None:
    """Processor time against tokens per GPU, stopped and whole."""
    for system in ("deepep", "trtllm-a2a"):
        point = {"system": system, "model": "qwen3-235b", "cluster": "hw-dgx-h100", "gpus": 8, "routing": "uniform"}
        for tokens in (4096, 8192, 16384, 32768, 65536, 131072):
            row, seconds = timed(point | {"tokens": tokens}, precision_of_time=0.005)
            whole = f"{timed(point | {'tokens': tokens}, exact=True)[1]:.1f}" if tokens <= 16384 else "-"
            print(f"{system} {tokens}: stopped at {row.window.get('tokens', 'the end')}, {seconds:.1f} s, whole {whole} s", flush=True)


def earlier(file: Path, precision: float) -> None:
    """The points of leading tokens: errors then and now, against whole times of the file where the model has not moved since."""
    with file.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            kept: Mapping[str, str] = {key: line[key] for key in ("system", "model", "cluster")}
            point = {**kept, "gpus": int(line["gpus"]), "tokens": int(line["tokens"]), "routing": line["routing"] or None, "seed": int(line["seed"])}
            one = stopped_against_whole(point, precision)
            now = f"now {one['error']:+.4f}, at {one['stopped'] or 'all'}, {one['seconds']:.1f} s"
            print(f"{words(point)}: then {line['after_error']}, {now}", flush=True)


OVERLAPPED = ("dysharp", "fusion-only", "comet", "moe-hub", "nvls", "dysharp-comet")
LARGE = (("L-8", "paper-gh200-nvl32", 32, 8192), ("S-8", "paper-dgx-h100", 8, 8192), ("paper-qwen3-235b", "paper-gh200-nvl32", 16, 4096))


def overlapped() -> None:
    """Layers whose GEMMs overlap their transfers: the longer of own GEMMs and busiest link for all tokens, and a line through what 1/4 to all of n
    tokens take beside it. Its error, and the interval of the line."""
    errors, wide = [], []
    for model, cluster, gpus, tokens in LARGE:
        for name in OVERLAPPED:
            options, work = prepare({name: get_system(name)}, request(model=model, cluster=cluster, gpus=gpus, tokens=tokens))
            runs = _Runs(get_system(name), options[name], lambda *_: None)

            def block(n: int, runs: _Runs = runs, work: Workload = work) -> tuple[float, float, float, int]:
                part = first_workload(work, n) if n < work.request.tokens else work
                row, free = runs.layer(part), runs.experts(part)
                return row.time_us, row.bound_us, free.time_us if free else 0.0, runs.rows(part.routing, work.request.cluster)

            whole = block(tokens)
            for n in (tokens // 8, tokens // 4, tokens // 2):
                time_us, bound, gemms, rows = (np.array(column) for column in zip(*(block(i * n // 4) for i in range(1, 5)), strict=True))
                link, link_wide = line(rows, bound, whole[3])
                rest, rest_wide = line(rows, time_us - np.maximum(bound, gemms), whole[3])
                us = max(link, whole[2]) + rest
                errors.append(us / whole[0] - 1)
                wide.append(float(np.hypot(link_wide, rest_wide)) / us)
                print(f"{name} {model} {gpus} GPUs, {n} of {tokens} tokens: {errors[-1]:+.2%}, interval {wide[-1]:.2%}", flush=True)
    for most in (0.005, 0.01):
        print(f"within {most:.1%}: {sum(abs(e) <= most for e in errors)} of {len(errors)}; interval as narrow: {sum(w <= most for w in wide)}")
    print(f"largest error {max(map(abs, errors)):.2%}; inside the interval {sum(abs(e) <= w for e, w in zip(errors, wide, strict=True))}")


def line(x: Any, y: Any, at: float) -> tuple[float, float]:
    """y at `at` by least squares, and its prediction interval either way (as in `runs.known`)."""
    far = x - x.mean()
    rate = float(far @ y / (far @ far))
    rest = y - y.mean() - rate * far
    spread = rest @ rest / (len(x) - 2) * ((at / x.mean()) ** 2 + 1 / len(x) + (at - x.mean()) ** 2 / (far @ far))
    return float(y.mean() + rate * (at - x.mean())), T90 * float(np.sqrt(spread))


def main() -> int:
    """The verdict."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--points", type=int, default=120)
    flags.add_argument("--seed", type=int, default=58)
    flags.add_argument("--precision", type=float, default=0.005)
    flags.add_argument("--csv", type=Path)
    flags.add_argument("--directions", type=int, default=0)
    flags.add_argument("--cost", action="store_true")
    flags.add_argument("--earlier", type=Path)
    flags.add_argument("--overlapped", action="store_true")
    asked = flags.parse_args()
    if asked.cost or asked.overlapped:
        (cost if asked.cost else overlapped)()
        return 0
    if asked.earlier:
        earlier(asked.earlier, asked.precision)
        return 0
    found = []
    for point in points(asked.seed, asked.points):
        found.append(one := stopped_against_whole(point, asked.precision))
        where = f"stopped at {one['stopped']}: {one['error']:+.2%} of {one['wide']:.2%}" if one["stopped"] else "whole"
        print(f"{words(point)}: {where}; {one['seconds']:.1f} s, whole {one['whole_seconds']:.1f} s", flush=True)
    if asked.csv:
        with asked.csv.open("w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, list(found[0]), lineterminator="\n")
            out.writeheader()
            out.writerows(found)
    stopped = [one for one in found if one["stopped"]]
    holds = True
    for most, share in WITHIN:
        within, few = (sum(abs(one["error"]) <= most for one in group) for group in (found, stopped))
        print(f"within {most:.1%}: {within} of {len(found)}; of the stopped ones {few} of {len(stopped)}")
        holds &= within >= share * len(found)
    inside = sum(one["inside"] for one in stopped)
    print(f"inside their interval: {inside} of {len(stopped)} stopped")
    print(f"seconds: {sum(one['seconds'] for one in found):.0f}; of the stopped {sum(one['seconds'] for one in stopped):.0f} of "
          f"{sum(one['whole_seconds'] for one in stopped):.0f}")  # fmt: skip
    wrong = wrong_directions(found, asked.directions, asked.precision)
    print(f"wrong directions: {len(wrong)} {wrong}")
    return int(not holds or inside < COVERED * len(stopped) or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
