"""The search of settings: the same budget for every system, and the best of its grid."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import dysharp as ds
from dysharp.base.errors import ConfigError
from dysharp.planning.advice.tuning import BUDGET, KNOBS, TuningSearch, _grid, _has_knob, _values_of, search
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.job import Job
from dysharp.runs.request import make_request, make_workload, takes
from dysharp.systems import all_systems, get_system

SMALL: dict[str, Any] = {"model": "deepseek-v2-lite", "gpus": 4, "tokens": 8, "routing": "uniform"}


@takes(RequestArgs)
def request_of(**arguments: Any) -> Any:
    """A Request with defaults for what is not given."""
    return make_request(arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("cluster", ["hw-dgx-h100", "hw-gb200-nvl72", "paper-gh200-nvl32"])
def test_every_system_has_the_same_budget(cluster: str) -> None:
    """Fewer settings only where the knobs have fewer values in all, or where an even share of the budget leaves some."""
    request = request_of(**SMALL | {"cluster": cluster})
    tuned = 0
    for system in all_systems().values():
        knobs = [knob for knob in KNOBS if _has_knob(system, request, {}, knob)]
        if not knobs:
            continue
        tuned += 1
        values = [_values_of(system, request, knob) for knob in knobs]
        settings = _grid(system, request, knobs)
        each = int(BUDGET ** (1 / len(knobs)) + 1e-9)
        assert len(settings) == len({tuple(setting.values()) for setting in settings}) <= BUDGET
        expected = 1
        for numbers in values:
            expected *= min(each, len(numbers))
        assert len(settings) == expected, system.name
    assert tuned >= 3


def test_the_default_is_among_the_settings_of_two_knobs() -> None:
    request = request_of(**SMALL | {"cluster": "paper-gh200-nvl32"})
    assert {"dispatch_window": 0, "combine_window": 0} in _grid(get_system("dysharp"), request, ("dispatch_window", "combine_window"))


def test_knobs_without_effect_are_not_searched() -> None:
    paper = request_of(**SMALL | {"cluster": "paper-gh200-nvl32"})
    real = request_of(**SMALL | {"cluster": "hw-dgx-h100"})
    deepep = get_system("deepep")
    assert [_has_knob(deepep, r, given, "n_sm") for r, given in ((paper, {}), (real, {}), (real, {"n_sm": 8}), (real, {"form": "paper"}))] == [
        *(False, True, False, False)
    ]


def test_the_best_of_the_grid_is_chosen_and_refusals_are_left_out() -> None:
    """Times from a table, no simulation."""
    workload = make_workload(request_of(**SMALL | {"cluster": "hw-dgx-h100"}))
    asked: list[Job] = []

    def runs(jobs: Sequence[Job]) -> Any:
        asked.extend(jobs)
        us = itertools.count(100, -1)  # a later setting is faster, but the last one of each system is refused
        return [ConfigError("no") if job.given.get("n_sm") == 64 else (SimpleNamespace(time_us=float(next(us)), tokens_per_gpu=8),) for job in jobs]

    systems = {name: get_system(name) for name in ("deepep", "hybrid-ep", "deepep-ll")}
    found = search(runs, workload, systems, {name: {} for name in systems}, ("n_sm",))
    assert set(found) == {"deepep", "hybrid-ep"}  # nothing to tune in deepep-ll
    for name, one in found.items():
        assert one.runs == sum(job.system == name for job in asked)
        assert one.best == min(one.tried, key=lambda entry: entry[1])[0]
    assert 64 not in [setting["n_sm"] for setting, _ in found["hybrid-ep"].tried]


def test_few_tokens_that_take_as_long_with_every_setting_do_not_tell() -> None:
    """Times from a table: those of Hybrid-EP are alike, because few tokens fill no more than one chunk. The default stays."""
    workload = make_workload(request_of(model="deepseek-v3", cluster="hw-dgx-h100-x4", tokens=2048, routing="uniform"))

    def runs(jobs: Sequence[Job]) -> Any:
        return [(SimpleNamespace(time_us=100.0 if job.system == "hybrid-ep" else 100.0 + job.given["n_sm"], tokens_per_gpu=64),) for job in jobs]

    systems = {name: get_system(name) for name in ("deepep", "hybrid-ep")}
    found = search(runs, workload, systems, {name: {} for name in systems}, ("n_sm",))
    assert (found["hybrid-ep"].tried, found["hybrid-ep"].best) == ((), {})
    assert found["deepep"].best == {"n_sm": found["deepep"].tried[0][0]["n_sm"]}


def test_compare_runs_with_the_best_setting() -> None:
    given = SMALL | {"cluster": "hw-dgx-h100"}
    done = ds.compare(["hybrid-ep", "deepep-ll"], tuned=True, **given)
    found, row = done.tuned["hybrid-ep"], done.rows[0]
    assert (found.runs, found.tokens) == (BUDGET, 8)
    times = [ds.run("hybrid-ep", options=dict(setting), **given).time_us for setting, _ in found.tried]
    assert times == [us for _, us in found.tried]
    assert row.time_us == min(times)
    assert found.best.items() <= row.options.items()
    assert list(done.to_dict()["tuned"]) == ["hybrid-ep"]


def test_a_setting_that_only_few_tokens_prefer_is_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = TuningSearch((({"n_sm": 4}, 1.0),), {"n_sm": 4}, 1, 8)
    monkeypatch.setattr("dysharp.api.comparison.tune", lambda systems, request: {"deepep": slow})
    given = {"model": "S-8", "tokens": 256, "gpus": 8, "cluster": "hw-dgx-h100"}
    done = ds.compare(["deepep"], tuned=True, **given)
    usual = ds.run("deepep", **given)
    assert done.rows[0].time_us == usual.time_us < ds.run("deepep", options={"n_sm": 4}, **given).time_us
    assert (done.tuned["deepep"].best, done.tuned["deepep"].overruled) == ({}, {"n_sm": 4})
