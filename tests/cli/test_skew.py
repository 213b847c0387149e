"""`run --start --slow`: the printed waiting lines are those of the JSON; wrong texts are one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Call = Callable[..., Any]
RUN = ("run", "deepep", "--gpus", "4", "--tokens", "8", "--routing", "uniform", "--start", "rank=1:30", "--slow", "rank=2:1.5")


def test_the_text_has_the_mean_and_the_longest_wait(dysharp: Call) -> None:
    done = dysharp(*RUN)
    row = json.loads(dysharp(*RUN, "--json").out)
    assert "skew: 1 of 4 ranks start late, by 30 us at most, 7.5 us on average; GEMM times: rank 2 x1.5" in done.err
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert max(map(len, lines)) <= 100
    head = next(i for i, line in enumerate(lines) if line.startswith("span, mean over ranks"))
    parts = row["waiting_us"]["dispatch"]
    mean = {name: sum(us) / 4 for name, us in parts.items()}
    words = {"moving": "moving", "resource": "resource", "own": "hidden wait", "peers": "peers"}
    seen = ", ".join(f"{text} {mean[part]:.1f} us" for part, text in words.items() if f"{mean[part]:.1f}" != "0.0")
    said = f"{mean['span']:.1f} us: {seen}"
    longest = max(parts["peers"])
    assert lines[head + 1].split(maxsplit=1) == ["dispatch", f"{said}; peers up to {longest:.1f} us (rank {parts['peers'].index(longest)})"]
    assert 25 < longest < 30
    assert "late start 30.0 us" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--start", "fixed:x"), "start fixed: found 'x', expected a number from 0 to 1e+06"),
        (("--slow", "rank=9:2"), "slow '9:2': found rank '9', expected 0 to 3"),
    ],
)
def test_wrong_texts_are_one_line(dysharp: Call, flags: tuple[str, str], message: str) -> None:
    done = dysharp("run", "deepep", "--gpus", "4", "--tokens", "8", *flags)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_the_list_of_routings(dysharp: Call) -> None:
    out = dysharp("list", "routings").out.splitlines()
    at = out.index("hot-rank:share=F[:rank=N]")
    assert out[at + 1 : at + 3] == [
        "    the experts of one GPU take this share of all choices",
        "    source: TensorRT-LLM, tools/layer_wise_benchmarks, BalanceMethod.ImbalancedRanks",
    ]
    recorded = " ".join(out[out.index("trace:NAME_OR_FILE[:layer=L][:window=W]") + 1 :][:4])
    assert "packaged trace: deepseek-v2-lite, " in recorded, "headers of drawn routing name this list"
    assert "routings" in dysharp("list", "routngs").err


def test_a_comparison_names_the_late_start(dysharp: Call) -> None:
    done = dysharp("compare", "--systems", "deepep,comet", "--gpus", "4", "--tokens", "8", "--routing", "uniform", "--start", "fixed:500")
    assert done.code == 0
    assert "late start of a rank" in " ".join(done.out.split())
