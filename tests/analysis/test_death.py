"""What dies with a GPU or a plane, counted by hand on a layer without GEMMs."""

from __future__ import annotations

import re

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.workload import make_routing
from dysharp.workload.routing import needed_gpus


def dies(system: str, text: str) -> dict[str, list[str]]:
    done = dysharp.trace(system, model="S-8", gpus=4, tokens=16, routing="uniform", dies=text, options={f"{system}.compute": False})
    assert done.to_dict()["dies"] == [list(fact) for fact in done.dies]
    found: dict[str, list[str]] = {}
    for name, value in done.dies:
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("system", ["deepep", "dysharp"])
def test_at_the_start_all_is_lost_and_at_the_end_nothing(system: str) -> None:
    model = dysharp.specs.load_model("S-8")
    needed = int(needed_gpus(make_routing("uniform", model, 4, 16))[:, 2].sum() - needed_gpus(make_routing("uniform", model, 4, 16))[32:48, 2].sum())
    first, last = dies(system, "gpu:2@0"), dies(system, "gpu:2@100")
    assert first["lost with it"] == ["16 tokens of its own, and work on rows of others, 0% of which had arrived"]
    assert first["lost to others"] == [f"{needed} of {needed} tokens that need its experts have no sum yet"]
    assert last["lost to others"] == [f"0 of {needed} tokens that need its experts have no sum yet"]


def test_only_what_concerns_the_system_notices() -> None:
    plain, switch, plane = dies("deepep", "gpu:0@50"), dies("dysharp", "gpu:0@50"), dies("dysharp", "plane:8@50")
    assert [any("multimem" in text for text in found["notices"]) for found in (plain, switch, plane)] == [False, True, False]
    assert "8 of 9 planes carry it" in plane["the rest"][0]


@pytest.mark.parametrize("text", ["gpu:4@50", "plane:9@1", "gpu:1", "gpu:x@3", "gpu:1@101", "host:1@1", "gpu:-1@5"])
def test_a_part_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"dies: found {text!r}, expected gpu:0@0 to gpu:3@100 or plane:0@0 to plane:8@100")):
        dies("deepep", text)
