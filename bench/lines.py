"""How far the line through two short runs is from the whole layer: `python bench/lines.py [--points 99] [--seed 1]`.

Each point is a random system, model and routing. Short runs take tokens drawn evenly over the list of each GPU. The line through the runs of
n/2 and n tokens is compared with the run of all tokens, and with the line through n/4 and n/2 tokens. Takes about a second a point.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from typing import cast

import numpy as np

from dysharp.api.options import options_of
from dysharp.api.point import run_point
from dysharp.api.request import RequestArgs, make_request
from dysharp.api.workload import Workload, make_workload
from dysharp.systems import get_system

SYSTEMS = ("dysharp", "deepep", "comet", "nvls", "megatron-a2a", "moe-hub", "ccfuser", "fusion-only")
MODELS = ("S-8", "M-8", "L-8", "deepseek-v2-lite")
ROUTINGS = (None, "uniform", "powerlaw:0.5", "normal:0.3", "lognormal:0.5")
REST = {"window": None, "start": None, "slow": None, "options": None, "progress": None, "layer": None, "placement": "auto", "direction": "fwd"}


def evenly(workload: Workload, tokens: int) -> Workload:
    """`tokens` tokens of each GPU, drawn evenly over its list."""
    routing = workload.routing
    places = np.arange(tokens) * routing.tokens_per_gpu // tokens
    taken = (np.arange(routing.n_gpus)[:, None] * routing.tokens_per_gpu + places).ravel()
    routing = dataclasses.replace(routing, expert=routing.expert[taken], slot=routing.slot[taken], tokens_per_gpu=tokens)
    return dataclasses.replace(workload, request=dataclasses.replace(workload.request, tokens=tokens), routing=routing)


def point(rng: random.Random, tokens: int, share: int) -> tuple[str, float, float]:
    """(label, error of the line, difference of the two lines) of one random point; `share`: the longest short run takes 1/share of the tokens."""
    system, model, routing, seed = rng.choice(SYSTEMS), rng.choice(MODELS), rng.choice(ROUTINGS), rng.randrange(100)
    asked = REST | {
        "model": model,
        "cluster": "paper-gh200-nvl32",
        "gpus": 8,
        "tokens": tokens,
        "routing": routing,
        "seed": seed,
        "fidelity": "burst",
    }
    workload = make_workload(dataclasses.replace(make_request(cast(RequestArgs, asked)), waiting=False))
    chosen = get_system(system)
    options, sizes = options_of(chosen, {}), (tokens // share // 4, tokens // share // 2, tokens // share)
    quarter, half, most = (run_point(chosen, options, evenly(workload, n)).time_us for n in sizes)
    whole = run_point(chosen, options, workload).time_us
    early, late = (
        half + (tokens - sizes[1]) * (half - quarter) / (sizes[1] - sizes[0]),
        most + (tokens - sizes[2]) * (most - half) / (sizes[2] - sizes[1]),
    )
    return f"{system} {model} {routing} seed {seed}", late / whole - 1, early / late - 1


def main() -> None:
    """Print a line per point and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=99)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048, help="per GPU")
    parser.add_argument("--share", type=int, default=8, help="the longest short run takes 1/SHARE of the tokens")
    arguments = parser.parse_args()
    rng, errors, differences = random.Random(arguments.seed), [], []
    for _ in range(arguments.points):
        label, error, difference = point(rng, arguments.tokens, arguments.share)
        print(f"{label:50}{error:+8.1%} {difference:+8.1%}", flush=True)
        errors.append(abs(error))
        differences.append(abs(difference))
    error, agree = np.array(errors), np.array(differences) < 0.01
    print(f"error: median {np.median(error):.1%}, 90 % {np.quantile(error, 0.9):.1%}; within 1 %: {np.mean(error < 0.01):.0%}")
    right, worst = (error[agree] < 0.01).sum(), error[agree].max(initial=0)
    print(f"lines agree within 1 %: {agree.sum()}; of these within 1 % of the whole run: {right}, worst {worst:.1%}")


if __name__ == "__main__":
    main()
