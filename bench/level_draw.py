"""A seeded draw of points for both levels, and how their differences spread (`bench/levels.py --random N --seed S`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dysharp.base.errors import DysharpError
from dysharp.engine.burst.lower import beyond_packets
from dysharp.engine.packet.fabric import _packet_wires
from dysharp.program import Program
from dysharp.specs import load_model
from dysharp.systems import all_systems

MODELS = (
    "S-8", "S-16", "M-8", "L-8", "deepseek-v2-lite", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v3", "qwen3-235b", "qwen3-30b",
    "paper-qwen2-moe", "paper-phi-3.5-moe", "mixtral-8x7b", "minimax-m2.5",
)  # fmt: skip
PLACES = (
    ("paper-gh200-nvl32", 8), ("paper-gh200-nvl32", 16), ("paper-gh200-nvl32", 32), ("paper-gh200-nvl64", 64), ("paper-nvl72", 16),
    ("paper-nvl72", 64), ("paper-nvl72", 72), ("paper-dgx-h100", 8), ("paper-dgx-h800", 8), ("hw-dgx-b200", 8),
)  # fmt: skip
TOKENS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
LEFT_OUT = ("ideal",)  # sends nothing
ELEMENTS = 8_000_000, 100_000_000
"""Numbers of all rows of Dispatch together: below, a layer is mostly constants; above, the packet level takes too long."""
MOST_PACKETS = 5_000_000
TRIES = 60  # for a system, until one of its points fits
BOUND = 0.03


class Drawn(NamedTuple):
    """One point of a draw. `workload` as in bench/levels.py."""

    system: str
    workload: str
    seed: int


def draw(count: int, seed: int, plan: Callable[[str, str, int], Program], systems: Sequence[str] = ()) -> Iterator[Drawn]:
    """`count` points, systems in turn in a drawn order. What does not fit both levels is drawn again; a system of which nothing fits drops out.

    `systems`: default all.
    """
    rng = np.random.default_rng(seed)
    systems = [str(name) for name in rng.permutation([name for name in sorted(systems or all_systems()) if name not in LEFT_OUT])]
    seen: set[Drawn] = set()
    while len(seen) < count and systems:
        for system in list(systems):
            point = next((p for p in _tries(rng, system) if p not in seen and _fits(p, plan)), None)
            if point is None:
                systems.remove(system)
                continue
            seen.add(point)
            yield point
            if len(seen) == count:
                return


def _tries(rng: np.random.Generator, system: str) -> Iterator[Drawn]:
    for _ in range(TRIES):
        model, tokens = str(rng.choice(MODELS)), int(rng.choice(TOKENS))
        cluster, gpus = PLACES[int(rng.integers(len(PLACES)))]
        yield Drawn(system, f"{model}:{tokens}:{cluster}:{gpus}", int(rng.integers(1000)))


def _fits(point: Drawn, plan: Callable[[str, str, int], Program]) -> bool:
    """Whether both levels run the point and its size is that of the draw."""
    name, tokens, _, gpus = point.workload.split(":")
    model = load_model(name)
    if not ELEMENTS[0] <= int(gpus) * int(tokens) * model.topk * model.hidden <= ELEMENTS[1]:
        return False
    try:
        program = plan(point.system, point.workload, point.seed)
    except DysharpError:
        return False
    return beyond_packets(program) is None and packets(program) <= MOST_PACKETS


def packets(p: Program) -> int:
    """Packets of all copies of a Program."""
    wired = p.ops.wire >= 0
    return int((np.diff(p.members.ptr)[wired] * _packet_wires(p)[p.ops.wire[wired], 0]).sum())


def spread(later: np.ndarray) -> list[str]:
    """The lines below a table: how many points are within the bound, and a histogram of signed differences by whole percents."""
    within = int((abs(later) <= BOUND).sum())
    share, mean, median = within / len(later), later.mean(), np.median(later)
    lines = [f"{within} of {len(later)} points within {BOUND:.0%} ({share:.0%}); mean {mean:+.2%}, median {median:+.2%}"]
    bins = np.floor(100 * later).astype(int)
    for low in range(bins.min(), bins.max() + 1):
        n = int((bins == low).sum())
        lines.append(f"{low:+4d} to {low + 1:+d} %  {n:3d}  {'#' * n}")
    return lines
