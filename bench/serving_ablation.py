"""What each part of a serving prediction is worth: errors of TPOT with one part taken away.

`python bench/serving_ablation.py [ROWS]`: at most ROWS rows (default 4) of each model, hardware, engine, mode and precision, drawn with a fixed seed,
and the steps of the blog of 2025-05. Prints median and 90th percentile of absolute errors in percent per part.
"""

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import median
from unittest.mock import patch

from dysharp.costs import operators
from dysharp.costs.exchange import ExchangeTimes
from dysharp.costs.layer import OpTime
from dysharp.costs.machine import machine_of
from dysharp.measured.serving.predictions import STEP, TPOT, ServingCase, predict_row
from dysharp.measured.serving.setting import STEPS, ServingRow
from dysharp.serving import layer
from dysharp.serving.engine import Engine
from dysharp.serving.exchange import exchange, row_bytes
from dysharp.serving.work import Replica

Part = tuple[object, str, object]


def sample(each: int) -> list[ServingRow]:
    """Rows by group."""
    groups = defaultdict(list)
    for row in ServingRow.read():
        if ServingCase(row).scored and row.numbers["tpot_ms"]:
            groups[tuple(row.text(name) for name in ("model", "hardware", "engine", "mode", "precision"))].append(row)
    draw = Random(1)
    return [row for rows in groups.values() for row in draw.sample(rows, min(each, len(rows)))]


def bytes_alone(replica: Replica, tokens: float, *busiest: object) -> ExchangeTimes:
    """EP kernels as bytes over the rate of the link or the NIC."""
    layer, cluster, ep = replica.model.layer, replica.machine.cluster, replica.layout.ep
    assert layer is not None
    out = cluster.scale_out
    inside = out is None or ep <= out.domain_gpus
    rate = replica.machine.gpu.link_GBps if inside or out is None else out.nic_GBps * out.nics_per_gpu
    sent, back = (tokens * layer.topk * size * (ep - 1) / ep / (1e3 * rate) for size in row_bytes(replica))
    return ExchangeTimes(sent, back, layer.topk, kernels=exchange(replica, tokens).kernels, system="bytes")


def no_host(self: Engine, replica: Replica, device: float, requests: float, launches: int = 0) -> float:
    """The GPU alone."""
    return device


def no_small(self: Replica, name: str, tokens: float, width: float, kernels: int = 1) -> OpTime:
    """Norms, casts of positions, top-k and sampling take no time."""
    return OpTime(name, 0.0, 0)


def even(experts: float, topk: int, total: int, tokens: float, loads: object = ()) -> float:
    """Experts with a row under uniform choice."""
    return experts * (1 - (1 - topk / total) ** tokens)


PARTS: dict[str, Part | None] = {
    "all parts": None,
    "no start of a kernel": (operators, "launch_us", lambda gpu, constants: 0.0),
    "no small kernels": (Replica, "small", no_small),
    "no host": (Engine, "step_us", no_host),
    "uniform choice of experts": (layer, "touched", even),
    "EP kernels: bytes over a rate": (layer, "exchange", bytes_alone),
}


def errors(rows: list[ServingRow], family: str) -> list[float]:
    """Absolute errors in percent."""
    cases = [predict_row(row) for row in rows]
    return sorted(abs(error) for case in cases if (error := case.error(family)) is not None)


def without(part: Part | None, run: Callable[[], list[float]]) -> list[float]:
    """`run` with a part taken away."""
    machine_of.cache_clear()  # it keeps times of kernels
    if part is None:
        return run()
    with patch.object(part[0], part[1], part[2]):
        return run()


def main() -> None:
    rows = sample(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
    steps = [replace(row) for row in ServingRow.read() if row.text("mode") in STEPS]
    wide = [row for row in rows if row.degree("moe_ep") > 1 or row.degree("d_moe_ep") > 1]
    for name, part in PARTS.items():
        for kind, chosen, family in (("all", rows, TPOT), ("EP", wide, TPOT), ("steps", steps, STEP)):
            sizes = without(part, lambda chosen=chosen, family=family: errors(chosen, family))
            print(f"{name:30} {kind:6} n {len(sizes):3}  median {median(sizes):5.1f} %  p90 {sizes[int(0.9 * (len(sizes) - 1))]:5.1f} %", flush=True)


if __name__ == "__main__":
    main()
