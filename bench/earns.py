"""What each mechanism earns: errors out of sight of training steps and of TPOT, with and without it.

`python bench/earns.py [training|serving] [--new DIR] [--rows N]`: the mechanism is taken away, the constants of training or serving are fitted to
first order on all rows but those of the row's GPU, model or source (`bench/out_of_sight.py`), and the row is predicted with them; rows of DIR are in
no fit. `N`: serving rows of a model, machine, engine, mode and precision. Without a mechanism errors grow by what it earns.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import out_of_sight as sight
import serving_ablation as served

from dysharp.base.arrays import F64
from dysharp.base.text import table
from dysharp.costs import machine, regime
from dysharp.costs import operators as operators_of_costs
from dysharp.costs.machine import Machine
from dysharp.measured.beyond import source_of
from dysharp.measured.serving.predictions import predict_row
from dysharp.measured.serving.setting import setting_of
from dysharp.measured.training import setting, step_time
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import StepCase, estimate_row, step_cases
from dysharp.model import operators
from dysharp.training import block, costs, moe_block, recipe

Part = tuple[object, str, object]
GROUPS = ("gpu", "model", "source")


def recipe_without(**fields: Any) -> tuple[Part, ...]:
    """A training recipe with other fields."""
    made = setting.training_recipe_of
    return ((step_time, "training_recipe_of", lambda *given: replace(made(*given), **fields)),)


def plain_gemm(self: Machine, m: float, n: float, k: float, dtype: str, grouped: float | None, *rest: Any) -> float:
    """Products at the sustained rate, or their bytes."""
    groups, kind = grouped or 1.0, "fp8" if dtype == "mxfp8" else dtype
    moved = groups * machine.ELEMENT_BYTES[kind] * (m * k + n * k) + 2 * groups * m * n
    return max(self.flops(2 * groups * m * n * k, kind), self.memory(moved))


TRAINING: Mapping[str, tuple[Part, ...]] = {
    "launches of the host": ((Machine, "launch", lambda *given: 0.0),),
    "wait for counts of rows": recipe_without(counts=False),
    "kernels of a router that is not fused": recipe_without(router_fusion=True),
    "graphs": recipe_without(graphs=()),
    "states around recomputed modules": ((recipe, "SAVE_STATES", 0), (recipe, "REPLAY_STATES", 0)),
    "wait for the last rank": ((Machine, "wait", PropertyMock(return_value=0.0)),),
    "tiles and waves of GEMMs": ((Machine, "_gemm", plain_gemm),),
    "power of long runs": ((machine, "kept_part", lambda *given: 1.0),),
    "scales of MXFP8": ((machine, "BLOCK_SCALED", 1.0),),
    "casts": ((Machine, "cast_bytes", lambda *given: 0.0),),
    "eager kernels of GPT-OSS": ((operators, "CLAMPED", (0, 0)), (operators, "BIASED", (0, 0)), (operators, "SCALED", ((4, 4), (4, 7)))),
    "permutations": ((Machine, "permute", lambda *given: 0.0),),
    "recomputation": ((block.Block, "with_replays", lambda self, pieces: pieces),),
    "kernels of each dispatcher": recipe_without(dispatcher="alltoall"),
    "proxies on hosts": ((Machine, "posted", lambda *given: 0.0),),
    "overlap of EP": recipe_without(overlap_ep=False),
    "SMs that communication takes": ((block, "SMS", dict.fromkeys(recipe.SMS, 0)),),
    "overlap of TP": recipe_without(overlap_tp=False),
    "overlap of DP": recipe_without(overlap_dp=False),
    "shared wires": ((costs, "beside_pass", lambda alone, *rest: alone), (costs, "late_sends", lambda *given: (0.0, 0.0))),
    "context exchange": ((block, "_context_exchange", lambda *given: moe_block.PassCost()),),
    "power of each Blackwell GPU": ((operators_of_costs, "_clock_MHz", lambda sheet: sheet.boost_MHz),),
    "second pass of positions": ((operators, "PASSES", 1),),
    "optimizer": ((costs, "update_us", lambda *given: 0.0),),
}
SERVING: Mapping[str, tuple[Part, ...]] = {name: (part,) for name, part in served.PARTS.items() if part}


@contextmanager
def without(parts: Sequence[Part]) -> Iterator[None]:
    """A mechanism taken away."""
    caches = (machine.machine_of, operators.layer_operators, operators.served, regime.regime_of)
    with ExitStack() as stack:
        for owner, name, value in parts:
            stack.enter_context(patch.object(owner, name, value))
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def refitted(off: F64, slopes: F64, labels: Mapping[str, Sequence[str]], new: Sequence[bool]) -> tuple[float, float]:
    """Median and 90th percentile of absolute errors in percent, each row with each of its groups left out of the fit of constants."""
    old, seen = ~np.array(new), np.isfinite(off)
    errors: list[float] = []
    for names in labels.values():
        groups = np.where(old, np.array(names), sight.NEW)
        for group in np.unique(groups):
            out, kept = (groups == group) & seen, old & seen & (groups != group)
            moved = off[out] - slopes[out] @ sight._moved(slopes[kept], off[kept])
            errors.extend(100 * np.abs(np.expm1(-moved)))
    return float(np.percentile(errors, 50)), float(np.percentile(errors, 90))


def of_training(cases: Sequence[StepCase], rows: Sequence[TrainingRow]) -> Callable[..., F64]:
    """What computes residuals of steps."""

    def off(change: Any = None) -> F64:
        done: list[float] = []
        known: dict[str, float] = {}  # releases of one preset have one prediction
        for case, row in zip(cases, rows, strict=True):
            texts = (row.text("fabric"), row.text("source")[:8], row.text("note").partition("pp_layout")[2], row.text("model"))
            key = f"{case.gpu} {case.case} {case.micro_batches} {row.degrees['layers']} {texts}"
            if key not in known:
                known[key] = estimate_row(row, change).step_us / 1e6
            done.append(math.log(case.measured / known[key]))
        return np.array(done)

    return off


def show(title: str, mechanisms: Mapping[str, tuple[Part, ...]], off: Callable[[], F64], slopes: F64, labels: Any, new: Sequence[bool]) -> None:
    """Print a table; every line as soon as it is known."""
    whole = refitted(off(), slopes, labels, new)
    print(f"{title}: {len(new)} rows, out of sight {whole[0]:.1f} / {whole[1]:.1f} %", flush=True)
    lines = []
    for name, parts in mechanisms.items():
        with without(parts):
            mine = refitted(off(), slopes, labels, new)
        lines.append((name, *(f"{value:.1f}" for value in mine), *(f"{a - b:+.1f}" for a, b in zip(mine, whole, strict=True))))
        print(lines[-1], file=sys.stderr, flush=True)
    heads = ("without", "median %", "90th %", "earned", "earned (90th)")
    print(table(heads, sorted(lines, key=lambda line: -float(line[4]))))


def training(tables: Mapping[str, str]) -> None:
    """The table of training steps."""
    every = {row.id: row for row in [*TrainingRow.read(), *sight.training_rows(tables)]}
    cases = [case for case in step_cases(list(every.values())) if case.predicted and not case.note]
    rows = [every[case.id] for case in cases]
    fresh = {row.id for row in sight.training_rows(tables) if not row.text("source").startswith(sight.CLOUD)}
    off, base = of_training(cases, rows), of_training(cases, rows)()
    slopes = np.stack([(base - off(sight.moved(name))) / sight.SLOPE for name in sight.TRAINING], axis=1)
    labels = {"gpu": [c.gpu for c in cases], "model": [c.model for c in cases], "source": [source_of(row.text("source")) for row in rows]}
    show("Training steps", TRAINING, off, slopes, labels, [row.id in fresh for row in rows])


def serving(tables: Mapping[str, str], each: int) -> None:
    """The table of TPOT."""
    fresh = sight.serving_rows(tables)
    rows = [row for row in [*served.sample(each), *fresh] if predict_row(row).tpot_ms and row.numbers["tpot_ms"]]

    def off(change: Any = None) -> F64:
        return np.array([math.log((row.numbers["tpot_ms"] or 0) / (predict_row(row, change).tpot_ms or 1)) for row in rows])

    base = off()
    slopes = np.stack([(base - off(sight.moved(name))) / sight.SLOPE for name in sight.SERVING], axis=1)
    labels = {
        "gpu": [setting_of(row).replica.machine.gpu.name for row in rows], "model": [row.text("model") for row in rows],
        "source": [row.text("engine") for row in rows],
    }  # fmt: skip
    new = {row.id for row in fresh}
    show("TPOT", SERVING, off, slopes, labels, [row.id in new for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["training", "serving"], choices=["training", "serving"])
    parser.add_argument("--new", type=Path, metavar="DIR", help="tables *_visible4.csv that the package does not hold")
    parser.add_argument("--rows", type=int, default=2, help="serving rows of a cell")
    args = parser.parse_args()
    tables = sight.new_tables(args.new)
    if "training" in args.what:
        training(tables)
    if "serving" in args.what:
        serving(tables, args.rows)


if __name__ == "__main__":
    main()
