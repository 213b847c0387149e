"""Costs learned from whole runs: what the rows say is found, a bad row moves little, order does not matter, and the file is a cluster."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dysharp as ds
from dysharp.api.learning import Learning, learning, posterior_of, rows_in, toml_of
from dysharp.base.errors import ConfigError
from dysharp.cli.entry import main
from dysharp.measured.learned import COSTS, Cost, kernels_of, next_rows, solve
from dysharp.measured.serving.predictions import predict_row
from dysharp.measured.serving.setting import ServingRow, setting_of
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row
from dysharp.specs import Cluster, load_cluster

BASE = load_cluster("hw-aws-p5-x8")
HEADER = "id,model,hardware,fabric,gpus,precision,gbs,mbs,seq,tp,pp,ep,dp,dispatcher,step_s"
CELLS = [(4, 16, 4, "alltoall"), (1, 16, 4, "alltoall"), (4, 16, 4, "deepep-uccl"), (1, 32, 2, "deepep-nvshmem"), (4, 32, 2, "alltoall")]
GOOD = (Cost("a", 0.5, "one"), Cost("b", 0.3, "other"))


def ran(*args: str) -> object:
    with pytest.raises(SystemExit) as end:
        main(list(args))
    return end.value.code


def text_of(times: list[float]) -> str:
    rows = [
        f"r{i},Qwen3-30B-A3B,H100,EFA,64,bf16,256,{mbs},4096,8,{pp},{ep},{8 // pp},{name},{s!r}"
        for i, ((mbs, ep, pp, name), s) in enumerate(zip(CELLS, times, strict=True))
    ]
    return "\n".join((HEADER, *rows)) + "\n"


@pytest.fixture(scope="module")
def slower() -> str:
    """Five runs of a machine whose hosts take 1.5 times as long as those of p5."""
    rows = TrainingRow.from_csv(text_of([1.0] * len(CELLS)), "made")
    return text_of([estimate_row(row, lambda c: replace(c, host_factor=1.5 * c.host_factor)).step_us / 1e6 for row in rows])


@pytest.fixture(scope="module")
def found(slower: str) -> tuple[Learning, Cluster]:
    """What the five runs teach, and the machine."""
    rows = rows_in(slower, "made")
    assert rows is not None
    return learning(rows, BASE, "mine.toml", "mine")


@pytest.mark.slow
def test_a_slower_host_is_found(found: tuple[Learning, Cluster]) -> None:
    done, machine = found
    assert machine.host_factor == pytest.approx(1.5 * BASE.host_factor, rel=0.08)
    assert max(abs(row["after"]) for row in done.rows) < 4 < min(abs(row["before"]) for row in done.rows)
    assert all(one["now"] <= one["prior"] for one in done.costs)
    assert {"serving.step_us", "hopper.fp8_sustained"} <= set(done.untouched)
    assert next(one for one in done.costs if one["name"] == "host_factor")["now"] < 10


@pytest.mark.slow
def test_the_order_of_rows_changes_nothing(slower: str, found: tuple[Learning, Cluster]) -> None:
    rows = rows_in(slower, "made")
    assert rows is not None
    there, back = found[1], learning(rows[::-1], BASE, "mine.toml", "mine")[1]
    assert there.host_factor == pytest.approx(back.host_factor, rel=1e-9)
    assert dict(there.constants) == pytest.approx(dict(back.constants), rel=1e-9)


def test_one_row_in_ten_that_is_wrong_by_three_moves_no_cost_by_its_width() -> None:
    draw = np.random.default_rng(7)
    slope = draw.uniform(0.1, 0.9, (10, 2))
    off = slope @ np.array([0.3, -0.2]) + draw.normal(0, 0.04, 10)
    for bad in range(10):
        wrong = off.copy()
        wrong[bad] += np.log(3)
        one, other = solve(GOOD, slope, off), solve(GOOD, slope, wrong)
        assert (np.abs(one.mean - other.mean) < other.spread).all(), bad
        assert abs(other.left[bad]) > 3 * other.noise


@pytest.mark.sampled
@pytest.mark.parametrize(("factors", "named"), [((1, 3, 1, 1, 1), ["r1"]), ((1000, 1, 1, 1, 1), ["r0"]), ((1, 1, 1, 1, 1), [])])
def test_a_row_that_contradicts_is_named(factors: tuple[float, ...], named: list[str]) -> None:
    """It raises the noise by itself, so that its distance counts in the noise of rows before it."""
    rows = TrainingRow.from_csv(text_of([1.0] * len(CELLS)), "made")
    times = [factor * estimate_row(row, lambda c: c).step_us / 1e6 for row, factor in zip(rows, factors, strict=True)]
    found = rows_in(text_of(times), "made")
    assert found is not None
    done, _ = learning(found, BASE, "mine.toml", "mine")
    assert [row["id"] for row in done.rows if row["contradicts"]] == named
    assert not {"blackwell.bf16_sustained", "blackwell.fp8_sustained"} & {*done.untouched}


def test_costs_of_hopper_are_those_of_gpus_without_constants_of_their_own() -> None:
    """An AMD GPU takes the names of Hopper's costs, so BF16 rows leave FP8's rate untouched there, too."""
    rows = rows_in(text_of([1.0] * len(CELLS)).replace("H100", "MI300X"), "made")
    assert rows is not None
    untouched = learning(rows, load_cluster("hw-mi300x-x2"), "mine.toml", "mine")[0].untouched
    assert {name for name in untouched if name.endswith("_sustained")} == {"hopper.fp8_sustained"}


def test_rows_that_agree_far_away_are_no_outliers() -> None:
    """A cost whose prior has heavy tails follows three rows that say the same; one of ten is an outlier."""
    costs, far = kernels_of(["kernels of one model"]), np.array([1.4, 1.39, 1.38])
    done = solve(costs, np.ones((3, 1)), far)
    assert done.mean[0] == pytest.approx(1.38, abs=0.1)
    one = solve(costs, np.ones((10, 1)), np.r_[1.4, np.zeros(9)])
    assert abs(one.mean[0]) < 0.05


def test_rows_that_tell_most_come_first() -> None:
    slope = np.array([[0.1, 0.0], [0.9, 0.1], [0.05, 0.8], [0.85, 0.1]])
    assert set(next_rows(slope, np.eye(2), np.diag([4.0, 4.0]), 2)) == {1, 2}


def test_every_cost_acts_on_a_machine_that_has_it() -> None:
    for cost in COSTS:
        assert cost.of(cost.times(BASE, 1.1)) == pytest.approx(1.1 * cost.of(BASE)), cost.name


@pytest.fixture(scope="module")
def learned(slower: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cluster file of the slower machine, as text; `calibrate` printed a screen."""
    folder = tmp_path_factory.mktemp("learned")
    rows, out = folder / "rows.csv", folder / "mine.toml"
    rows.write_text(slower)
    with redirect_stdout(screen := io.StringIO()):
        assert ran("calibrate", str(rows), "--base", BASE.name, "-o", str(out)) == 0
    assert screen.getvalue().startswith("5 rows: median error")
    assert "no row touches: " in screen.getvalue()
    return out.read_text()


def test_the_command_writes_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], slower: str, mine: Path) -> None:
    assert ds.load_cluster(mine).host_factor == pytest.approx(3.0, rel=0.08)
    data, out = tmp_path / "runs.csv", tmp_path / "other.toml"
    data.write_text(slower)
    assert ran("calibrate", str(data), "--base", "hw-aws-p5-x8", "-o", str(out), "--json") == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)["costs"]} >= {"host_factor", "proxy.uccl_us"}
    assert ran("calibrate", str(data), "--base", "hw-dgx-b200", "-o", str(out)) == 2
    assert "found no row that is predicted on hw-dgx-b200 (of h100-sxm), expected one" in capsys.readouterr().err


@pytest.fixture
def mine(learned: str, tmp_path: Path) -> Path:
    """The cluster file of the slower machine."""
    (out := tmp_path / "mine.toml").write_text(learned)
    return out


@pytest.mark.slow
def test_a_learned_machine_has_its_own_interval(mine: Path) -> None:
    asked: dict[str, Any] = {"layout": "pp=8,ep=8,dp=8,mbs=1,gbs=256", "systems": ["deepep"], "quick": True}
    packaged, own = (ds.step("qwen3-30b", cluster, **asked) for cluster in (BASE.name, str(mine)))
    assert packaged.interval is not None
    assert own.interval is not None
    low, high = own.to_dict()["step_us_90"]
    assert low < own.best.step_us < high < packaged.interval.high90 / packaged.interval.low90 * low
    assert any(line.startswith(f"The 5 rows of {mine} say: steps take") for line in own.header)
    known = posterior_of(str(mine), "steps")
    assert known is not None
    assert posterior_of(str(mine), "serving") is None is posterior_of(BASE.name, "steps")
    least = known.width(np.zeros((1, len(known.costs))))[0]  # of an answer that no cost moves: the noise of a row
    assert np.log(own.interval.high90) > least > np.log(own.interval.high80)


@pytest.mark.slow
def test_a_plan_has_the_interval_of_the_rows(mine: Path) -> None:
    """The same words and the same field as `step`, about the best layout."""
    asked: dict[str, Any] = {"batch": 256, "quick": True}
    packaged, own = (ds.plan("qwen3-30b", 64, cluster, **asked) for cluster in (BASE.name, str(mine)))
    assert packaged.learned is None
    assert packaged.interval is not None
    assert own.learned is not None
    best, found = own.plan.first.found.best[0], own.to_dict()
    assert f"The 5 rows of {mine} say: steps take {own.learned.words}." in own.sentence()
    assert found["step_us_90"] == pytest.approx([best.step_us * own.learned.low90, best.step_us * own.learned.high90])
    assert found["error_percent"][0] == pytest.approx(100 * own.learned.typical)
    stepped = ds.step("qwen3-30b", str(mine), "pp=8,ep=8,dp=8,mbs=1,gbs=256", systems=["deepep"], quick=True)
    assert stepped.interval is not None
    assert own.learned.high90 == pytest.approx(stepped.interval.high90, rel=0.15)  # both hang on the same few costs


def test_a_served_answer_has_the_interval_of_the_rows(mine: Path) -> None:
    """The interval follows the costs that the answer depends on: a surer host is a narrower interval."""
    text = mine.read_text().replace('kinds = ["steps"]', 'kinds = ["serving"]')
    mine.write_text(text)
    one = ds.serve("qwen3-30b", str(mine), gpus=1)
    mine.write_text(text.replace('"hbm.fraction" = 5', '"hbm.fraction" = 30'))
    other = ds.serve("qwen3-30b", str(mine), gpus=1)
    assert one.learned is not None
    assert other.learned is not None
    assert one.learned.high90 < other.learned.high90
    assert "by the 5 rows of this machine" in one.trust()[0]
    tpot = one.best[0].served.tpot / 1e3
    assert one.to_dict()["best"][0]["tpot_ms_90"] == pytest.approx([tpot * one.learned.low90, tpot * one.learned.high90])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("noise = ", "noise = -", "found noise -0"),
        ("correlation = [[1.0", "correlation = [[2.0", "numbers of -1 to 1"),
        ("correlation = [[1.0,", "correlation = [[", "expected correlation"),
        ("freedom", "freed", "found kinds, rows, noise, freed, correlation, expected"),
        ('"host_factor" = ', '"scale_out.rate" = ', "found 'scale_out.rate', expected a cost"),
        ("correlation = [[1.0", "correlation = [[0.0", "correlations that no costs can have"),
    ],
)
def test_a_broken_posterior_is_one_line(before: str, after: str, said: str, mine: Path) -> None:
    start, learned = mine.read_text().split("[learned]")
    mine.write_text(f"{start}[learned]{learned.replace(before, after, 1)}")
    with pytest.raises(ConfigError) as error:
        posterior_of(str(mine), "steps")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_kinds_of_another_type_teach_nothing(mine: Path) -> None:
    mine.write_text(mine.read_text().replace('kinds = ["steps"]', "kinds = 5"))
    assert posterior_of(str(mine), "steps") is None


SERVED = "id,engine,model,hardware,mode,precision,isl,osl,concurrency,tp,moe_ep,tpot_ms,quality\n"


def served_text(factor: float) -> str:
    """Three runs of a server whose kernels take `factor` times as long."""
    text = SERVED + "".join(f"s{users},sglang,Qwen3-30B-A3B,H100,agg,fp8,1024,1024,{users},1,1,1,A\n" for users in (4, 16, 64))
    rows = ServingRow.from_csv(text, "made")
    known = kernels_of(setting_of(row).replica.own for row in rows)[0].name
    slower = [predict_row(row, lambda c: replace(c, constants=((known, factor),))).tpot_ms for row in rows]
    lines = text.splitlines()
    return "\n".join([lines[0], *(line.replace(",1,1,1,A", f",1,1,{ms!r},A") for line, ms in zip(lines[1:], slower, strict=True))]) + "\n"


def test_kernels_of_a_served_model_are_a_cost_of_their_own(tmp_path: Path) -> None:
    base = load_cluster("hw-dgx-h100")
    rows = rows_in(served_text(1.6), "made")
    assert rows is not None
    done, machine = learning(rows, base, "mine.toml", "mine")
    assert dict(machine.constants)["serving.kernels qwen3-30b fp8-block"] == pytest.approx(1.5, rel=0.1)
    assert max(abs(row["after"]) for row in done.rows) < 6
    path = tmp_path / "mine.toml"
    path.write_text(toml_of(done, machine, "hw-dgx-h100", "made"))
    assert dict(load_cluster(path).constants) == pytest.approx(dict(machine.constants), rel=1e-3)
    taught = ds.serve("qwen3-30b", cluster=str(path), gpus=1, precision="fp8")
    other, packaged = (ds.serve("qwen3-8b", cluster=one, gpus=1) for one in (str(path), base))
    assert other.best[0].served.tpot == pytest.approx(packaged.best[0].served.tpot, rel=0.02)  # rows of one model say nothing of another's kernels
    assert taught.learned is not None
    assert other.learned is not None
    assert 1.1 < taught.learned.high90 < other.learned.high90 - 0.1
    with pytest.raises(ConfigError, match=r"serving.kernels qwen3-30b fp8: found 9, expected 0.2 to 5"):
        replace(base, constants=(("serving.kernels qwen3-30b fp8", 9.0),))
