"""`examples/merged_layers.py`: what it prints, and its merges on the oracle."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dysharp.analysis import attribute, traffic_bytes
from dysharp.analysis.phases import LastGpu
from dysharp.analysis.waiting import waiting_us
from dysharp.engine.burst.run import run_burst
from dysharp.oracle import run_oracle
from dysharp.program.merge import merge
from dysharp.program.verify import verify

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "merged_layers.py"))


@pytest.mark.parametrize("system", ["dysharp", "deepep"])
def test_the_answer_comes_first_and_a_merge_takes_between_one_part_and_both(system: str, capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"](system)
    answer, alone, path = capsys.readouterr().out.splitlines()
    beside, behind = (float(us) for us in re.findall(r"([0-9.]+) us", answer))
    forward, backward = (float(us) for us in re.findall(r"([0-9.]+) us", alone))
    assert max(forward, backward) < beside < behind
    assert behind < 1.001 * (forward + backward)  # SMs share the memory first come, first served: another order costs up to a part in a thousand
    named = re.findall(r"([AB])\.(?:dispatch|gemm[12]|combine|other) ([0-9.]+) us", path)
    assert {label for label, _ in named} <= {"A", "B"}
    assert sum(float(us) for _, us in named) == pytest.approx(beside, abs=0.5)


@pytest.mark.parametrize("streams", [[], [["A", "B"]]], ids=["side by side", "one behind the other"])
def test_engine_and_oracle_agree(streams: list[list[str]]) -> None:
    program = merge(EXAMPLE["parts"]("dysharp", gpus=4, tokens=8), streams=streams)
    verify(program)
    assert run_burst(program)[0].digest() == run_oracle(program).digest()


def test_outputs_name_the_parts() -> None:
    parts = EXAMPLE["parts"]("dysharp", gpus=4, tokens=8)
    merged = merge(parts)
    trace = run_burst(merged)[0]
    names = tuple(f"{label}.{name}" for label in ("A", "B") for name in ("dispatch", "gemm1", "gemm2", "combine", "other"))
    assert tuple(LastGpu(merged, trace).phases_us()) == tuple(waiting_us(merged, trace)) == names
    assert sum(attribute(merged, trace).values()) == trace.time_ps
    moved, alone = traffic_bytes(merged, trace), {p.label: traffic_bytes(p.program, run_burst(p.program)[0]) for p in parts}
    assert moved == {side: {f"{label}.{name}": n for label in alone for name, n in alone[label][side].items()} for side in moved}
