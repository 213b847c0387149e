"""Merged blocks: their times lie between computing and all in turn, shared experts hide, and held SMs slow a pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.measured.training.families import MEASURED_MS, SPANS, pair_cases
from dysharp.measured.training.families import PAIR_BAR as BAR
from dysharp.program import Nature, Program
from dysharp.program.verify import verify
from dysharp.systems import get_system
from dysharp.training.merged import MergedKernel, _BlockKernels, block_times
from dysharp.training.overlap import pairs_time
from dysharp.workload import make_routing

KERNELS = _BlockKernels(
    (MergedKernel("attention", 80.0), MergedKernel("gathered", 10.0, Nature.COMMUNICATION)), (MergedKernel("shared", 15.0),),
    (MergedKernel("attention", 150.0),), (MergedKernel("shared", 15.0),), (MergedKernel("weights", 90.0),),
)  # fmt: skip
FORWARD, BACKWARD = 90.0, 255.0


def time_us(program: Program) -> float:
    verify(program)
    return run_burst(program)[0].time_ps / 1e6


def plans(system: str) -> tuple[Program, Program]:
    known, model, cluster = get_system(system), dysharp.load_model("mixtral-8x7b"), dysharp.load_cluster("paper-gh200-nvl32").with_gpus(8)
    routing = known.served(make_routing("uniform", model, 8, 128, seed=0), known.options())
    forward, backward = (known.plan(model, cluster, routing, way, known.options()) for way in ("fwd", "bwd"))
    return forward, backward


@pytest.mark.parametrize("system", ["dysharp", "deepep"])
def test_blocks_and_pairs_lie_between_their_bounds(system: str) -> None:
    ways = plans(system)
    alone = [time_us(way) for way in ways]
    done = block_times(*ways, KERNELS, time_us)
    assert alone[0] + FORWARD <= done.forward + 1e-3 < alone[0] + FORWARD + 15.1  # shared experts run beside the transfers
    assert done.backward <= alone[1] + BACKWARD + 15.1
    assert max(done.forward, done.backward) < done.pair < done.forward + done.backward
    held = block_times(*ways, KERNELS, time_us, held=66)
    assert held.pair > 1.3 * done.pair
    late = replace(KERNELS, host=(MergedKernel("launches", 900.0, Nature.HOST),), host_back=(MergedKernel("launches", 700.0, Nature.HOST),))
    hosted = block_times(*ways, late, time_us)
    assert (hosted.forward, hosted.pair) == pytest.approx((max(900.0, done.forward), max(1600.0, done.pair)))  # one host launches both passes


def test_deepseeks_pairs() -> None:
    assert pairs_time(SPANS) == pytest.approx(MEASURED_MS, rel=0.01)
    judged = [case for case in pair_cases() if case.judged]
    assert [case.id for case in judged] == ["four pairs"]
    assert abs(judged[0].error or 0.0) < BAR


def test_a_step_of_merged_blocks() -> None:
    asked = {"cluster": "paper-gh200-nvl32", "layout": "pp=2,ep=8,m=8", "schedule": "dualpipe", "systems": ["dysharp"], "sequence": 256}
    closed, merged = (dysharp.step("mixtral-8x7b", blocks=blocks, **asked) for blocks in ("closed", "merged"))
    assert merged.best.step_us == pytest.approx(closed.best.step_us, rel=0.2)
    assert merged.best.step_us != closed.best.step_us
    assert np.isclose(sum(merged.best.shares.values()), 1.0)
    assert any(line.startswith("Blocks: merged Programs; against closed sums") for line in merged.header)
    with pytest.raises(ConfigError, match="blocks: found 'half', expected closed or merged"):
        dysharp.step("mixtral-8x7b", blocks="half", **asked)
