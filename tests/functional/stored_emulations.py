"""Regression values of the functional machine: `python -m tests.functional.stored_emulations` writes `emulations.json`.

What an emulation counts and says, for every system, order of events and fault. Errors are stored where numbers are whole; of floats, only whether
they hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dysharp import emulate
from dysharp.errors import DysharpError
from dysharp.functional.faults import KINDS, ROUTING, SCALE_OUT, Faults, machine_faults, routing_cases, why_not
from dysharp.functional.orders import ORDERS, make_pool
from dysharp.systems import all_systems
from tests.stored_values import digest, write

STORED = Path(__file__).with_name("emulations.json")
Columns = dict[str, Any]
SMALL: Columns = {"gpus": 3, "tokens": 4, "hidden": 48, "expert_hidden": 40, "experts": 9, "topk": 3, "seed": 5}
TYPES: tuple[Columns, ...] = ({}, {"block": "gated", "dtype": "float32"}, {"block": "gated", "dtype": "bfloat16"})
COLLECTIVES = ("nccl-ring:all-reduce", "nccl-nvls:all-reduce", "nccl-ring:all-gather", "nccl-ring:reduce-scatter")
PARTS = ("layers 0", "layers 1", "layers 2", "faults 0", "faults 1", "works")
SHORT = 30
ASKED = ("system", "block", "gpus", "tokens_per_gpu", "dtype", "backward", "order", "workload")
FLOATS = ("max_abs_error", "max_rel_error", "bound")


def emulated(system: str, **request: Any) -> Columns:
    """The results, or why there are none."""
    try:
        found = emulate(system, **request)
    except DysharpError as error:
        return {"refused": str(error)}
    whole = request.get("dtype") in (None, "int32") and request.get("block", "integer") == "integer"
    values: Columns = found.to_dict() | {"holds": found.holds}
    kept = {name: value for name, value in values.items() if name not in ASKED and (whole or name not in FLOATS)}
    told = digest([str(found), repr(found)]) if whole else ""
    long = [name for name, value in kept.items() if isinstance(value, (dict, list, tuple, str)) and len(str(value)) > SHORT]
    return {name: digest(value) if name in long else value for name, value in kept.items() if value} | {"told": told}


def layers(third: int) -> Iterator[tuple[str, Columns]]:
    """Every third system: forward on the path of its own, backward by rows, in another order and type each."""
    orders = [order for order in ORDERS if order != "trace"]
    for i, system in list(enumerate(all_systems()))[third::3]:
        yield f"{system}, forward", emulated(system, **SMALL, dump=1)
        order = orders[i % len(orders)]
        yield f"{system}, backward", emulated(system, **SMALL, backward=True, path="row", order=order, **TYPES[i // 3 % 3])


def faults(half: int) -> Iterator[tuple[str, Columns]]:
    """Every second fault alone, those of messages between two domains; what faults are in words and numbers."""
    for i, kind in list(enumerate(KINDS))[half::2]:
        where = {"cluster": "hw-dgx-h100-x2", "gpus": 16, "experts": 32} if kind in SCALE_OUT else {}
        system = "deepep" if kind in SCALE_OUT else "dysharp"
        yield f"fault {kind}", emulated(system, **SMALL | where, inject=[kind], backward=bool(i // 2 % 2))
    if half:
        return
    yield "fault, all", emulated("dysharp", **SMALL, inject=["evict", "timeout", "al-tlb", "tracker", "first-touch", "reorder", "duplicate", "drop"])
    used = {"al_tlb": {"lookups": 3}}
    yield "fault, none", {f"{name} {domains}": why_not(name, "deepep", used, domains) for name in KINDS for domains in (1, 2)}
    yield "fault, values", {name: list(asdict(machine_faults([name])).values()) for name in KINDS} | {"no": list(asdict(Faults()).values())}
    expert = np.array([[0, 4, 8], [1, 0, 2], [3, 0, 5], [0, 1, 7], [2, 0, 1]])
    yield "fault, routing", {name: routing_cases(expert, [name], 3, 9) for name in ROUTING}


def pools() -> Columns:
    """The order in which each pool gives 40 events back, some added on the way."""
    out: Columns = {}
    for order in ORDERS:
        pool = make_pool(order, 3, frozenset((1,)), frozenset((2, 4)))
        given = []
        for i in range(40):
            pool.add((i % 5, i), (7 * i) % 11)
            given += [pool.pop()[1], len(pool)] if i % 3 == 2 else []
        given += [pool.pop()[1] for _ in range(len(pool))]
        out[order] = " ".join(map(str, given))
    return out


def works() -> Iterator[tuple[str, Columns]]:
    """Collectives and sub-layers."""
    orders = [order for order in ORDERS if order != "trace"]
    for i, (system, workload) in enumerate(one.split(":") for one in COLLECTIVES):
        found = emulated(system, workload=f"{workload}:6KiB", gpus=3, cluster="hw-dgx-h100", order=orders[i], seed=2)
        yield f"{system}, {workload}", found
    for i, system in enumerate(("cais", "t3", "tp-nvls")):
        yield f"{system}, sub-layer", emulated(system, workload="sub-layer:24x48x12x36", gpus=3, order=orders[i], seed=2)


def rows(part: str = "") -> Iterator[tuple[str, Columns]]:
    """All rows of a part of PARTS; "": of all."""
    for third in range(3):
        if part in ("", f"layers {third}"):
            yield from layers(third)
    for half in range(2):
        if part in ("", f"faults {half}"):
            yield from faults(half)
    if part in ("", "works"):
        yield from works()
        yield "pools", pools()


if __name__ == "__main__":
    write(STORED, dict(rows()))
