"""Kernels of collectives as Programs: bytes on every link, engine against oracle, tensors, times against the closed form and by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from collective_tensors import results

from dysharp.costs.allreduce import KERNELS, _moved_bytes, kernel_allreduce_us
from dysharp.engine.burst.run import run_burst
from dysharp.oracle.run import run_oracle
from dysharp.program import Kind, Program
from dysharp.program.verify import verify
from dysharp.specs import load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.specs.gpu import load_gpu
from dysharp.systems.building.collectives.kernels import kernel_program
from dysharp.workload.collective import Collective, even

MIB = 1 << 20
WINDOW = 4 * 1024 * 16  # four blocks


def work_of(kernel: str, gpus: int, size: int) -> Collective:
    return even(next((one for one in ("all-gather", "reduce-scatter") if one in kernel), "all-reduce"), size, gpus)


def plan(cluster, kernel: str, size: int, in_flight: int = 0) -> Program:
    return kernel_program(work_of(kernel, cluster.n_gpus, size), cluster, kernel, in_flight)


def h100(gpus: int):
    return load_cluster("hw-dgx-h100").with_gpus(gpus)


def payload(program: Program) -> np.ndarray:
    """`[2, n_nodes]` payload bytes up and down each GPU's links, from the ops alone (flags left out)."""
    found = np.zeros((2, program.n_nodes), np.int64)
    ops, members = program.ops, program.members
    for op, (first, last) in enumerate(pairwise(members.ptr)):
        template, node, size = program.templates[ops.template[op]], ops.node[op], ops.bytes[op]
        others = [m for m in members.node[first:last] if m != node]
        if not others or template.name == "flags":
            continue
        pull = template.kind in (Kind.GET, Kind.PULL_REDUCE)
        found[1 if pull else 0, node] += size  # one sum down, or one store up
        for other in others:
            found[0 if pull else 1, other] += size
    return found


@pytest.mark.parametrize("gpus", [2, 3, 8])
@pytest.mark.parametrize(
    ("kernel", "up", "down"),  # in vectors, of N GPUs
    [
        ("one-shot", lambda n: n - 1, lambda n: 1),
        ("two-shot", lambda n: 1 + 1 / n, lambda n: 1 + 1 / n),
        ("torch two-shot", lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1) / n),
        ("vllm one-stage", lambda n: n - 1, lambda n: n - 1),
        ("vllm two-stage", lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1) / n),
        ("trtllm one-shot", lambda n: n - 1, lambda n: n - 1),
    ],
)
def test_every_link_carries_the_bytes_of_the_closed_form(gpus: int, kernel: str, up, down) -> None:
    size = gpus * 40_000  # shares of two trains and a part of one
    found = payload(plan(h100(gpus), kernel, size))
    assert found[0].tolist() == [round(up(gpus) * size)] * gpus
    assert found[1].tolist() == [round(down(gpus) * size)] * gpus
    steps = sum(float(_moved_bytes(step, gpus, size)) for step in KERNELS[kernel])
    assert steps == pytest.approx(found[:, 0].max())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("gpus", "size"), [(3, 100_002), (4, 6), (2, 65_536)])
def test_oracle_and_engine_agree_and_results_are_those_of_the_reference(kernel: str, gpus: int, size: int) -> None:
    program, work = plan(h100(gpus), kernel, size, WINDOW), work_of(kernel, gpus, size)
    verify(program)
    trace = run_burst(program)[0]
    assert run_oracle(program).digest() == trace.digest()
    assert all(map(np.array_equal, results(work, program, trace), work.reference(work.inputs(0))))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("cluster", "gpus"), [("hw-dgx-h100", 8), ("hw-gb200-tray", 4)])
def test_times_are_those_of_the_closed_form(kernel: str, cluster: str, gpus: int) -> None:
    """To 1 % where flights and fences are all, to 12 % with a window (its last round overlaps in parts) and 9 % without at 16 MiB."""
    machine = load_cluster(cluster).with_gpus(gpus)
    window = WINDOW if kernel.startswith(("one-shot", "two-shot", "torch multimem", "vllm")) else 0
    for size, within in ((256, 0.01), (16 * MIB, 0.12 if window else 0.09)):
        closed = float(kernel_allreduce_us(load_gpu(machine.gpu), fitted_values(), kernel, gpus, size, window))
        assert run_burst(plan(machine, kernel, size, window))[0].time_ps / 1e6 == pytest.approx(closed, rel=within)


def test_four_blocks_load_64_kib_per_round_trip() -> None:
    """Two hops there, a memory read, two hops back: 2.4 us, and the wire of its trains."""
    machine = load_cluster("hw-gb200-tray")
    times = [run_burst(plan(machine, "one-shot", rounds * WINDOW, WINDOW))[0].time_ps / 1e6 for rounds in (1, 2, 3, 16, 17)]
    assert times[1] - times[0] == pytest.approx(2.4, rel=0.08)
    assert times[4] - times[3] == pytest.approx(times[2] - times[1], rel=0.02)
    free = run_burst(plan(machine, "one-shot", 16 * WINDOW))[0].time_ps / 1e6
    assert free < times[3] / 3


def test_stores_reach_the_sustained_rate_of_the_links() -> None:
    size = 16 * MIB
    cluster = h100(8)
    took_us = run_burst(plan(cluster, "trtllm one-shot", size))[0].time_ps / 1e6
    rate = 7 * size / (took_us - fitted_values()["gpu.kernel_us"])
    assert rate == pytest.approx(cluster.link_bytes_per_us * fitted_values()["link.fraction"], rel=0.01)
