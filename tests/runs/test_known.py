"""A layer stops when its time is known, and runs whole where its first tokens do not tell."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dysharp as ds
from dysharp.analysis import Row
from dysharp.base.errors import ConfigError, SimulationError
from dysharp.runs.arguments import RequestArgs, arguments_of
from dysharp.runs.known import UNSEEN, until_known
from dysharp.runs.request import Workload, make_request, make_workload
from dysharp.systems import get_system

STEADY = {"model": "S-8", "cluster": "paper-dgx-h100", "gpus": 8, "routing": "uniform", "tokens": 2048}


@pytest.fixture(scope="module")
def row() -> Row:
    return ds.run("deepep", model="deepseek-v2-lite", gpus=2, tokens=8)


@pytest.fixture(scope="module")
def workload() -> Workload:
    defaults = {name: argument.default for name, argument in arguments_of(RequestArgs).items()}
    given = {"model": "deepseek-v2-lite", "gpus": 2, "tokens": 128, "fidelity": "packet", "window": 64}
    return make_workload(make_request(RequestArgs(**(defaults | given))))  # type: ignore[typeddict-item]


def at(row: Row, tokens: int, us: float, gemms: float = 0.0, alone: bool = True) -> Row:
    """A Row of `us`, of which GEMMs take `gemms`; they run alone, or under Dispatch."""
    moved = us - gemms
    path = {"dispatch": moved / 2, "gemm1": gemms, "gemm2": 0.0, "combine": moved / 2, "other": 0.0}
    begin = moved / 2 if alone else 0.0
    ends = {"dispatch": (0.0, moved / 2), "gemm1": (begin, begin + gemms), "gemm2": (begin + gemms, begin + gemms), "combine": (begin + gemms, us)}
    phases = {name: {"start": start, "end": end} for name, (start, end) in ends.items()}
    return replace(row, time_us=us, tokens_per_gpu=tokens, path_us=path, phases_us=phases, bound_us=0.1 * tokens, workload_bound_us=0.0)


def estimate(
    row: Row, workload: Workload, us: Callable[[int], float], experts: Callable[[int], float] = lambda tokens: 0.0, slowed: float = 0.0, **more: Any
) -> Row:
    """The estimate for 128 tokens, where n tokens take `us(n)` beside `experts(n)`, and the busiest link has three rows a token. `slowed`: us of
    `us` that GEMMs take longer than alone."""

    def layer(part: Workload) -> Row:
        tokens = part.request.tokens
        return at(row, tokens, us(tokens) + experts(tokens), experts(tokens) + slowed, **more)

    runs = SimpleNamespace(
        layer=layer, experts=lambda part: at(row, part.request.tokens, experts(part.request.tokens), experts(part.request.tokens)),
        rows=lambda routing, cluster: 3 * routing.tokens_per_gpu,
    )  # fmt: skip
    return until_known(workload, runs)


def test_a_line_beside_exact_experts_is_known(row: Row, workload: Workload) -> None:
    """Experts in steps of tiles do not disturb the line beside them."""
    found = estimate(row, workload, lambda tokens: 10 + tokens, lambda tokens: 7.0 * -(-tokens // 40)).window
    assert found["time_us"] == pytest.approx(10 + 128 + 28)
    assert found["apart"] == pytest.approx(UNSEEN)
    assert found["path_us"]["gemm1"] == pytest.approx(28)
    assert sum(found["path_us"].values()) == pytest.approx(found["time_us"])


def test_gemms_that_transfers_slow_widen_the_interval(row: Row, workload: Workload) -> None:
    """One of the 78 us of the last block is a GEMM's that takes longer than alone."""
    found = estimate(row, workload, lambda tokens: 10 + tokens, lambda tokens: 4.0, slowed=1.0).window
    assert found["apart"] == pytest.approx(math.hypot(1 / 78, UNSEEN))


def test_experts_under_transfers_are_part_of_the_line(row: Row, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 tokens of two GPUs fill less than a tile of 64 experts, so the 32 of 106 us of GEMMs may hide under transfers of more tokens."""
    monkeypatch.setattr("dysharp.runs.known.REFUSED", 0.4)
    found = estimate(row, workload, lambda tokens: 10 + tokens, lambda tokens: tokens / 2, alone=False).window
    assert found["time_us"] == pytest.approx(10 + 1.5 * 128)
    assert found["apart"] == pytest.approx(math.hypot(32 / 106, UNSEEN))
    monkeypatch.setattr("dysharp.runs.known.choice_int", lambda name: 2)  # rows of a tile
    found = estimate(row, workload, lambda tokens: 10 + tokens, lambda tokens: tokens / 2, alone=False).window
    assert found["apart"] == pytest.approx(UNSEEN)


def test_tiles_that_do_not_overlap_yet_tell_no_time_of_those_that_do() -> None:
    """64 tokens of 8 GPUs are half a tile of an expert of S-8: they said 36.9 us, "within 1.9 %", where 256 tokens take 30.0 us."""
    with pytest.raises(SimulationError, match="64 leading tokens of fusion-only give no estimate: they tell the time to 4"):
        ds.run("fusion-only", model="S-8", gpus=8, tokens=256, fidelity="packet", window=64)


def test_the_interval_is_that_of_a_line(row: Row, workload: Workload) -> None:
    """Residuals of four points with two degrees of freedom, 2.92 of them for nine of ten; all tokens are as rough in proportion to their number."""
    us = {16: 26.0, 32: 42.3, 48: 57.9, 64: 74.1}
    found = estimate(row, workload, us.__getitem__).window
    x, y = np.array(list(us), float), np.array(list(us.values()))
    slope, start = np.polyfit(x, y, 1)
    spread = np.sqrt(((y - start - slope * x) ** 2).sum() / 2 * ((128 / x.mean()) ** 2 + 1 / 4 + (128 - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()))
    assert found["time_us"] == pytest.approx(start + 128 * slope)
    assert found["high_us"] - found["time_us"] == pytest.approx(np.hypot(2.92 * spread, UNSEEN * found["time_us"]))
    assert found["low_us"] == pytest.approx(2 * found["time_us"] - found["high_us"])


def test_nine_of_ten_layers_are_inside(row: Row, workload: Workload) -> None:
    """Lines with noise of 0.5 % at every number of tokens, the whole layer included."""
    draw, inside = random.Random(1), 0
    for _ in range(300):
        noise = {tokens: draw.gauss(0, 0.005 * tokens) for tokens in (16, 32, 48, 64, 128)}
        found = estimate(row, workload, lambda tokens, noise=noise: 10 + tokens + noise[tokens]).window
        inside += found["low_us"] <= 138 + noise[128] <= found["high_us"]
    assert 255 <= inside <= 290


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (lambda tokens: 60 - tokens / 8, "or the 52.0 us of these"),
        (lambda tokens: 0.01 * tokens, "found 1.3 us, below the bound of 12.8 us"),
        (lambda tokens: 60 + tokens / 8, "Dispatch takes 32.0 us for half of them and 34.0 us for all"),  # growth 1.06
        (lambda tokens: {16: 26.0, 32: 50.0, 48: 60.0, 64: 90.0}[tokens], "they tell the time to"),
    ],
)
def test_no_estimate(row: Row, workload: Workload, us: Callable[[int], float], text: str) -> None:
    with pytest.raises(SimulationError) as error:
        estimate(row, workload, us)
    assert text in str(error.value)
    assert str(error.value).startswith("window: 64 leading tokens of deepep give no estimate: ")
    assert error.value.exit_code == 1


def test_a_steady_layer_stops_within_its_precision() -> None:
    exact, known = ds.run("nvls", exact=True, **STEADY), ds.run("nvls", precision_of_time="0.5%", **STEADY)
    assert (exact.window, known.tokens_per_gpu, known.window["of_tokens"]) == ({}, 512, 2048)
    assert known.window["low_us"] <= exact.time_us <= known.window["high_us"]
    assert known.layer_us == pytest.approx(exact.time_us, rel=0.005)
    assert known.window == ds.run("nvls", precision_of_time=0.005, **STEADY).window
    assert exact.digest == ds.run("nvls", **STEADY).digest


@pytest.mark.parametrize(("system", "more"), [("dysharp", {}), ("nvls", {"slow": "rank=1:1.5"}), ("nvls", {"tokens": 1024}), ("ideal", {})])
def test_what_does_not_stop_is_the_whole(system: str, more: dict[str, Any]) -> None:
    """GEMMs under transfers, slow ranks, few tokens, nothing that is sent."""
    asked = STEADY | more
    assert ds.run(system, precision_of_time="0.5%", **asked).digest == ds.run(system, **asked).digest


@pytest.mark.parametrize("system", ["deepep", "trtllm-a2a"])
def test_free_transfers_leave_the_gemms_as_they_are(system: str) -> None:
    """Behind a Dispatch that ends at one time the GEMMs take as long as in the layer, to the time that GPUs differ in."""
    from dysharp.runs.options import options_of
    from dysharp.runs.run import run_point

    defaults = {name: argument.default for name, argument in arguments_of(RequestArgs).items()}
    given = {"model": "deepseek-v2-lite", "cluster": "hw-dgx-h100", "tokens": 64, "routing": "uniform"}
    workload, one = make_workload(make_request(RequestArgs(**(defaults | given)))), get_system(system)  # type: ignore[typeddict-item]
    free = one.with_free_transfers()
    assert free is not None
    layer, experts = (run_point(each, options_of(one, {}), workload) for each in (one, free))
    for name in ("gemm1", "gemm2"):
        assert experts.path_us[name] == pytest.approx(layer.path_us[name], rel=0.02)
    assert experts.path_us["dispatch"] + experts.path_us["combine"] < 0.1 * (layer.path_us["dispatch"] + layer.path_us["combine"])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"precision_of_time": "fast"}, "precision_of_time: found 'fast', expected above 0% and at most 5%, such as 0.5%"),
        ({"precision_of_time": 0.5}, "precision_of_time: found 0.5, expected above 0% and at most 5%"),
        ({"precision_of_time": "1%", "exact": True}, 'precision_of_time: found it beside window or exact, expected it alone and fidelity "burst"'),
        ({"precision_of_time": "1%", "fidelity": "packet"}, "precision_of_time: found it at packet level"),
    ],
)
def test_refused_precisions(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        ds.run("nvls", **STEADY | more)
    assert text in str(error.value)
