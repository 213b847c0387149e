"""Where the gain comes from: every part is the difference of two runs, and a part of the switch depends on the order."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from dysharp import compare, run
from dysharp.api.why import LADDERS, Part, Why, systems_of
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.planning.gain import gains, of_switch
from dysharp.runs.finite import PACKETS, RESOURCES
from dysharp.systems import all_systems
from dysharp.systems.collectives import get_collective

LAYER: dict[str, Any] = {"model": "S-8", "gpus": 8, "tokens": 64, "routing": "uniform"}


def test_orders_have_the_same_parts_and_end_at_the_target() -> None:
    for target, (baseline, orders) in LADDERS.items():
        assert {frozenset(part for part, _ in order) for order in orders} == {frozenset(part for part, _ in orders[0])}
        assert {order[-1][1] for order in orders} == {target}
        assert len(set(orders)) == len(orders) > 1
        assert baseline not in dict(orders[0]).values()
        for name in systems_of(target):
            assert name in all_systems() or get_collective(name).name == name


@pytest.mark.parametrize("target", ["dysharp", "moe-hub"])
def test_a_part_is_the_difference_of_two_runs(target: str) -> None:
    done = compare(["deepep", target], why=True, **LAYER)
    assert done.why is not None
    us = {name: run(name, **LAYER).time_us for name in systems_of(target)}
    for order in done.why.orders:
        assert [one.before for one in order] == ["deepep", *(one.system for one in order[:-1])]
        assert [one.saved_us for one in order] == [us[one.before] - us[one.system] for one in order]
        assert sum(one.saved_us for one in order) == pytest.approx(us["deepep"] - us[target])
    assert done.sentence.endswith(done.why.sentence)
    assert [row.system for row in done.rows] == ["deepep", target]


def test_a_faster_system_on_the_way_is_not_called_the_fastest_of_the_table() -> None:
    """It said "Fastest is comet (37.1 us)" and in the same breath "reduction-only is faster (36.9 us)"."""
    done = compare(["comet", "dysharp"], why=True, direction="bwd", **LAYER)
    assert done.sentence.startswith("Fastest is comet (37.1 us")
    assert done.sentence.endswith("On the way, reduction-only is faster than dysharp (36.9 us).")


@pytest.mark.slow
def test_multicast_alone_saves_nothing_where_links_bind_and_much_behind_sums() -> None:
    """The down link of Dispatch and the up link of Combine stay full until both have the switch."""
    layer = LAYER | {"gpus": 32, "tokens": 512}
    why = compare(["dysharp"], why=True, **layer).why
    assert why is not None
    saved = why.saved["multicast"]
    assert saved[0] < 0 < saved[1]
    assert "multicast" in why.mixed
    assert f"multicast ({min(saved):+.1f} to {max(saved):+.1f})" in why.sentence


def test_a_part_that_is_printed_as_nothing_depends_on_no_order() -> None:
    """It said "Whether a part saves depends on the order: overlap (-0.0 to +0.0)"."""
    orders = tuple((Part("overlap", "deepep", "dysharp", 5.0, saved, "gpu[0].up", 0.5),) for saved in (-0.04, 0.04))
    why = Why("dysharp", "deepep", 5.0, orders)
    assert why.mixed == []
    assert why.sentence == "dysharp saves 0.0 us of the 5.0 us of deepep: overlap +0.0 us."


def test_the_default_answer_says_what_the_switch_does() -> None:
    done = compare(**LAYER)
    us = {row.system: row.layer_us for row in done.rows}
    verb = "saves" if us["dysharp"] < us["fusion-only"] else "costs"
    share = abs(1 - us["dysharp"] / us["fusion-only"])
    assert done.sentence.endswith(f"Without the switch, fusion-only takes {us['fusion-only']:.1f} us: the switch {verb} {share:.0%}.")
    assert done.why is None


def test_the_sentence_and_the_map_mean_the_same_switch() -> None:
    """The best of three systems with it beside the best of three without. The sentence knew dysharp and fusion-only alone: it said "costs 9%"."""
    us = {"deepep": 90.0, "comet": 40.0, "fusion-only": 55.0, "multicast-only": 50.0, "reduction-only": 80.0, "dysharp": 60.0}
    assert of_switch(us) == "Without the switch, comet takes 40.0 us: the switch of multicast-only costs 25%."
    assert gains(us)["switch"] == 40 / 50 - 1
    assert of_switch({"dysharp": 1.0, "comet": 2.0}) == of_switch({"fusion-only": 1.0, "deepep": 2.0}) == ""


def test_a_gain_without_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"found deepep, ideal, expected one whose gain has parts \(dysharp, moe-hub, cais; forms paper or all\)"):
        compare(["deepep", "ideal"], why=True, **LAYER)


@pytest.mark.parametrize("cluster", ["paper-gh200-nvl32", "hw-dgx-h100"])
def test_the_printed_commands_repeat_a_part(cluster: str) -> None:
    words = ["compare", "--systems", "deepep,moe-hub", "--why", "--model", "S-8", "--gpus", "8", "--tokens", "32", "--cluster", cluster]

    def answer(*words: str) -> dict[str, Any]:
        return json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)

    why = answer(*words)["why"]
    part = why["orders"][0][0]
    us = [answer(*shlex.split(why["commands"][part[name]])[1:])["time_us"] for name in ("before", "system")]
    assert us[0] - us[1] == part["saved_us"]
    shown = CliRunner().invoke(cli, words, catch_exceptions=False).stdout
    assert max(map(len, shown.splitlines())) <= 100
    assert "from deepep" in shown


def test_an_option_of_the_target_stays_with_the_target() -> None:
    """The systems between do not know it; its last part says that it contains what the option changes, and the commands leave it out."""
    given = ["--model", "S-8", "--gpus", "4", "--tokens", "16", "--routing", "uniform", "--set", "dysharp.dispatch=nvfp4"]
    done = CliRunner().invoke(cli, ["compare", "--why", "--json", *given])
    assert done.exit_code == 0, done.output
    assert "why: dysharp.dispatch: dysharp alone has it, so its last part contains what it changes" in done.stderr
    why = json.loads(done.stdout)["why"]
    for system, command in why["commands"].items():
        again = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--json"])
        us = {one["system"]: one["us"] for order in why["orders"] for one in order} | {why["baseline"]: why["baseline_us"]}
        assert json.loads(again.stdout)["time_us"] == us[system]


def test_paper_forms_of_an_hw_cluster_have_parts() -> None:
    done = compare(why=True, forms="paper", cluster="hw-dgx-h100", model="S-8", gpus=4, tokens=16, routing="uniform")
    assert done.why is not None
    assert done.why.target == "dysharp"
    assert f"In paper form, {done.why.sentence}" in done.sentence  # of a real deepep beside them the answer has another time
    with pytest.raises(ConfigError, match=r"expected one whose gain has parts \(dysharp, moe-hub, cais; forms paper or all\)"):
        compare(["deepep"], why=True, cluster="hw-dgx-h100", model="S-8", gpus=4, tokens=16, routing="uniform")


def test_finite_hardware_takes_options_of_systems_that_are_not_the_fastest() -> None:
    layer = LAYER | {"gpus": 4, "tokens": 16}
    done = compare(["deepep", "nvls", "dysharp"], finite=True, options={"dysharp.dispatch": "fp8", "fabric.reduction_entries": 2}, **layer)
    assert done.finite is not None
    assert done.finite.name == "nvls over deepep"


def test_finite_hardware_needs_two_systems_and_prints_what_each_resource_takes() -> None:
    layer = ["compare", "--finite", "--model", "S-8", "--gpus", "4", "--tokens", "2"]
    alone = CliRunner().invoke(cli, [*layer, "--systems", "deepep"])
    assert "finite: found no system beside the baseline of its form" in str(alone.exception)
    both = CliRunner().invoke(cli, [*layer, "--systems", "deepep,dysharp"]).output
    taken = both.split("each takes of the speed-up: ")[1].split("own bound")[0]
    assert all(name in taken for name in (*RESOURCES, PACKETS))



@pytest.mark.parametrize(("given", "found"), [
    ({"options": {"dysharp.dispatch": "fp8"}}, "dysharp.dispatch"), ({"slow": "rank=0:2"}, "slow or late ranks"),
    ({"placement": "contiguous", "layer": 3}, "a placement, a layer"),
])  # fmt: skip
def test_a_map_refuses_what_its_closed_forms_leave_out(given: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=f"map: found {found}, expected none"):
        compare(mapped=True, **given, **LAYER | {"gpus": 4, "tokens": 16})
