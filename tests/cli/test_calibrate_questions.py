"""`calibrate --next`, `--diff`, and rows of every kind in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dysharp as ds
from dysharp.api import asking
from dysharp.costs import collective_us
from dysharp.measured.learned import Cost, solve
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row
from dysharp.specs import load_cluster, load_gpu
from dysharp.specs.fitted import fitted_values

Call = Callable[..., Any]
BASE = "hw-aws-p5-x8"
SAMPLES = Path(__file__).parents[1] / "measured" / "formats" / "samples"
STEP = "step qwen3-30b --layout tp=8,pp=2,ep=16,dp=4,mbs=1,m=16 --quick"
RUNS = "id,model,hardware,fabric,gpus,precision,gbs,mbs,seq,tp,pp,ep,dp,dispatcher,step_s\n" + "".join(
    f"r{mbs}-{ep},Qwen3-30B-A3B,H100,EFA,64,bf16,256,{mbs},4096,8,{pp},{ep},{8 // pp},alltoall,SECONDS\n"
    for mbs, ep, pp in ((4, 16, 4), (1, 16, 4), (1, 32, 2))
)
GEMMS = "id,kind,system,hardware,config_json,metric,value,unit,source\n" + "".join(
    f'g-{m},gemm_dense,torch,H100,"{{""dtype"":""bf16"",""m"":{m},""n"":4096,""k"":7168,""timing"":""cuda graph""}}",latency,{us},us,mine\n'
    for m, us in ((4096, 420.0), (8192, 820.0), (16384, 1620.0))
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three steps at 1.3 times the prediction, and three GEMMs."""
    rows = TrainingRow.from_csv(RUNS.replace("SECONDS", "1"), "made")
    text = RUNS
    for row in rows:
        text = text.replace("SECONDS", f"{1.3 * estimate_row(row, lambda c: c).step_us / 1e6:.6f}", 1)
    paths = [tmp_path / "steps.csv", tmp_path / "gemms.csv"]
    for path, of in zip(paths, (text, GEMMS), strict=True):
        path.write_text(of)
    return [str(path) for path in paths]


@pytest.mark.slow
def test_runs_and_kernels_make_one_file(dysharp: Call, files: list[str], tmp_path: Path) -> None:
    out, back = tmp_path / "mine.toml", tmp_path / "back.toml"
    found = json.loads(dysharp("calibrate", *files, "--base", BASE, "-o", str(out), "--json").out)
    assert len(found["rows"]) == 6
    moved = {one["name"]: one for one in found["costs"]}
    assert moved["hopper.bf16_sustained"]["now"] < 0.6 * moved["hopper.bf16_sustained"]["prior"]
    mine = ds.load_cluster(out)
    assert mine.host_factor > 1.2 * load_cluster(BASE).host_factor
    assert mine.fitted["hopper.bf16_sustained"] < load_cluster(BASE).fitted["hopper.bf16_sustained"]
    for file in files:  # the other way round
        head, *rows = Path(file).read_text().splitlines()
        Path(file).write_text("\n".join([head, *reversed(rows)]) + "\n")
    assert dysharp("calibrate", *files, "--base", BASE, "--name", "mine", "-o", str(back)).code == 0
    assert back.read_text() == out.read_text()


@pytest.fixture
def asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `STEP` says of a machine is kept over the commands of a test."""
    kept, whole = dict[str, float](), asking._log_answer

    def shared(answer: asking.Answer, *given: Any) -> Any:
        def known(text: str) -> float:
            if text not in kept:
                kept[text] = answer(text)
            return kept[text]

        return whole(known, *given)

    monkeypatch.setattr(asking, "_log_answer", shared)


@pytest.mark.slow
@pytest.mark.usefixtures("asked_once")
def test_the_next_measurement_is_named(dysharp: Call, files: list[str]) -> None:
    found = json.loads(dysharp("calibrate", "--base", BASE, "--next", STEP, "--json").out)
    first = found["measurements"][0]
    assert first["name"] == "this step"
    assert first["after"] < found["uncertainty"] / 2
    assert found["costs"][0]["name"] == "host_factor"
    known = json.loads(dysharp("calibrate", files[0], "--base", BASE, "--next", STEP, "--json").out)
    assert known["uncertainty"] < found["uncertainty"] / 2
    among = json.loads(dysharp("calibrate", "--base", BASE, "--next", STEP, "--among", files[0], "-n", "1", "--json").out)
    assert among["measurements"][0]["name"] in ("r1-32", "r1-16", "r4-16")
    screen = dysharp("calibrate", "--base", BASE, "--next", STEP).out
    assert "launches of the host" in screen
    assert "train ten iterations" in screen


@pytest.mark.slow
def test_rows_move_the_answer_as_the_file_that_they_make(dysharp: Call, tmp_path: Path) -> None:
    rows, mine = tmp_path / "served.csv", str(tmp_path / "mine.toml")
    head = "id,engine,model,hardware,mode,isl,osl,concurrency,tp,tpot_ms"
    rows.write_text(f"{head}\na,vllm,qwen3-30b,2xH100,agg,1024,1024,64,2,22\nb,vllm,qwen3-30b,2xH100,agg,1024,1024,256,2,30\n")
    line, base = "serve qwen3-30b --isl 1024 --osl 1024 --layouts tp=2", ("--base", "hw-dgx-h100")
    before, after = (json.loads(dysharp("calibrate", *of, "--next", line, *base, "--json").out) for of in ([], [str(rows)]))
    assert dysharp("calibrate", str(rows), *base, "-o", mine).code == 0
    served = json.loads(dysharp(*line.split(), "--cluster", mine, "--json").out)["best"][0]["tokens_per_s_gpu"]
    assert after["answer"] == pytest.approx(served, rel=1e-3)
    assert served < 0.95 * before["answer"]
    assert before["costs"][0]["name"] == "serving.kernels qwen3-30b bf16"
    assert after["costs"][0]["percent"] < 0.7 * before["costs"][0]["percent"]
    refused = dysharp("calibrate", "--next", line, "--base", mine)
    assert "expected a packaged hw cluster" in refused.err


@pytest.mark.slow
def test_two_machines_differ_in_a_cost(dysharp: Call, files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    assert dysharp("calibrate", files[0], "--base", BASE, "-o", str(out)).code == 0
    rows = {one["name"]: one for one in json.loads(dysharp("calibrate", "--diff", BASE, str(out), "--next", STEP, "--json").out)}
    host = rows["host_factor"]
    assert host["first_percent"] is None
    assert 0 < host["second_percent"] < 35
    assert host["change"] > 20
    assert host["effect"] > 10


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--next", "rtl al"], "--next: found 'rtl al', expected a command line of step, plan, serve, advise"),
        (["--diff", BASE], "--diff: found 1 files, expected two cluster files"),
        ([], "calibrate: found no file, expected FILES... -o OUT.toml, --next or --diff"),
        (["--next", "step --help"], "found --help in the question, expected a question about the machine of --base"),
        (["--next", "step qwen3-30b --cluster=hw-dgx-b200"], "found --cluster=hw-dgx-b200 in the question, expected a question"),
        (["--next", STEP, "-o", "x.toml"], "found -o, expected -o to write a file"),
        (["--diff", BASE, BASE, "-o", "x.toml"], "found -o, expected -o to write a file"),
        (["x.csv", "--among", "y.csv", "-o", "x.toml"], "found --among, expected -o to write a file, --among for --next alone"),
    ],
)
def test_wrong_questions(dysharp: Call, args: list[str], expected: str) -> None:
    done = dysharp("calibrate", *args)
    assert done.code == 2
    assert expected in done.err


def test_a_difference_says_what_is_no_cost(dysharp: Call) -> None:
    assert dysharp("calibrate", "--diff", BASE, BASE).out == "no cost differs\n"
    said = dysharp("calibrate", "--diff", BASE, "hw-dgx-b200-x8").out
    assert "the GPUs differ, too, whose data sheets are no costs: h100-sxm and b200" in said


def test_rows_of_another_network_are_refused(files: list[str], dysharp: Call, tmp_path: Path) -> None:
    """64 GPUs over EFA are no rows of one node, nor of nodes on InfiniBand."""
    for base in ("hw-dgx-h100", "hw-dgx-h100-x8"):
        done = dysharp("calibrate", files[0], "--base", base, "-o", str(tmp_path / "mine.toml"))
        assert done.code == 2
        assert f"over a network that {base} does not have, expected --base {BASE}" in done.err


NCCL = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
"""


def _all_reduces(factor: float) -> str:
    """nccl-tests on an H100 node whose all-reduces take `factor` times as long as predicted."""
    lines = [f"#  Rank  {n} Group  0 Pid {n} on box device  {n} [0x{n}0] NVIDIA H100 80GB HBM3" for n in range(8)]
    for size in (1 << n for n in range(24, 29)):
        us = factor * float(collective_us(load_gpu("h100-sxm"), fitted_values(), "all_reduce", 8, size))
        lines.append(f"{size} {size // 4} float sum -1 {us:.2f} {size / us / 1e3:.2f} {1.75 * size / us / 1e3:.2f} 0" + f" {us:.2f} 1 1 0")
    return NCCL + "\n".join(lines) + "\n# Out of bounds values : 0 OK\n"


def test_rows_that_fix_no_constant_are_votes(dysharp: Call, tmp_path: Path) -> None:
    """Five all-reduces alone: the file has a posterior, and the rows are closer to what is predicted."""
    (tmp_path / "n.log").write_text(_all_reduces(1.2))
    found = json.loads(dysharp("calibrate", str(tmp_path / "n.log"), "-o", str(tmp_path / "mine.toml"), "--json").out)
    assert [row["before"] for row in found["rows"]] == pytest.approx([-100 / 6] * 5, abs=0.1)
    assert max(abs(row["after"]) for row in found["rows"]) < 8
    assert all(one["now"] < one["prior"] for one in found["costs"])


def test_each_log_takes_what_is_said_of_its_kind(dysharp: Call, tmp_path: Path) -> None:
    """A model is said of a log of training beside one of nccl-tests, which has none; what no file takes is refused."""
    log, sums = SAMPLES / "megatron.log", tmp_path / "n.log"
    sums.write_text(_all_reduces(1.0))
    args = ("calibrate", str(log), str(sums), "-o", str(tmp_path / "mine.toml"), "--set", "model=mixtral-8x7b", "--set", "hardware=H100")
    assert len(json.loads(dysharp(*args, "--json").out)["rows"]) == 6
    assert "--set: found 'modl' beside a log of Megatron-LM" in dysharp(*args, "--set", "modl=x").err
    rows = tmp_path / "rows.csv"
    rows.write_text(GEMMS)
    assert "--set: found 'model' beside rows, expected a log" in dysharp("calibrate", str(rows), *args[3:]).err
    assert "found a file twice" in dysharp("calibrate", str(rows), str(rows), *args[3:5]).err


def test_many_rows_leave_an_interval_between_their_noise_and_the_prior() -> None:
    slope = np.random.default_rng(3).uniform(0.2, 0.8, (12, 1))
    done = solve((Cost("a", 0.5, "one"),), slope, slope @ np.array([0.2]))
    wide = done.width(slope)
    assert (wide < 1.645 * 0.5 * slope[:, 0]).all()
    assert (wide > 1.645 * done.noise).all()
