"""`examples/merged_layers.py`: what it prints, and its merges on the oracle."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.oracle import run_oracle
from dysharp.program.merge import merge
from dysharp.program.verify import verify

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "merged_layers.py"))


@pytest.mark.parametrize("system", ["dysharp", "deepep"])
def test_the_answer_comes_first_and_a_merge_takes_between_one_part_and_both(system: str, capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"](system)
    answer, alone = capsys.readouterr().out.splitlines()[:2]
    beside, behind = (float(us) for us in re.findall(r"([0-9.]+) us", answer))
    forward, backward = (float(us) for us in re.findall(r"([0-9.]+) us", alone))
    assert max(forward, backward) < beside < behind < forward + backward + 0.2


@pytest.mark.parametrize("streams", [[], [["A", "B"]]], ids=["side by side", "one behind the other"])
def test_engine_and_oracle_agree(streams: list[list[str]]) -> None:
    program = merge(EXAMPLE["parts"]("dysharp", gpus=4, tokens=8), streams=streams)
    verify(program)
    assert run_burst(program)[0].digest() == run_oracle(program).digest()
