"""`--window` gives no estimate where the leading tokens do not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dysharp as ds
from dysharp.analysis import Row
from dysharp.errors import SimulationError
from dysharp.runs.request import RequestArgs, _arguments, make_request
from dysharp.runs.window import run_window
from dysharp.runs.workload import Workload, make_workload


@pytest.fixture(scope="module")
def row() -> Row:
    return ds.run("deepep", model="deepseek-v2-lite", gpus=2, tokens=8)


@pytest.fixture(scope="module")
def workload() -> Workload:
    defaults = {name: argument.default for name, argument in _arguments(RequestArgs).items()}
    given = {"model": "deepseek-v2-lite", "gpus": 2, "tokens": 128, "fidelity": "packet", "window": 64}
    return make_workload(make_request(RequestArgs(**(defaults | given))))  # type: ignore[typeddict-item]


def times(row: Row, workload: Workload, quarter: float, half: float, full: float) -> Row:
    by_tokens = {16: quarter, 32: half, 64: full}
    return run_window(workload, lambda part: replace(row, time_us=by_tokens[part.request.tokens], tokens_per_gpu=part.request.tokens))


def test_a_settled_rate_is_an_estimate(row: Row, workload: Workload) -> None:
    found = times(row, workload, 26.0, 42.0, 74.0)
    assert found.window["time_us"] == pytest.approx(138.0)
    assert found.warnings == row.warnings


def test_a_rate_that_is_nearly_settled_is_a_warning(row: Row, workload: Workload) -> None:
    assert "the estimate from half as many differs" in times(row, workload, 26.0, 44.0, 76.0).warnings[-1]


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
