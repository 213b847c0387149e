"""Quick answers beside simulations: closed form over simulated time of a layer, and bounds, which are at most 1. `python bench/quick.py`.

The bar of a closed form (`planning.quick.APART`) is the 90th percentile of its distance over these cases.
"""

import sys

import numpy as np

from dysharp.planning.quick import CLOSED, FORMS, quick_layers
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.known import NoEstimate
from dysharp.runs.request import Request, make_request, takes
from dysharp.runs.together import simulate_together
from dysharp.systems import get_system

CASES = [
    (model, cluster, tokens, direction)
    for model, tokens in (("deepseek-v3", 128), ("deepseek-v3", 2048), ("qwen3-30b", 128), ("qwen3-30b", 4096))
    for cluster in ("hw-dgx-h100", "hw-dgx-b200")
    for direction in ("fwd", "bwd")
]
PAPER = [("deepseek-v2-lite", "paper-gh200-nvl32", tokens, "fwd") for tokens in (64, 512)]
BOUNDS = ("dysharp", "comet", "nvls", "fusion-only", "moe-hub", "megamoe", "ideal", "tutel", "fastermoe")


@takes(RequestArgs)
def request(**asked: object) -> Request:
    """A request."""
    return make_request(asked)  # type: ignore[arg-type]


def main() -> None:
    """Print a line for each case and system, and the 90th percentile of closed forms."""
    far, worst = [], 0.0
    for model, cluster, tokens, direction in (*CASES, *PAPER):
        asked = request(model=model, cluster=cluster, tokens=tokens, direction=direction)
        names = [name for name in (*FORMS, *BOUNDS) if _runs(name, asked)]
        systems = {name: get_system(name) for name in names}
        (layers,), _ = quick_layers(systems, [asked])
        for quick, row in zip(layers, simulate_together(systems, asked), strict=True):
            if isinstance(row, NoEstimate):
                continue
            ratio = quick.time_us / row.layer_us
            print(f"{model:14s} {cluster:18s} {tokens:5d} {direction} {quick.system:13s} {quick.kind:11s} {ratio:5.2f}", flush=True)
            if quick.kind == CLOSED:
                far.append(abs(ratio - 1))
            else:
                worst = max(worst, ratio)
    median, most = (100 * np.percentile(far, share) for share in (50, 90))
    print(f"closed forms: {len(far)}, median {median:.0f} %, 90th percentile {most:.0f} %; bounds at most {worst:.2f}")


def _runs(name: str, asked: Request) -> bool:
    system = get_system(name)
    form = "real" if system.has_real_form and asked.cluster.family == "hw" else "paper"
    ships = form == "paper" or system.ships is None or not system.ships.why_not(asked.model, asked.cluster)
    return system.reach.runs_on(asked.cluster, form) and ships


if __name__ == "__main__":
    sys.exit(main())
