"""How far the line through two short runs is from the whole layer: `python bench/lines.py [--points 99] [--seed 1]`.

Each point is a random system, model and routing. Short runs take tokens drawn evenly over the list of each GPU. The line through the runs of
n/2 and n tokens is compared with the run of all tokens, and with the line through n/4 and n/2 tokens. Two more lines are those of the time
above the lower bound of the workload, whose bound for all tokens is known without a run. A point is taken where all four lines agree
within --agree. Takes about a second a point, four with --tokens 8192.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis import Row
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.options import options_of
from dysharp.runs.request import Workload, make_request, make_workload
from dysharp.runs.run import run_point
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


@dataclass(frozen=True, slots=True)
class Result:
    """One point. `lines`: through the two longest runs, the two shortest, the same above the bound; over the time of the whole run."""

    label: str
    lines: tuple[float, float, float, float]
    short_s: float
    whole_s: float

    @property
    def error(self) -> float:
        """Of the line through the two longest short runs."""
        return abs(self.lines[0] - 1)

    @property
    def spread(self) -> float:
        """Of the four lines."""
        return (max(self.lines) - min(self.lines)) / self.lines[0]

    @property
    def early(self) -> float:
        """The line through the two shortest runs over that through the two longest."""
        return self.lines[1] / self.lines[0] - 1


def point(rng: random.Random, tokens: int, share: int) -> Result:
    """One random point; `share`: the longest short run takes 1/share of the tokens."""
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
    begin = time.process_time()
    rows = [run_point(chosen, options, evenly(workload, n)) for n in sizes]
    middle = time.process_time()
    whole = run_point(chosen, options, workload)
    end = time.process_time()

    def line(first: int, value: Callable[[Row], float]) -> float:
        before, after = value(rows[first]), value(rows[first + 1])
        return after + (tokens - sizes[first + 1]) * (after - before) / (sizes[first + 1] - sizes[first])

    plain = [line(first, lambda row: row.time_us) for first in (1, 0)]
    above = [line(first, lambda row: row.time_us - row.workload_bound_us) + whole.workload_bound_us for first in (1, 0)]
    late, early, late_above, early_above = (us / whole.time_us for us in (*plain, *above))
    return Result(f"{system} {model} {routing} seed {seed}", (late, early, late_above, early_above), middle - begin, end - middle)


def main() -> None:
    """Print a line per point and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=99)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048, help="per GPU")
    parser.add_argument("--share", type=int, default=8, help="the longest short run takes 1/SHARE of the tokens")
    parser.add_argument("--agree", type=float, default=0.002, help="most relative spread of the four lines of a point that is taken")
    arguments = parser.parse_args()
    rng, found = random.Random(arguments.seed), list[Result]()
    for _ in range(arguments.points):
        found.append(r := point(rng, arguments.tokens, arguments.share))
        print(f"{r.label:50}{r.lines[0] - 1:+8.1%} {r.early:+8.1%} spread {r.spread:6.1%}  {r.short_s:5.2f} of {r.whole_s:5.2f} s", flush=True)
    error, early, spread = (np.array([getattr(r, name) for r in found]) for name in ("error", "early", "spread"))
    print(f"error: median {np.median(error):.1%}, 90 % {np.quantile(error, 0.9):.1%}; within 1 %: {np.mean(error < 0.01):.0%}")
    _print("two lines agree within 1 %", error, np.abs(early) < 0.01)
    _print(f"four lines agree within {arguments.agree:.1%}", error, spread < arguments.agree)
    short, whole = sum(r.short_s for r in found), sum(r.whole_s for r in found)
    print(f"short runs take {short / whole:.2f} of whole runs; {1000 * short / len(found):.0f} ms a point, whole {1000 * whole / len(found):.0f} ms")
    large = [r.short_s for r in found if "L-8" in r.label]
    if large:
        print(f"short runs of L-8: {1000 * sum(large) / len(large):.0f} ms a point")


def _print(rule: str, error: NDArray[np.float64], taken: NDArray[np.bool_]) -> None:
    right, worst = (error[taken] < 0.01).sum(), error[taken].max(initial=0)
    middle = np.median(error[taken]) if taken.any() else 0
    print(f"{rule}: {taken.sum()} points; of these within 1 % of the whole run: {right}, median {middle:.1%}, worst {worst:.1%}")


if __name__ == "__main__":
    main()
