"""The header says in words whether the routing was recorded or drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp import run
from dysharp.runs.header import routing_line
from dysharp.runs.progress import Step
from dysharp.runs.request import routing_string
from dysharp.specs import Model, load_model
from dysharp.workload import make_routing


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("trace:deepseek-v2-lite:layer=9", "routing: recorded from a model: trace deepseek-v2-lite layer 9 in-order"),
        ("uniform", "routing: drawn at random, not recorded: uniform; recorded ones: dysharp list routings"),
        ("lognormal:0.65", "routing: drawn at random, not recorded: lognormal sigma 0.65; recorded ones: dysharp list routings"),
        ("loads:gpt-oss-20b:layer=3", "routing: drawn at random, not recorded: loads of gpt-oss-20b layer 3; recorded ones: dysharp list routings"),
        ("hot-rank:share=0.5", None),
        ("spread", None),
        ("counts:{counts}", None),
    ],
)
def test_recorded_or_drawn(tmp_path: Path, spec: str, line: str | None) -> None:
    counts = tmp_path / "c.csv"
    counts.write_text("\n".join(["model,layer,expert,count", *(f"m,4,{e},{e % 5 + 20}" for e in range(64))]))
    routing = make_routing(spec.format(counts=counts), load_model("deepseek-v2-lite"), 4, 16)
    said = routing_line(routing.description)
    assert said.startswith("routing: drawn at random, not recorded: " if routing.synthetic else "routing: recorded from a model: ")
    assert "(synthetic)" not in said
    assert line is None or said == line
    named = routing_line(routing.description, 3)
    assert named == (said if line and " layer " in line else said.replace("; recorded ones", ", draw 3; recorded ones"))


@pytest.mark.parametrize(("given", "meant"), [
    ("a.csv", "counts:a.csv"), ("a.csv:model=m", "counts:a.csv:model=m"), ("counts:a.csv", "counts:a.csv"), ("a.npz:layer=3", "trace:a.npz:layer=3"),
    ("loads:a.npz", "loads:a.npz"), ("a:b.npz", "trace:a:b.npz"), ("deepseek-v2-lite:layer=3", "trace:deepseek-v2-lite:layer=3"),
])  # fmt: skip
def test_a_file_by_its_name_takes_options(given: str, meant: str) -> None:
    """A file of several models asks for `:model=NAME`; behind the name that was typed this was an unknown distribution."""
    assert routing_string(given) == meant


def test_progress_tells_the_header_before_the_plan() -> None:
    told: list[Step] = []
    row = run("fusion-only", model=Model("m", 96, 160, 24, 5, 40, 3, 2, "bf16"), gpus=4, tokens=8, progress=told.append)
    stages = [step.stage for step in told]
    assert stages.index("routing") < stages.index("header") < stages.index("plan")
    assert told[stages.index("header")].header[:2] == tuple(row.header[:2])
