"""A system from outside the tree is right everywhere by what it declares: layer time, plots, advice, comparison, trust."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
from layers import dropping, layers
from matplotlib.colors import to_hex
from outside import Options, PaperOptions, plan_fused, plan_paper, registered

import dysharp as ds
from dysharp.base.errors import ConfigError
from dysharp.measured import family as families
from dysharp.measured.trust import PredictionScope, _part_judges, trust_of
from dysharp.program import Discipline, Program
from dysharp.show.plots import colour_of, plot_compare
from dysharp.specs import Cluster, Model, load_cluster, load_model
from dysharp.systems import all_systems, get_system
from dysharp.systems.building.experts import fused
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.facts import OTHER_COLOUR, Change
from dysharp.testing.conformance import conformance
from dysharp.testing.conformance.suite import RULES
from dysharp.workload import Routing
from tests.systems.program_tables import program_digests

LAYER: dict[str, Any] = {"model": "deepseek-v2-lite", "cluster": "hw-dgx-h100", "tokens": 32, "routing": "uniform"}
PARTS = ("permute_us", "activation_us", "cast_us", "launch_us")


def run(name: str) -> ds.Row:
    return ds.run(name, **LAYER)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_toys_are_systems(direction: str) -> None:
    rules = [rule.name for rule in RULES if rule.scope == "pass" and not rule.slow]
    for plan in (plan_paper, plan_fused):
        with registered("toy", plan) as toy:
            assert conformance(toy, *layers()["lognormal"], direction, rules=rules).failed == ()


def of_builder(layer: LayerBuilder, options: PaperOptions) -> None:
    """`plan_fused` with the builder that the register makes."""
    layer.dispatch_puts()
    fused(layer, layer.combine_puts(Discipline.READY_FIFO).of_useful_row)


def test_a_plan_may_take_a_builder_or_five_arguments() -> None:
    model, cluster, routing = layers()["lognormal"]
    with registered("toy", plan_fused, PaperOptions) as old, registered("toy-new", of_builder, PaperOptions) as new:
        programs = [get_system(name).plan(model, cluster, routing, "bwd", PaperOptions()) for name in (old, new)]
    assert program_digests(programs[0]) == program_digests(programs[1])


def test_a_permutation_outside_of_the_program_is_charged() -> None:
    with registered("toy-none") as none, registered("toy-one", permutes=1) as one, registered("toy-two", permutes=2) as two:
        without, once, twice = run(none), run(one), run(two)
    assert without.form == once.form == "real"
    assert without.surroundings_us["permute_us"] == 0 < once.surroundings_us["permute_us"]
    assert twice.surroundings_us["permute_us"] == pytest.approx(2 * once.surroundings_us["permute_us"])
    assert once.surroundings_us["permute_us"] == run("deepep").surroundings_us["permute_us"]
    assert twice.time_us - without.time_us == pytest.approx(twice.surroundings_us["permute_us"])


def test_one_kernel_has_only_the_time_of_the_host_around() -> None:
    with registered("toy", plan_fused, fused=True, permutes=0) as toy:
        row = run(toy)
    assert [row.surroundings_us[part] for part in PARTS] == [0.0] * 4
    assert row.surroundings_us["host_us"] > 0
    assert row.time_us == row.simulated_us


def test_the_form_follows_the_option_and_the_cluster() -> None:
    with registered("toy") as toy:
        paper, real = ds.run(toy, options={"form": "paper"}, **LAYER), run(toy)
        assert (paper.form, real.form) == ("paper", "real")
        assert paper.simulated_us < real.simulated_us
        assert ds.run(toy, model="S-8", gpus=4, tokens=16).form == "paper"
        with pytest.raises(ConfigError, match=r'form: found "real" on cluster "paper-gh200-nvl32", expected an hw-\* cluster'):
            ds.run(toy, model="S-8", gpus=4, tokens=16, options={"form": "real"})


def test_plots_use_the_declared_colour_or_the_shared_one() -> None:
    with registered("toy", colour="#123456") as toy, registered("toy-plain") as plain:
        rows = ds.compare([toy, plain, "deepep"], toy, model="S-8", gpus=4, tokens=16).rows
        bars = plot_compare(rows).patches[:3]
        assert [to_hex(bar.get_facecolor()).upper() for bar in bars] == ["#123456", OTHER_COLOUR, "#0072B2"]
    assert colour_of("toy") == OTHER_COLOUR  # rows of a system that is not installed


def test_every_system_of_the_tree_has_a_colour_of_its_own() -> None:
    colours = [s.shown.colour for s in all_systems().values()]
    assert len({*colours, OTHER_COLOUR}) == len(colours) + 1


def test_advice_ranks_it_and_tries_what_it_shows() -> None:
    change = Change("toy hardware", "a toy", rank=0)
    with registered("toy", plan_fused, fused=True), registered("toy-shows", plan_fused, PaperOptions, fused=True, change=change):
        done = ds.advise(LAYER["model"], cluster=LAYER["cluster"], tokens=LAYER["tokens"], routing="uniform", systems=["toy", "megatron-a2a"])
        toy = next(entry for entry in done.unjudged if entry.row.system == "toy")
        assert toy.around.device_us == 0.0
        assert toy.bar() is None
        assert "toy: no measurement checks predictions of its layer" in toy.row.warnings
        changes = [entry.change for entry in done.what_if]
        assert changes[-4:] == ["toy hardware", "overlap by rows", "DySHARP switches", "communication for free"]
        assert next(entry for entry in done.what_if if entry.change == "toy hardware").predicted.row.system == "toy-shows"


def test_a_bound_is_neither_the_fastest_nor_advice() -> None:
    with registered("toy", plan_fused, PaperOptions, fused=True, bound=True) as toy:
        done = ds.compare([toy, "deepep"], "deepep", model="S-8", gpus=4, tokens=64)
        assert min(done.rows, key=lambda row: row.time_us).system == toy
        assert "Fastest is deepep" in done.sentence
        with pytest.raises(ConfigError, match="advise: system toy is a bound, no system that one could build"):
            ds.advise(LAYER["model"], cluster=LAYER["cluster"], tokens=16, systems=[toy])


SHARES = {"dispatch": 0.2, "gemm1": 0.3, "gemm2": 0.3, "combine": 0.2}


def scope_of(name: str, form: str = "auto") -> PredictionScope:
    return PredictionScope(name, load_model("deepseek-v2-lite"), load_cluster("hw-dgx-h100"), 32, options={"form": form})


@pytest.mark.parametrize("facts", [{"permutes": 1}, {"plan": plan_fused, "fused": True}], ids=["permutes", "fused"])
def test_without_measurements_it_has_no_error_bar(facts: dict[str, Any]) -> None:
    with registered("toy", **facts) as toy:
        trust = trust_of(scope_of(toy), SHARES)
        assert (trust.families, trust.interval) == ((), None)
        assert trust.warnings == run(toy).warnings == ("toy: no measurement checks predictions of its layer",)
        assert trust_of(scope_of(toy, "paper"), SHARES).warnings[0].startswith("toy: the paper form charges no software cost")


def test_a_family_that_names_it_judges_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family borrows the errors of DeepEP's Dispatch; GEMMs have a family for every system."""
    with registered("toy", permutes=1) as toy:
        assert _part_judges(toy) == {}
        measured = families.get_family("deepep-dispatch")
        named = dataclasses.replace(measured, systems=(toy,), parts=("dispatch", "combine"))
        monkeypatch.setitem(families._REGISTRY, "toy-kernels", named)
        judges = _part_judges(toy)
        assert [judges[part].name for part in ("dispatch", "combine")] == ["deepep-dispatch"] * 2
        trust = trust_of(scope_of(toy), SHARES)
        assert trust.families[0] == "deepep-dispatch"
        assert trust.interval is not None
        assert trust.interval.low90 < trust.interval.high90
        assert "toy: no measurement checks predictions of its layer" not in trust.warnings


def plan_dropping(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any) -> Program:
    """Phases without every fourth choice."""
    return plan_paper(model, cluster, dropping(routing, 4), direction, options)


@pytest.mark.parametrize("direction", ["fwd", "both"])
def test_a_system_that_drops_choices_says_so(direction: str) -> None:
    with registered("toy", plan_dropping, PaperOptions) as toy:
        done = ds.compare([toy, "deepep"], "deepep", model="S-8", gpus=4, tokens=16, direction=direction)
    drops = "toy computes 378 of 512 (token, expert) rows: it drops 26.2 %"
    assert [row.warnings for row in done.rows] == [(drops,), ()]
    assert f"warning: {drops}" in done.header


@dataclass(frozen=True, slots=True)
class Formats(Options):
    sides: str = "one"
    dispatch: str = "rows"
    combine: str = "rows"
    weights: str = "model"


def advise(toy: str, options: dict[str, str]) -> ds.Advice:
    shape = {"cluster": LAYER["cluster"], "tokens": LAYER["tokens"], "routing": LAYER["routing"]}
    return ds.advise(LAYER["model"], systems=[toy], options=options, **shape)


def test_advice_prints_its_formats() -> None:
    with registered("toy", options=Formats) as toy:
        done = advise(toy, {"sides": "two", "dispatch": "fp8-plain", "weights": "nvfp4"})
    assert done.best.formats == "two-sided, Dispatch FP8 without scales, Combine BF16, weights NVFP4"
    assert "weights in NVFP4 instead of the model's BF16: numerics change" in done.best.warnings


@pytest.mark.parametrize(
    ("option", "word", "expected"),
    [
        ("sides", "left", "one or two"),
        ("dispatch", "int4", "one of rows, fp8, fp8-ue8m0, fp8-plain, mxfp8, int8, fp4-plain, nvfp4"),
        ("combine", "int4", "one of rows, fp8, fp8-ue8m0, fp8-plain, mxfp8, int8, fp4-plain, nvfp4"),
        ("weights", "int4", "one of model, fp4, mxfp8, nvfp4"),
    ],
)
def test_advice_refuses_formats_that_nothing_declares(option: str, word: str, expected: str) -> None:
    refusal = pytest.raises(ConfigError, match=rf"^toy\.{option}: found '{word}', expected {expected}$")
    with registered("toy", options=Formats) as toy, refusal:
        advise(toy, {option: word})


def test_a_layer_time_refuses_a_row_format_that_nothing_declares() -> None:
    refusal = pytest.raises(ConfigError, match=r"^toy\.dispatch: found 'int4', expected one of rows, fp8")
    with registered("toy", options=Formats) as toy, refusal:
        ds.run(toy, options={"dispatch": "int4"}, **LAYER)
