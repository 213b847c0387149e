"""Registration: facts that a system must declare, facts that contradict each other, broken systems from outside."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from outside import Options, PaperOptions, plan_paper, plan_real, registered

import dysharp as ds
from dysharp.errors import ConfigError, ProgramError
from dysharp.systems import get_system, registry, system

FACTS: dict[str, Any] = {"source": "a test", "options": PaperOptions, "traffic": "one_copy_per_gpu", "permutes": 0, "fused": False}


@dataclass(frozen=True, slots=True)
class NoDefault:
    chunks: int


@pytest.mark.parametrize("fact", ["permutes", "fused"])
def test_a_fact_that_changes_layer_times_has_no_default(fact):
    declared = {name: value for name, value in FACTS.items() if name != fact}
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{fact}'"):
        system("toy", **declared)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"colour": "green"}, 'system "toy": found colour \'green\', expected "#RRGGBB"'),
        ({"gemm_variants": ("library", "fused")}, "system \"toy\": found gemm_variants alone, expected gemm_variants and option 'gemms'"),
        ({"real": plan_real}, "system \"toy\": found real alone, expected real and option 'form'"),
        ({"options": NoDefault}, "system \"toy\": found option 'chunks' without a default, expected one"),
        ({"permutes": -1}, 'system "toy": found permutes -1, expected 0 or more'),
        (
            {"traffic": "one_copy"},
            "system \"toy\": found traffic 'one_copy', expected a function or one of "
            "one_copy_per_gpu, one_copy_per_expert, multicast, allgather, ring, none",
        ),
        ({"options": Options}, "system \"toy\": found option 'form' alone, expected real and option 'form'"),
    ],
)
def test_contradictions_are_refused(facts, text):
    with pytest.raises(ConfigError) as error:
        system("toy", **(FACTS | facts))
    assert str(error.value) == text


def test_a_plan_that_returns_no_program_is_named() -> None:
    def plan(*arguments: Any) -> None: ...

    text = 'system "toy": found NoneType from plan, expected a Program'
    with registered("toy", plan, PaperOptions) as toy, pytest.raises(ProgramError, match=text):
        ds.run(toy, model="S-8", gpus=2, tokens=4)


def test_a_broken_system_from_outside_is_named(monkeypatch):
    def load() -> None:
        system("theirs", source="elsewhere", options=PaperOptions, traffic="none")(plan_paper)  # type: ignore[call-arg]

    entry = SimpleNamespace(name="theirs", value="their.package", load=load)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry._scan.cache_clear()
    text = r"entry point theirs = their.package \(dysharp.systems\): found TypeError: .*'permutes' and 'fused'"
    try:
        with pytest.raises(ConfigError, match=text):
            get_system("deepep")
    finally:
        monkeypatch.undo()
        registry._scan.cache_clear()
    assert get_system("deepep").permutes == 1


def test_the_summary_is_the_modules_or_the_plans():
    assert get_system("deepep").summary.startswith("DeepEP normal kernels")
    assert get_system("explicit").summary.startswith("Token-centric fusion with explicit target lists")
    with registered("toy") as toy:
        assert get_system(toy).summary == "Phases, one after the other."


def test_a_system_is_today_if_it_has_a_real_form_unless_it_says_otherwise():
    with registered("toy") as toy, registered("toy-paper", options=PaperOptions) as paper:
        assert get_system(toy).today
        assert get_system(toy).has_real_form
        assert not get_system(paper).today
    assert get_system("nvls").today
    assert not get_system("nvls").has_real_form


def test_one_kernel_by_fact_or_by_option():
    ideal = get_system("ideal")
    assert get_system("dysharp").is_one_kernel({})
    assert not get_system("dysharp-basic").is_one_kernel({})
    assert [ideal.is_one_kernel({"gemms": word}) for word in ideal.gemm_variants] == [False, True]
