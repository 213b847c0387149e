"""`--window` gives no estimate where the leading tokens do not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dysharp as ds
from dysharp.analysis import Row
from dysharp.base.errors import SimulationError
from dysharp.runs.arguments import RequestArgs, arguments_of
from dysharp.runs.leading import run_window
from dysharp.runs.request import Workload, make_request, make_workload


@pytest.fixture(scope="module")
def row() -> Row:
    return ds.run("deepep", model="deepseek-v2-lite", gpus=2, tokens=8)


@pytest.fixture(scope="module")
def workload() -> Workload:
    defaults = {name: argument.default for name, argument in arguments_of(RequestArgs).items()}
    given = {"model": "deepseek-v2-lite", "gpus": 2, "tokens": 128, "fidelity": "packet", "window": 64}
    return make_workload(make_request(RequestArgs(**(defaults | given))))  # type: ignore[typeddict-item]


def at(row: Row, tokens: int, us: float, gemms: float, alone: bool) -> Row:
    """A Row of `us`, of which GEMMs take `gemms`; they run alone, or under Dispatch."""
    moved = us - gemms
    path = {"dispatch": moved / 2, "gemm1": gemms, "gemm2": 0.0, "combine": moved / 2, "other": 0.0}
    begin = moved / 2 if alone else 0.0
    ends = {"dispatch": (0.0, moved / 2), "gemm1": (begin, begin + gemms), "gemm2": (begin + gemms, begin + gemms), "combine": (begin + gemms, us)}
    phases = {name: {"start": start, "end": end} for name, (start, end) in ends.items()}
    return replace(row, time_us=us, tokens_per_gpu=tokens, path_us=path, phases_us=phases, bound_us=0.1 * tokens, workload_bound_us=0.0)


def times(row: Row, workload: Workload, *us: float, gemms: float = 0.0, growth: float = 1.0, alone: bool = True) -> Row:
    """The estimate for 128 tokens from the times of 16, 32 and 64 tokens."""
    of = dict(zip((16, 32, 64), us, strict=True))

    def run(part: Workload) -> Row:
        return at(row, part.request.tokens, of[part.request.tokens], gemms, alone)

    return run_window(workload, run, lambda part: growth if part.request.tokens == 128 else 1.0)


def test_a_settled_rate_is_an_estimate(row: Row, workload: Workload) -> None:
    found = times(row, workload, 26.0, 42.0, 74.0)
    assert found.window["time_us"] == pytest.approx(138.0)
    assert found.warnings == row.warnings


def test_a_rate_that_is_nearly_settled_is_a_warning(row: Row, workload: Workload) -> None:
    assert "two estimates are 9 % apart" in times(row, workload, 26.0, 44.0, 76.0).warnings[-1]


def test_gemms_that_run_alone_grow_as_without_transfers(row: Row, workload: Workload) -> None:
    """The GEMMs take 10 us for any number of leading tokens and twice as long for all of them."""
    found = times(row, workload, 36.0, 52.0, 84.0, gemms=10.0, growth=2.0)
    assert found.window["time_us"] == pytest.approx(138.0 + 20.0)
    assert found.window["path_us"]["gemm1"] == 20.0
    assert sum(found.window["path_us"].values()) == pytest.approx(found.window["time_us"])


def test_gemms_under_transfers_grow_along_the_line(row: Row, workload: Workload) -> None:
    assert times(row, workload, 36.0, 52.0, 84.0, gemms=10.0, growth=1.1, alone=False).window["time_us"] == pytest.approx(148.0)
    with pytest.raises(SimulationError, match=r"148\.0 us along a line and 178\.0 us with the GEMMs of all tokens"):
        times(row, workload, 36.0, 52.0, 84.0, gemms=10.0, growth=4.0, alone=False)


def test_an_estimate_below_its_bound_is_none(row: Row, workload: Workload) -> None:
    with pytest.raises(SimulationError, match=r"found 9\.0 us, below the bound of 12\.8 us"):
        times(row, workload, 7.5, 7.8, 8.2, alone=False)


@pytest.mark.parametrize(
    ("quarter", "half", "full", "text"),
    [
        (60.0, 50.0, 45.0, "found -0.6250 us per further token, expected above 0"),
        (26.0, 26.0, 90.0, "found 0.0000 us per further token, expected above 0"),
        (10.0, 40.0, 60.0, "found 100.0 us from 64 and 220.0 us from 32 tokens, expected at most 10 % apart"),
    ],
)
def test_no_estimate(row: Row, workload: Workload, quarter: float, half: float, full: float, text: str) -> None:
    with pytest.raises(SimulationError) as error:
        times(row, workload, quarter, half, full)
    assert text in str(error.value)
    assert str(error.value).startswith("window: 64 leading tokens of deepep give no estimate: ")
    assert error.value.exit_code == 1
