"""A system from outside the tree is right everywhere by what it declares: layer time, colour, advice, comparison."""

from __future__ import annotations

from typing import Any

import pytest
from layers import layers
from matplotlib.colors import to_hex
from outside import PaperOptions, plan_fused, plan_paper, registered

import dysharp as ds
from dysharp.errors import ConfigError
from dysharp.reports.plots import colour_of, plot_compare
from dysharp.systems import OTHER_COLOUR, all_systems
from dysharp.systems.registry import Change
from dysharp.testing.conformance import conformance

LAYER: dict[str, Any] = {"model": "deepseek-v2-lite", "cluster": "hw-dgx-h100", "tokens": 32, "routing": "uniform"}
PARTS = ("permute_us", "activation_us", "cast_us", "launch_us")


def run(name: str) -> ds.Row:
    return ds.run(name, **LAYER)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_toys_are_systems(direction: str) -> None:
    for plan in (plan_paper, plan_fused):
        with registered("toy", plan) as toy:
            assert conformance(toy, *layers()["lognormal"], direction) == []


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
    colours = [s.colour for s in all_systems().values()]
    assert len({*colours, OTHER_COLOUR}) == len(colours) + 1


def test_advice_ranks_it_and_tries_what_it_shows() -> None:
    change = Change("toy hardware", "a toy", rank=0)
    with registered("toy", plan_fused, fused=True), registered("toy-shows", plan_fused, PaperOptions, fused=True, change=change):
        done = ds.advise(LAYER["model"], cluster=LAYER["cluster"], tokens=LAYER["tokens"], routing="uniform", systems=["toy", "megatron-a2a"])
        toy = next(entry for entry in done.ranking if entry.row.system == "toy")
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
        with pytest.raises(ConfigError, match="advise: toy is a bound, no system that one could build"):
            ds.advise(LAYER["model"], cluster=LAYER["cluster"], tokens=16, systems=[toy])
