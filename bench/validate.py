"""Is time linear in tokens: the line through two runs that `validate` continues, against runs of all tokens; and, with --data, its wall time.

python bench/validate.py [--data [CSV]] prints Markdown and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from dysharp.measured import ep_kernels
from dysharp.measured.ep_kernels import EpCase, kernel_times
from dysharp.measured.families import fused_layer
from dysharp.measured.families.deepep import DeepEpCase
from dysharp.measured.families.deepep_ll import LowLatencyCase
from dysharp.measured.families.fused_layer import FusedCase
from dysharp.measured.families.trtllm_a2a import TrtllmCase, balanced
from dysharp.measured.family import classify
from dysharp.measured.measurements import read_measurements
from dysharp.measured.predictions import ProgramRequest, hashable_constants, program_times
from dysharp.specs.fitted import fitted_values

CONSTANTS = fitted_values()
TIMES = (2, 4, 8)
"""Tokens over those of the longest run that `validate` makes."""
ALL = 1 << 20
Parts = Callable[[int], tuple[float, ...]]
EP: dict[str, Any] = {"verb": "", "hidden": 7168, "experts": 256, "topk": 8, "row_bytes": 0.0}
H100: dict[str, Any] = EP | {"gpu": "h100-sxm", "gpus": 8, "fp8": True}
GB200: dict[str, Any] = EP | {"gpu": "gb200", "gpus": 4, "payload": "rows", "back": "rows", "copies": 4.0}


def kernels(system: str, case: Callable[..., EpCase], *routing: Any, **fields: Any) -> Parts:
    """Dispatch and Combine."""
    return lambda tokens: tuple(kernel_times(system, case(tokens=tokens, **fields), CONSTANTS, *routing).values())[1:]


def layer(distribution: str) -> Parts:
    fields = {"gpu": "b200", "gpus": 4, "hidden": 4096, "inter": 2048, "experts": 256, "topk": 8}
    return lambda n: (fused_layer.program_us(FusedCase(tokens=n, distribution=distribution, **fields), CONSTANTS),)


CASES: Sequence[tuple[str, int, Parts]] = (
    ("DeepEP, 8 H100", ep_kernels.FAR, kernels("deepep", DeepEpCase, n_sm=20, copies=0.0, **H100)),
    ("DeepEP low latency, 8 H100", ep_kernels.FAR, kernels("deepep-ll", LowLatencyCase, **H100)),
    ("TensorRT-LLM one-sided, 4 GB200", ep_kernels.FAR, kernels("trtllm-a2a", TrtllmCase, balanced, sides="one", **GB200)),
    ("TensorRT-LLM two-sided, 4 GB200", ep_kernels.FAR, kernels("trtllm-a2a", TrtllmCase, balanced, sides="two", **GB200)),
    ("Mega MoE, 4 B200, experts in turn", fused_layer.FAR, layer("balanced")),
    ("Mega MoE, 4 B200, uniform routing", fused_layer.FAR, layer("random")),
    ("Mega MoE, 4 B200, power law", fused_layer.FAR, layer("power_law_1.01")),
)


def lines() -> None:
    print("| kernels | tokens per GPU | line us | full run us | line over full |\n|---|---|---|---|---|")
    for name, far, parts in CASES:
        for times in TIMES if far == ep_kernels.FAR else TIMES[:2]:
            tokens = far * times
            line = parts(tokens)
            with patch.multiple(ep_kernels, FAR=ALL), patch.multiple(fused_layer, FAR=ALL, MOST_TOKENS=ALL):
                full = parts(tokens)
            shown = (", ".join(f"{us:.1f}" for us in run) for run in (line, full))
            off = ", ".join(f"{100 * (a / b - 1):+.2f} %" for a, b in zip(line, full, strict=True))
            print(f"| {name} | {tokens} | {' | '.join(shown)} | {off} |", flush=True)


def wall(path: str | None, jobs: int) -> None:
    parsed, constants = classify(read_measurements(path)).in_bars().parsed, hashable_constants(CONSTANTS)
    print("\n| family | rows by Programs | s |\n|---|---|---|")
    total = 0.0
    for family in dict.fromkeys(entry.family.name for entry in parsed if entry.family.program_us is not None):
        members = [entry for entry in parsed if entry.family.name == family]
        requests = [ProgramRequest(e.family.program_us, e.case, constants) for e in members if e.family.program_us]
        begin = time.perf_counter()
        program_times(requests, jobs)
        took = time.perf_counter() - begin
        total += took
        print(f"| {family} | {len(requests)} | {took:.1f} |", flush=True)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    print(f"\none pass: {total:.0f} s in {jobs} processes, largest process {peak:.0f} MB; each hold-out is another pass and its fits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="?", const="", metavar="CSV", help="also time the Programs of each family: packaged measurements, or a CSV")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    lines()
    if args.data is not None:
        wall(args.data or None, args.jobs)


if __name__ == "__main__":
    main()
