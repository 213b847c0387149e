"""Regression values of the functional machine.

What an emulation counts and says, for every system, order of events and fault. Errors are stored where numbers are whole; of floats, only whether
they hold.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from dysharp import emulate
from dysharp.base.errors import DysharpError
from dysharp.functional.faults import KINDS, ROUTING, SCALE_OUT, Faults, machine_faults, routing_cases, why_not
from dysharp.functional.orders import ORDERS, make_pool
from dysharp.program import Trace
from dysharp.systems import all_systems
from tests.stored_values import Cases, Table, digest

STORED = Table(__file__)
Columns = dict[str, Any]
SMALL: Columns = {"gpus": 3, "tokens": 4, "hidden": 48, "expert_hidden": 40, "experts": 9, "topk": 3, "seed": 5}
TYPES: tuple[Columns, ...] = ({}, {"block": "gated", "dtype": "float32"}, {"block": "gated", "dtype": "bfloat16"})
COLLECTIVES = ("nccl-ring:all-reduce", "nccl-nvls:all-reduce", "nccl-ring:all-gather", "nccl-ring:reduce-scatter")
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


ORDERED = [order for order in ORDERS if order != "trace"]


def forward(system: str) -> Columns:
    """A layer on the path of its own. The row path has no packets to list."""
    found = emulated(system, **SMALL, dump=1)
    return emulated(system, **SMALL) if found.get("refused", "").startswith("dump: found row path") else found


def backward(i: int, system: str) -> Columns:
    """A layer by rows, in another order and type than those beside it."""
    return emulated(system, **SMALL, backward=True, path="row", order=ORDERED[i % len(ORDERED)], **TYPES[i // 3 % 3])


def fault(i: int, kind: str) -> Columns:
    """A fault alone; those of messages are between two domains."""
    where = {"cluster": "hw-dgx-h100-x2", "gpus": 16, "experts": 32} if kind in SCALE_OUT else {}
    system = "deepep" if kind in SCALE_OUT else "dysharp"
    return emulated(system, **SMALL | where, inject=[kind], backward=bool(i // 2 % 2))


def no_faults() -> Columns:
    """Why a fault would change nothing."""
    used = {"al_tlb": {"lookups": 3}}
    return {f"{name} {domains}": why_not(name, "deepep", used, domains) for name in KINDS for domains in (1, 2)}


def fault_values() -> Columns:
    """Faults in numbers."""
    return {name: list(asdict(machine_faults([name])).values()) for name in KINDS} | {"no": list(asdict(Faults()).values())}


def fault_routings() -> Columns:
    """Routings with faults."""
    expert = np.array([[0, 4, 8], [1, 0, 2], [3, 0, 5], [0, 1, 7], [2, 0, 1]])
    return {name: routing_cases(expert, [name], 3, 9) for name in ROUTING}


def pools() -> Columns:
    """The order in which each pool gives 40 events back, some added on the way."""
    out: Columns = {}
    for order in ORDERS:
        trace = Trace(*[np.zeros(0, np.int64)] * 11, 0) if order == "trace" else None
        pool = make_pool(order, 3, trace, frozenset((1,)), frozenset((2, 4)))
        given = []
        for i in range(40):
            pool.add((i % 5, i), (7 * i) % 11)
            given += [pool.pop()[1], len(pool)] if i % 3 == 2 else []
        given += [pool.pop()[1] for _ in range(len(pool))]
        out[order] = " ".join(map(str, given))
    return out


def collective(i: int, name: str) -> Columns:
    """A collective."""
    system, workload = name.split(":")
    return emulated(system, workload=f"{workload}:6KiB", gpus=3, cluster="hw-dgx-h100", order=ORDERED[i], seed=2)


def sub_layer(i: int, system: str) -> Columns:
    """A sub-layer."""
    return emulated(system, workload="sub-layer:24x48x12x36", gpus=3, order=ORDERED[i], seed=2)


ALL = ("evict", "timeout", "al-tlb", "tracker", "first-touch", "reorder", "duplicate", "drop")
CASES: Cases = {
    **{f"{system}, forward": partial(forward, system) for system in all_systems()},
    **{f"{system}, backward": partial(backward, i, system) for i, system in enumerate(all_systems())},
    **{f"fault {kind}": partial(fault, i, kind) for i, kind in enumerate(KINDS)},
    "fault, all": partial(emulated, "dysharp", **SMALL, inject=[*ALL]),
    "fault, none": no_faults, "fault, values": fault_values, "fault, routing": fault_routings,
    **{name.replace(":", ", "): partial(collective, i, name) for i, name in enumerate(COLLECTIVES)},
    **{f"{system}, sub-layer": partial(sub_layer, i, system) for i, system in enumerate(("cais", "t3", "tp-nvls"))}, "pools": pools,
}  # fmt: skip
PARTS = {f"layers {n}": [f"{system}, {way}" for system in [*all_systems()][n::3] for way in ("forward", "backward")] for n in range(3)}
PARTS |= {f"faults {n}": [f"fault {kind}" for kind in [*KINDS][n::2]] for n in range(2)}
PARTS["faults 0"] += [row for row in CASES if row.startswith("fault, ")]
PARTS["works"] = [row for row in CASES if not any(row in rows for rows in PARTS.values())]
SLOW = ("layers 1", "layers 2")
