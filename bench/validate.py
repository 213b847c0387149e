"""Is time linear in tokens: the line through two runs that `validate` continues, against runs of all tokens; and, with --data, its wall time.

python bench/validate.py [--data measured.csv] prints Markdown and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from dysharp.analysis import programs
from dysharp.analysis.measured import read_measurements
from dysharp.analysis.predictors import answers
from dysharp.analysis.programs import EpCase, FusedCase
from dysharp.analysis.validation import sort_rows
from dysharp.specs.fitted import fitted_values

CONSTANTS = fitted_values()
TIMES = (2, 4, 8)
"""Tokens over those of the longest run that `validate` makes."""
ALL = 1 << 20
FULL: dict[str, Any] = {"FAR": ALL, "FUSED_FAR": ALL, "FUSED_TOKENS": ALL}
Parts = Callable[[int], tuple[float, ...]]


def ep(gpu: str, gpus: int, hidden: int, n_sm: int) -> Callable[[int], EpCase]:
    return lambda tokens: EpCase(gpu, gpus, hidden, 256, 8, tokens, n_sm)


def layer(distribution: str) -> Parts:
    return lambda tokens: programs.megamoe_us(FusedCase("b200", 4, 4096, 2048, 256, 8, tokens, distribution), CONSTANTS)


H100, GB200 = ep("h100-sxm", 8, 7168, 20), ep("gb200", 4, 7168, 0)
CASES: Sequence[tuple[str, int, Parts]] = (
    ("DeepEP, 8 H100: Dispatch, Combine", programs.FAR, lambda n: programs.deepep_us(H100(n), CONSTANTS)),
    ("DeepEP low latency, 8 H100: Dispatch, Combine", programs.FAR, lambda n: programs.ll_us(H100(n), CONSTANTS)),
    ("TensorRT-LLM one-sided, 4 GB200: Dispatch, Combine", programs.FAR, lambda n: programs.trtllm_us(GB200(n), "one", "rows", CONSTANTS)[1:]),
    ("TensorRT-LLM two-sided, 4 GB200: all three", programs.FAR, lambda n: programs.trtllm_us(GB200(n), "two", "rows", CONSTANTS)),
    ("Mega MoE, 4 B200, experts in turn", programs.FUSED_FAR, layer("balanced")),
    ("Mega MoE, 4 B200, uniform routing", programs.FUSED_FAR, layer("random")),
    ("Mega MoE, 4 B200, power law", programs.FUSED_FAR, layer("power_law_1.01")),
)


def lines() -> None:
    print("| kernels | tokens per GPU | line us | full run us | line over full |\n|---|---|---|---|---|")
    for name, far, parts in CASES:
        for times in TIMES if far == programs.FAR else TIMES[:2]:
            tokens = far * times
            line = parts(tokens)
            with patch.multiple(programs, **FULL):
                full = parts(tokens)
            shown = (", ".join(f"{us:.1f}" for us in found) for found in (line, full))
            off = ", ".join(f"{100 * (a / b - 1):+.2f} %" for a, b in zip(line, full, strict=True))
            print(f"| {name} | {tokens} | {' | '.join(shown)} | {off} |", flush=True)


def wall(path: str, jobs: int) -> None:
    found = sort_rows(read_measurements(path))
    print("\n| family | rows by Programs | s |\n|---|---|---|")
    total = 0.0
    for family in dict.fromkeys(case.family for case in found.cases if case.ask is not None):
        asks = [case.ask for case in found.cases if case.family == family and case.ask is not None]
        begin = time.perf_counter()
        answers([(ask, CONSTANTS) for ask in asks], jobs)
        took = time.perf_counter() - begin
        total += took
        print(f"| {family} | {len(asks)} | {took:.1f} |", flush=True)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    print(f"\none pass: {total:.0f} s in {jobs} processes, largest process {peak:.0f} MB; each hold-out is another pass and its fits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="also time the Programs of each family in this CSV")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    lines()
    if args.data:
        wall(args.data, args.jobs)


if __name__ == "__main__":
    main()
