"""`dysharp advise MODEL --libraries`: its screen, its JSON, and one line for wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.slow
def test_the_command_prints_one_screen(dysharp: Callable[..., Any]) -> None:
    done = dysharp("advise", "deepseek-v2-lite", "--libraries", "--tokens", "8", "--cluster", "hw-dgx-h100,hw-gb200-nvl72")
    lines = done.out.splitlines()
    assert done.code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("Fastest: 8 GPUs of hw-dgx-h100: ")
    assert "error bar" in done.out
    same = dysharp("advise", "deepseek-v2-lite", "--libraries", "--tokens", "8", "--json")
    values = json.loads(same.out)
    assert [(cell["gpus"], cell["nodes"]) for cell in values["cells"]] == [(8, 1), (16, 2)]
    assert {"library", "us", "low_us", "high_us", "p90_error", "rows"} <= set(values["cells"][0]["calls"][0])


WRONG = {
    ("--phase", "decode"): "advise --libraries: found --phase, expected --cluster, --gpus, --tokens, --regime or --json",
    ("--regime", "hot"): "regime: found 'hot', expected drained, chained, graph",
    ("--gpus", "7"): "found [7] GPUs for 64 experts on hw-dgx-h100, expected a divisor of the experts, in one domain or whole nodes",
    ("--tokens", "0"): "tokens: found [0], expected whole numbers of at least 1",
    ("--cluster", "hw-mi455x-helios"): "found cluster hw-mi455x-helios of GPU mi455x, expected a cluster of ",
}


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_input_gets_one_line(flags: tuple[str, ...], dysharp: Callable[..., Any]) -> None:
    done = dysharp("advise", "deepseek-v2-lite", "--libraries", *flags)
    assert done.code != 0
    assert WRONG[flags] in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_regime_is_for_libraries(dysharp: Callable[..., Any]) -> None:
    assert "found --regime without --libraries" in dysharp("advise", "deepseek-v2-lite", "--regime", "graph").err
