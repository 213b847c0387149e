"""multiwrite: lists, levels and bytes of multicast writes by hand, beside `cann-ep`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.program import Kind, Program
from dysharp.runs.options import options_of
from dysharp.systems import get_system
from dysharp.workload import routing_from


def program(name: str, experts: list[int], **options: object) -> Program:
    """A token on each of eight NPUs that asks `experts` (one on each NPU), counted from its own NPU."""
    model = replace(TINY, n_experts=8, topk=len(experts), tokens_per_gpu=1)
    asked = (np.array(experts)[None, :] + np.arange(8)[:, None]) % 8
    one = get_system(name)
    return one.plan(model, cluster(8), routing_from(asked, n_experts=8, n_gpus=8), "fwd", one.options(compute=False, mode="low-latency", **options))


def dispatch_us(name: str, experts: list[int], **options: object) -> float:
    """When the last row of Dispatch has arrived."""
    planned = program(name, experts, **options)
    sends = np.array([template.name.startswith("dispatch") for template in planned.templates])[planned.ops.template]
    return int(run_burst(planned)[0].done[sends].max()) / 1e6


def writes(planned: Program) -> int:
    """Multicasts of the first NPU."""
    kinds = np.array([template.kind for template in planned.templates])[planned.ops.template]
    return int(((kinds == Kind.MULTICAST) & (planned.ops.node == 0)).sum())


@pytest.mark.parametrize(("fan_out", "lists"), [(2, 3), (3, 2), (16, 1)])
def test_a_token_is_written_once_for_each_list(fan_out: int, lists: int) -> None:
    assert writes(program("multiwrite", [1, 2, 3, 4, 5], fan_out=fan_out)) == lists


def test_one_core_has_one_row_at_a_time() -> None:
    five, one = ({"cores": 1, "fan_out": n} for n in (1, 16))
    saved = dispatch_us("multiwrite", [1, 2, 3, 4, 5], **five) - dispatch_us("multiwrite", [1, 2, 3, 4, 5], **one)
    assert saved == pytest.approx(4 * (1.25 + 3.8 + 0.929), abs=0.1)


def test_a_write_takes_as_long_as_its_farthest_npu() -> None:
    node = {"card": 1, "node": 4}
    near, far = dispatch_us("multiwrite", [0, 1], node_ns=929, far_ns=929, **node), dispatch_us("multiwrite", [0, 1], **node)
    assert far - near == pytest.approx(2.5 - 0.929)  # NPU 3 writes to NPU 4, behind the second switch


def test_without_lists_it_is_cann_ep_but_for_the_address() -> None:
    alone, listed = dispatch_us("cann-ep", [3]), dispatch_us("multiwrite", [3], fan_out=16)
    assert listed == pytest.approx(alone, rel=0.01)


def test_a_list_of_no_npu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiwrite\.fan_out: found 0, expected 2 to 16 NPUs"):
        options_of(get_system("multiwrite"), {"fan_out": 0})
