"""Laws of a plan's closed form: every layer is in one stage, a constant moves by its factor, a layout's text says what is not 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dysharp.model import layout_of
from dysharp.planning.cost import Coster, machine_of
from dysharp.planning.names import text_of
from dysharp.planning.plan import training_recipe_for
from dysharp.planning.search import FACTORS, _variations
from dysharp.planning.space import Task, default_space
from dysharp.specs import load_cluster, load_whole

H100 = load_cluster("hw-dgx-h100-x2")
MODEL = load_whole("qwen3-30b")


def coster(**lists: Iterable[Any]) -> Coster:
    machine = machine_of(H100)
    task = Task(MODEL, 16, 64, 1024, training_recipe=training_recipe_for(MODEL, machine))
    small: dict[str, Any] = {"tp": (1,), "vpp": (1,), "ep": (8,), "micro_batch": (1,), "recompute": ((),), **lists}
    return Coster(task, machine, default_space(task, machine, small))


def test_one_stage_takes_the_steps_of_all_layers_and_of_both_ends() -> None:
    """Embedding, layers and head, once for each micro-batch; what is computed, launched, exchanged and waited for is their sum."""
    one = coster(pp=(1,))
    values = one.space.candidate(0)
    done = one.cost_of(values)
    parts = ("computing", "launches", "EP communication", "collectives", "uneven stages")
    assert sum(done.parts[name] for name in parts) == pytest.approx(done.layout.micro_batches * one._sums(values)[3])
    assert done.step_us == pytest.approx(sum(done.parts.values()))


@pytest.mark.parametrize("pp", [1, 2])
def test_chunks_of_any_split_have_every_layer_once(pp: int) -> None:
    one = coster(pp=(pp,))
    done = one.cost_of(one.space.candidate(0))
    whole = one.pieces(done.values)
    assert sum(map(sum, one.chunks_us(done))) == pytest.approx(
        sum(c.forward + c.backward + c.weights for c in (whole.merged[letter] for letter in one.letters()))
    )


def test_the_spread_of_loads_moves_by_the_factor_as_other_constants_do() -> None:
    one = coster(pp=(1,))
    assert one.task.spread
    found = {factor: other.task.spread for name, factor, other in _variations(one, H100) if name == "spread of expert loads"}
    assert found == {factor: pytest.approx(one.task.spread * factor) for factor in FACTORS}
    even = Coster(replace(one.task, imbalance=1.0), one.machine, one.space)
    assert "spread of expert loads" not in {name for name, _, _ in _variations(even, H100)}


@pytest.mark.parametrize(
    ("layout", "text"), [("tp=2,pp=4,dp=8,mbs=2,m=16", "tp=2,pp=4,dp=8,mbs=2,m=16"), ("dp=8,fsdp=8,ep=4,m=3", "tp=1,pp=1,ep=4,dp=8,fsdp=8,mbs=1,m=3")]
)
def test_the_text_of_a_layout_names_what_is_shared_and_nothing_else(layout: str, text: str) -> None:
    """A layout is read back from its text."""
    given = layout_of(layout)
    values = {name: getattr(given, name) for name in ("tp", "pp", "vpp", "ep", "etp", "cp")}
    found = text_of(SimpleNamespace(values=values, layout=given))  # type: ignore[arg-type]
    assert found == text
    assert layout_of(found) == given
