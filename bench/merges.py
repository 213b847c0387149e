"""Random merges whose parts take less time one after the other: `python bench/merges.py [COUNT]` (docs/design/0022-workloads.md, M)."""

from __future__ import annotations

import sys
from dataclasses import replace

from dysharp.engine.burst.run import run_burst
from dysharp.program.merge import Part, merge
from tests.interpreters.random_merges import memory_ps, random_parts


def without_memory(part: Part) -> Part:
    return replace(part, program=replace(part.program, hardware=replace(part.program.hardware, memory_rate=0)))


def main(count: int = 400) -> None:
    found: dict[str, list[tuple[float, float]]] = {"without a memory rate": [], "with a memory rate": []}
    for seed in range(count):
        parts = random_parts(seed)
        plain = [without_memory(part) for part in parts]
        for what, some in zip(found, (plain, parts if parts[0].program.hardware.memory_rate else []), strict=True):
            if some:
                time, alone = (run_burst(merge(some))[0].time_ps, sum(run_burst(part.program)[0].time_ps for part in some))
                found[what].append((time / alone, time / (alone + sum(memory_ps(part.program) for part in some))))
    for what, ratios in found.items():
        longer, most, with_memory = sum(r > 1 for r, _ in ratios), max(r for r, _ in ratios), max(r for _, r in ratios)
        print(f"{what}: {longer} of {len(ratios)} merges longer than their parts one after the other, at most {most:.2f} times;", end=" ")
        print(f"at most {with_memory:.2f} times with the memory times of the parts")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
