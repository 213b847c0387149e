"""What finite hardware leaves: both knobs of every table at both levels, and three claims of papers.

    python bench/finite.py [--claims]

Prints growth of the layer time by each knob, and where the burst level leaves a key out. Exits with 1 past the bounds of
docs/notebook/2026-11-28-finite-expected.md. --claims: only the three claims (under a minute with compiled kernels).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import dysharp
from dysharp.figures import Store, load_figure, run_points
from dysharp.figures.finite import _points_of, survivals
from dysharp.figures.metric import Rows
from dysharp.runs.finite import GONE, Survival
from dysharp.runs.point import Point

LAYER = {"model": "S-8", "gpus": 8, "tokens": 256, "routing": "uniform"}
CLUSTER = "paper-gh200-nvl32"
SAME = 0.03
KNOBS = {
    "reduction_buffer_KiB": ("reduction_entries", 4, (1, 4, 16, 64)), "al_tlb_entries": ("al_entries", 1, (16, 64, 256, 512)),
    "multimemq_entries": ("queue_entries", 1, (1, 4, 32)), "vc_flits": ("vc_flits", 1, (64, 128, 256)), "n_vcs": ("n_vcs", 1, (1, 4, 8)),
    "internal_speedup": ("speedup", 1, (1, 2)),
}  # fmt: skip
"""Key of a cluster -> (option of `fabric`, its entries in one of the key, sizes)."""
CLAIMS = (("fig15", "S-32", "geomean over DeepEP"), ("hub-range", "paper-mixtral-8x7b", "average over Megatron, 200 GB/s"))
CAIS = "sub-layer:512x1024x512x1024"


def growth(fidelity: str, cluster: str, base: float, **options: int) -> tuple[float, tuple[str, ...]]:
    """(time over `base`, warnings)."""
    row = dysharp.run("dysharp", cluster=cluster, fidelity=fidelity, options={f"fabric.{name}": value for name, value in options.items()}, **LAYER)
    return row.time_us / base, row.warnings


def knobs() -> int:
    """Sizes at which two knobs, or two levels, differ by more than `SAME` and nothing says so."""
    base = {fidelity: growth(fidelity, CLUSTER, 1.0)[0] for fidelity in ("packet", "burst")}
    faults = 0
    for key, (option, factor, sizes) in KNOBS.items():
        for size in sizes:
            cluster = f"{CLUSTER},{key}={size}"
            by_key, _ = growth("packet", cluster, base["packet"])
            by_option, _ = growth("packet", CLUSTER, base["packet"], **{option: size * factor})
            burst, warned = growth("burst", cluster, base["burst"])
            said = any(key in text or "--fidelity packet" in text for text in warned)
            wrong = abs(by_key / by_option - 1) > SAME or (abs(burst / by_key - 1) > SAME and not said)
            faults += wrong
            note = "warned" if said else ""
            print(f"{key}={size}: packet {by_key:.3f} by key, {by_option:.3f} by option; burst {burst:.3f} {note} {'WRONG' * wrong}", flush=True)
    return faults


def claims() -> list[Survival]:
    """A claim of each paper, in an empty store."""
    store = Store(Path(tempfile.mkdtemp()))

    def run(points: Sequence[Point]) -> Rows:
        return run_points(points, store)[0]

    found = []
    for name, model, claim in CLAIMS:
        figure = load_figure(name)
        checks = tuple(check for check in figure.checks if check.name == claim)
        points = _points_of(figure, (p for p in figure.points if p.model == model and p.tokens in (None, 128)), checks)
        found += survivals(replace(figure, checks=checks, variants=()), points, run, 64)
    cais = dysharp.compare(["sp-nvls", "cais"], workload=CAIS, cluster="paper-cais-h100", finite=True).finite
    return [*found, *([cais] if cais else [])]


def _cpu_s() -> float:
    """Seconds of a processor so far, with processes that have ended."""
    return sum(os.times()[:4])


def main() -> int:
    """The verdict."""
    faults = 0 if "--claims" in sys.argv else knobs()
    begin, used = time.perf_counter(), _cpu_s()
    found = claims()
    wall, used = time.perf_counter() - begin, _cpu_s() - used
    for one in found:
        print(one.sentence, {name: round(value, 3) for name, value in one.taken.items()})
    print(f"{wall:.0f} s ({used:.0f} s of a processor) for {len(found)} claims; knobs or levels that differ unsaid: {faults}")
    return int(bool(faults) or len(found) < 3 or used > 60 or any(one.verdict == GONE for one in found))


if __name__ == "__main__":
    sys.exit(main())
