"""`--quick`, and the first answer that stands on a terminal until the simulated one comes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dysharp import run
from dysharp.api.quick import quick_compare
from dysharp.base.errors import ConfigError
from dysharp.cli import progress_bar as progress_module
from dysharp.cli.progress_bar import bar_below, progress_bar
from dysharp.cli.quick import MARK
from dysharp.planning.quick import APART, _sizes
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing

SMALL = ("--tokens", "32", "--gpus", "4")
STEP = ("step", "deepseek-v2-lite", "--layout", "ep=8,mbs=1,m=2", "--systems", "deepep,dysharp", "--sequence", "512")
Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A quick answer that simulates fails."""
    if "whole" in request.node.name:
        return

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a quick answer has simulated")

    monkeypatch.setattr("dysharp.engine.burst.run.run_burst", refuse)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "deepep", *SMALL), ("compare", "--systems", "deepep,dysharp", *SMALL), STEP, ("advise", "deepseek-v3", "--tokens", "32"),
        ("compare", "--workload", "all-reduce:64MiB", "--cluster", "hw-dgx-h100"), ("compare", "--cluster", "hw-dgx-h100-x4", "--tokens", "64"),
    ],
)  # fmt: skip
def test_a_quick_answer_is_marked_and_says_how_far_it_goes(dysharp: Run, words: tuple[str, ...]) -> None:
    done = dysharp(*words, "--quick")
    assert done.code == 0, done.err
    assert "stands on" in done.out
    assert "closed form, -" in done.out or "bound: at least" in done.out


def test_json_of_a_quick_answer_has_the_fields_of_the_whole_answer(dysharp: Run) -> None:
    run = json.loads(dysharp("run", "deepep", *SMALL, "--quick", "--json").out)
    assert run["quick"] is True
    assert (run["kind"], run["n_ops"]) == ("closed form", None)
    assert run["low_us"] < run["time_us"] < run["high_us"]
    found = json.loads(dysharp("compare", "--systems", "deepep,dysharp", *SMALL, "--quick", "--json").out)
    assert {"rows", "baseline", "baselines", "speedup", "header", "sentence"} <= found.keys()
    assert [row["kind"] for row in found["rows"]] == ["closed form", "bound"]
    assert found["speedup"] == {"deepep": 1.0, "dysharp": None}
    step = json.loads(dysharp(*STEP, "--quick", "--json").out)
    assert step["quick"] is True
    assert {one["system"]: one["kind"] for one in step["steps"]} == {"deepep": "closed form", "dysharp": "bound"}
    assert step["system"] == "deepep"  # a bound does not answer where there is a closed form
    advice = json.loads(dysharp("advise", "deepseek-v3", "--tokens", "32", "--quick", "--json").out)
    assert {"answer", "ranking", "unjudged", "limits", "what_if", "ties", "not_ranked", "header"} <= advice.keys()
    assert advice["ranking"][0]["kind"] == "closed form"


def test_plan_stops_after_a_first_look(dysharp: Run) -> None:
    tries = [word for text in ("tp=1,2", "recompute=none,full", "swap=none", "weights=sharded", "mbs=1") for word in ("--try", text)]
    words = ("plan", "moonlight-16b", "--gpus", "8", *tries)
    quick, whole = (json.loads(dysharp(*words, *more, "--json").out) for more in (("--quick",), ()))
    assert quick["quick"] is True
    assert "quick" not in whole
    assert quick.keys() - {"quick"} == whole.keys()
    fastest = [one["shapes"][0]["best"][0]["tokens_per_s_gpu"] for one in (quick, whole)]
    assert 0 < fastest[0] <= fastest[1]
    shape = quick["shapes"][0]
    assert sum(shape["counts"].values()) == shape["candidates"]
    assert dysharp(*words, "--quick", "--rows", "1").err == "dysharp: error: plan: quick: found it beside rows, expected none (it stops before)\n"


def test_serve_does_not_simulate(dysharp: Run) -> None:
    words = ("serve", "qwen3-30b", "--layouts", "dp=8,ep=8", "--systems", "deepep")
    assert json.loads(dysharp(*words, "--quick", "--json").out)["quick"] is True
    assert "were not simulated" in " ".join(dysharp(*words, "--quick").err.split())


def test_a_quick_answer_draws_and_merges_nothing(dysharp: Run) -> None:
    assert dysharp("compare", *SMALL, "--quick", "--report", "x.html").err == (
        "dysharp: error: --quick: found --report, expected none (it shows a simulation)\n"
    )
    for command, flag in (("compare", "--tuned"), ("compare", "--why"), ("compare", "--map"), ("compare", "--finite"), ("run dysharp", "--finite")):
        assert f"--quick: found {flag}, expected none" in dysharp(*command.split(), *SMALL, "--quick", flag).err
    for words in (["--exact"], ["--fidelity", "packet"]):
        assert f"--quick: found {words[0]}, expected none" in dysharp("compare", *SMALL, "--quick", *words).err
    assert "--quick: found --baseline, expected none" in dysharp("compare", *SMALL, "--quick", "--baseline", "nvls").err  # speed-ups were over deepep
    for words in (["--fidelity", "packet"], ["--details"], ["--markdown"]):  # `advise` took them and did as if they were not there
        assert f"--quick: found {words[0]}, expected none" in dysharp("advise", "deepseek-v3", "--tokens", "32", "--quick", *words).err
    assert "blocks merged, which is simulated" in dysharp(*STEP, "--quick", "--blocks", "merged").err


def test_without_a_terminal_no_first_answer_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    def first() -> list[str]:
        raise AssertionError("made")

    with progress_bar(first=first):
        pass
    assert capsys.readouterr() == ("", "")


def test_what_a_first_answer_refuses_is_left_out() -> None:
    def first() -> list[str]:
        raise ConfigError("no")

    assert progress_module._made(first) == ()


SLOW = f"""
import sys
from dysharp.cli import progress_bar
with progress_bar.progress_bar(first=lambda: [{MARK!r}, "deepep 30 us"]):
    print("simulated", flush=True)
"""


def on_a_terminal(code: str) -> tuple[str, str]:
    """(stdout, what a terminal at stderr got) of Python code."""
    own, other = pty.openpty()
    environment = os.environ | {"COLUMNS": "100", "TERM": "xterm"}
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=other, text=True, env=environment)
    os.close(other)
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(own, 1 << 16):
                pieces.append(piece)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)  # a full terminal blocks who writes to it
    reader.start()
    out, _ = done.communicate()
    reader.join()
    os.close(own)
    return out, b"".join(pieces).decode()


def test_the_first_answer_stands_on_a_terminal_and_goes() -> None:
    out, seen = on_a_terminal(SLOW)
    assert out == "simulated\n"  # a pipe gets the last answer alone
    assert MARK in seen
    assert "deepep 30 us" in seen
    assert seen.rstrip().endswith("\x1b[2K") or "\x1b[1A" in seen  # lines are cleared


def test_the_best_so_far_is_replaced() -> None:
    code = "from dysharp.cli.progress_bar import bar_below\nwith bar_below('x') as (tick, show):\n    show(['first best'])\n    show(['second best'])"
    seen = on_a_terminal(code)[1]
    assert seen.index("first best") < seen.index("second best")
    with bar_below("x") as (_, show):
        show(["nobody looks"])


@pytest.mark.slow
def test_a_whole_command_shows_its_first_answer_before_the_last() -> None:
    words = ["run", "deepep", *SMALL]
    code = f"from dysharp.cli.entry import main\nmain({words!r})"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    out, seen = on_a_terminal(code)
    assert MARK in seen
    assert MARK not in piped.stderr
    assert out.split("\n\n")[0] == piped.stdout.split("\n\n")[0]  # below: seconds and memory of the run


@pytest.mark.parametrize(
    ("model", "tokens", "cluster"), [("deepseek-v3", 1, "hw-dgx-h100"), ("S-8", 8, "hw-dgx-b200"), ("qwen3-30b", 64, "hw-dgx-b200")]
)
def test_a_closed_form_of_few_rows_is_near_the_whole_layer(model: str, tokens: int, cluster: str) -> None:
    """Experts without rows cost nothing, starts of GEMMs count once, and Megatron's dispatchers sort rows and exchange counts, maps and gates."""
    layer = {"model": model, "tokens": tokens, "cluster": cluster, "gpus": 8}
    names = ["deepep", "deepep-ll", "flashinfer", "trtllm-a2a", "megatron-a2a", "megatron-ag"]
    for row in quick_compare(names, **layer).rows:
        assert row["kind"] == "closed form"
        assert row["time_us"] == pytest.approx(run(row["system"], **layer).layer_us, rel=APART)


@pytest.mark.parametrize(("direction", "back"), [("fwd", 2048 + 64), ("bwd", 4096)])
def test_rows_come_back_in_their_format_and_gradients_in_bf16(direction: str, back: float) -> None:
    """A row of 2048 values in FP8 has a scale of four bytes per 128."""
    cluster, model = load_cluster("hw-dgx-h100").with_gpus(4), load_model("qwen3-30b")
    routing = make_routing("uniform", model, 4, 8)
    asked: Any = SimpleNamespace(cluster=cluster, model=model, direction=direction, tokens=8)
    assert _sizes(get_system("deepep"), asked, routing, SimpleNamespace(dispatch="rows", combine="fp8")).back == back
