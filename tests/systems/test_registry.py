"""Registration: facts that a system must declare, facts that contradict each other, broken systems from outside."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from outside import Options, PaperOptions, plan_paper, plan_real, registered

import dysharp as ds
from dysharp.base.errors import ConfigError, ProgramError
from dysharp.program import Discipline
from dysharp.systems import Costs, Facts, Moves, Shown, get_system, registry, system
from dysharp.systems.building.paper_layers import begun
from dysharp.systems.facts import Layer

FACTS = Facts(source="a test", options=PaperOptions, moves=Moves("one_copy_per_gpu"), costs=Costs(permutes=0, fused=False))


@dataclass(frozen=True, slots=True)
class NoDefault:
    chunks: int


@pytest.mark.parametrize("fact", ["permutes", "fused"])
def test_a_fact_that_changes_layer_times_has_no_default(fact):
    declared: dict[str, Any] = {"permutes": 0, "fused": False}
    del declared[fact]
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{fact}'"):
        Costs(**declared)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"shown": Shown("green")}, 'system "toy": found shown.colour \'green\', expected "#RRGGBB"'),
        (
            {"costs": Costs(permutes=0, fused=False, gemms=("library", "fused"))},
            "system \"toy\": found costs.gemms alone, expected costs.gemms and option 'gemms'",
        ),
        ({"options": NoDefault}, "system \"toy\": found option 'chunks' without a default, expected a default"),
        ({"costs": Costs(permutes=-1, fused=False)}, 'system "toy": found costs.permutes -1, expected 0 or more'),
        (
            {"moves": Moves("one_copy")},
            "system \"toy\": found moves.sent 'one_copy', expected a function or one of "
            "one_copy_per_gpu, one_copy_per_expert, multicast, allgather, ring, none",
        ),
        ({"options": Options}, "system \"toy\": found option 'form' alone, expected real and option 'form'"),
    ],
)
def test_contradictions_are_refused(facts, text):
    with pytest.raises(ConfigError) as error:
        system("toy", replace(FACTS, **facts))
    assert str(error.value) == text


def test_a_real_form_needs_the_option_form():
    with pytest.raises(ConfigError, match="system \"toy\": found real alone, expected real and option 'form'"):
        system("toy", FACTS, real=plan_real)


def test_a_plan_that_returns_no_program_is_named() -> None:
    def plan(*arguments: Any) -> None: ...

    text = 'system "toy": found NoneType from plan, expected a Program'
    with registered("toy", plan, PaperOptions) as toy, pytest.raises(ProgramError, match=text):
        ds.run(toy, model="S-8", gpus=2, tokens=4)


def test_a_plan_without_gemms_is_not_fast() -> None:
    def plan(layer: Any, options: Any) -> None:
        layer.dispatch_puts()
        layer.combine_puts(Discipline.READY_FIFO)

    with registered("toy", plan, PaperOptions) as toy, pytest.raises(ProgramError, match='system "toy": found no GEMM from plan, expected those of'):
        ds.run(toy, model="S-8", gpus=2, tokens=4)


def test_a_broken_system_from_outside_is_named(monkeypatch):
    def load() -> None:
        costs = Costs()  # type: ignore[call-arg]
        system("theirs", Facts(source="elsewhere", options=PaperOptions, moves=Moves("none"), costs=costs))(plan_paper)

    entry = SimpleNamespace(name="theirs", value="their.package", load=load)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry._scan.cache_clear()
    text = r"entry point theirs = their.package \(dysharp.systems\): found TypeError: .*'permutes' and 'fused'"
    try:
        with pytest.raises(ConfigError, match=text):
            get_system("theirs")
        assert get_system("deepep").costs.permutes == 1  # its own module has it
    finally:
        monkeypatch.undo()
        registry._scan.cache_clear()


def test_a_system_comes_from_the_module_of_its_name():
    """Other modules are imported where no module has the name; a name that is no module of systems is unknown."""
    script = "import sys; from dysharp.systems import get_system; get_system('deepep-ll'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "dysharp.systems.deepep_ll" in loaded
    assert "dysharp.systems.megamoe" not in loaded
    assert get_system("mh-dep").name == "mh-dep"
    for name in ("facts", "building", "", "a.b"):
        with pytest.raises(ConfigError, match=f"system '{name}': unknown"):
            get_system(name)


def test_a_name_belongs_to_one_module():
    """A system from outside neither hides a packaged one nor is hidden by it."""
    text = 'system "deepep": found it in dysharp.systems.deepep and in tests.systems.test_registry, expected a name of its own'
    before = get_system("deepep")
    with pytest.raises(ConfigError, match=re.escape(text)):
        system("deepep", Facts(source="elsewhere", options=PaperOptions, moves=Moves("none"), costs=Costs(permutes=1, fused=False)))(own)
    assert get_system("deepep") is before


def own(*arguments: Any) -> None:
    """A plan of this module."""


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
    assert [ideal.is_one_kernel({"gemms": word}) for word in ideal.costs.gemms] == [False, True, True]


ONE_KERNEL = sorted(name for name, one in registry.all_systems().items() if one.costs.fused)


@pytest.mark.parametrize("name", ONE_KERNEL)
@pytest.mark.parametrize("cluster", ["hw-dgx-h100", "hw-dgx-b200", "paper-gh200-nvl32"])
def test_one_kernel_has_tiles_of_a_fused_kernel_with_or_without_the_option_weights(name, cluster):
    """`nvls-groups` beside `fusion-only` compares how rows move, so their GEMMs are alike."""
    model = ds.load_model("gpt-oss-20b")
    machine = ds.load_cluster(cluster).with_gpus(4)
    layer = Layer(model, machine, ds.make_routing("uniform", model, 4, 64), "fwd")
    tiling, fused = (begun(one, get_system(one), layer, get_system(one).options()).tiling for one in (name, "fusion-only"))
    assert (tiling.rows, tiling.row_step, tiling.part, tiling.fill_us) == (fused.rows, fused.row_step, fused.part, fused.fill_us)


def test_layers_are_whole_unless_asked_otherwise():
    """`compute`: the GEMMs are in the time of a layer."""
    options = [s.options() for s in registry.all_systems().values()]
    assert all(o.compute for o in options if hasattr(o, "compute"))
    assert sum(hasattr(o, "compute") for o in options) > 10
