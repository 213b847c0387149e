"""Costs learned from whole runs: what the rows say is found, a bad row moves little, order does not matter, and the file is a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dysharp as ds
from dysharp.api.learning import learning, rows_in
from dysharp.cli.entry import main
from dysharp.measured.learned import COSTS, Cost, next_rows, solve
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row
from dysharp.specs import load_cluster

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


def test_a_slower_host_is_found(slower: str) -> None:
    rows = rows_in(slower, "made")
    assert rows is not None
    done, machine = learning(rows, BASE, "mine.toml", "mine")
    assert machine.host_factor == pytest.approx(1.5 * BASE.host_factor, rel=0.08)
    assert max(abs(row["after"]) for row in done.rows) < 4 < min(abs(row["before"]) for row in done.rows)
    assert all(one["now"] <= one["prior"] for one in done.costs)
    assert {"serving.step_us", "blackwell.bf16_sustained"} <= set(done.untouched)
    assert next(one for one in done.costs if one["name"] == "host_factor")["now"] < 10


def test_the_order_of_rows_changes_nothing(slower: str) -> None:
    rows = rows_in(slower, "made")
    assert rows is not None
    there, back = (learning(own, BASE, "mine.toml", "mine")[1] for own in (rows, rows[::-1]))
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


def test_rows_that_tell_most_come_first() -> None:
    slope = np.array([[0.1, 0.0], [0.9, 0.1], [0.05, 0.8], [0.85, 0.1]])
    assert set(next_rows(slope, np.eye(2), np.diag([4.0, 4.0]), 2)) == {1, 2}


def test_every_cost_acts_on_a_machine_that_has_it() -> None:
    for cost in COSTS:
        assert cost.of(cost.times(BASE, 1.1)) == pytest.approx(1.1 * cost.of(BASE)), cost.name


def test_the_command_writes_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], slower: str) -> None:
    data, out = tmp_path / "runs.csv", tmp_path / "mine.toml"
    data.write_text(slower)
    assert ran("calibrate", str(data), "--base", "hw-aws-p5-x8", "-o", str(out)) == 0
    screen = capsys.readouterr().out
    assert screen.startswith("5 runs: median error")
    assert "no row touches: " in screen
    mine = ds.load_cluster(out)
    assert mine.host_factor == pytest.approx(3.0, rel=0.08)
    assert ran("calibrate", str(data), "--base", "hw-aws-p5-x8", "-o", str(out), "--json") == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)["costs"]} >= {"host_factor", "proxy.uccl_us"}
    assert ran("calibrate", str(data), "--base", "hw-dgx-b200", "-o", str(out)) == 2
    assert "found no row that is predicted on hw-dgx-b200 (of h100-sxm), expected one" in capsys.readouterr().err
