"""Closed forms of layers on paper clusters (`planning/gain.py`) and the map of gains that stands on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dysharp
from dysharp.api import gain_map
from dysharp.base.errors import ConfigError
from dysharp.planning import gain
from dysharp.show.gain_plot import plot_gain_map
from dysharp.show.plots import save_figure
from dysharp.specs import load_cluster, load_model
from dysharp.workload import make_routing

CLUSTER = load_cluster("paper-gh200-nvl32").with_gpus(8)
S8 = load_model("S-8")
LAYER = {"model": "S-8", "gpus": 8, "tokens": 64, "routing": "uniform"}


def test_a_gain_is_over_the_best_system_without_the_mechanism() -> None:
    us = dict(zip(gain.SYSTEMS, (100.0, 90.0, 80.0, 70.0, 75.0, 50.0), strict=True))
    assert gain.gains(us) == pytest.approx({"overlap": 0.25, "multicast": 0.5, "reduction": 0.4, "switch": 0.6})


def test_items_wait_for_their_server_in_the_order_in_which_they_come() -> None:
    done = gain._served(np.array([0.0, 5.0, 1.0, 0.0]), np.array([3.0, 1.0, 1.0, 2.0]), np.array([0, 0, 0, 1]))
    assert done.tolist() == [3.0, 6.0, 4.0, 2.0]


def test_the_closed_form_is_near_the_runs_of_a_layer_that_links_bind() -> None:
    layer = {**LAYER, "tokens": 512}
    found = gain.layer_us(S8, CLUSTER, make_routing("uniform", S8, 8, 512))
    for name, us in found.items():
        bound = 0.35 if name == "multicast-only" else 0.12  # every acknowledgement is behind a sum: too many where all GPUs have as many rows
        assert us == pytest.approx(dysharp.run(name, **layer).time_us, rel=bound), name


def test_rows_that_the_hub_reads_twice_cost_dysharp_its_gain() -> None:
    model = replace(S8, topk=32)
    routing = make_routing("uniform", model, 8, 512)
    small, large = (gain.layer_us(model, replace(CLUSTER, al_tlb_entries=n), routing) for n in (512, 1 << 20))
    assert small["dysharp"] > 1.3 * large["dysharp"]
    assert {name: us for name, us in small.items() if name != "dysharp"} == {name: us for name, us in large.items() if name != "dysharp"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of few points."""
    for name, values in {"TOKENS": (16, 128, 512), "QUARTERS": (2, 4), "ROUTINGS": ("uniform", "powerlaw:1"), "GPUS": (4, 8)}.items():
        monkeypatch.setattr(gain_map, name, values)


@pytest.mark.slow
def test_the_map_says_where_the_switch_pays_and_runs_confirm_its_edges(short: None, tmp_path: Path) -> None:
    done = dysharp.compare(["deepep"], mapped=True, **LAYER)
    found = done.gain_map
    assert found is not None
    assert {name: sorted(panel) for name, panel in found.panels.items()} == {
        "top-k": [4, 8], "experts": [32, 64], "link GB/s": [225.0, 450.0], "GPUs": [4, 8], "skew": [0.0, 1.0]
    }  # fmt: skip
    assert found.panels["GPUs"][8] is found.panels["skew"][0.0] is found.own
    assert sorted(found.confirmed) == [16, 128, 512]  # both ends, and the pair at which the closed form passes 5 %
    form, run = found.confirmed[512]
    us = {name: dysharp.run(name, **{**LAYER, "tokens": 512}).time_us for name in gain.SYSTEMS}
    assert run == pytest.approx(gain.gains(us)["switch"])
    assert form == found.own["switch"][2]
    assert found.start(found.own["switch"]) == 512
    assert found.sentence in done.sentence
    assert "switch from 512" in found.sentence
    assert done.to_dict()["gain_map"]["own"] == found.own
    save_figure(plot_gain_map(found), str(tmp_path / "map.svg"))
    text = (tmp_path / "map.svg").read_text()
    assert all(word in text for word in ("GPUs", "skew", "gain of the switch", "multicast gains 5%"))


def test_a_line_starts_where_all_later_gains_are_above_even() -> None:
    found = gain_map.GainMap((16, 32, 64), {}, {}, {})
    assert [found.start(line) for line in ([0.1, 0.1, 0.1], [0.1, 0.0, 0.1], [0.1, 0.1, 0.05])] == [16, 64, None]


@pytest.mark.parametrize(
    "asked",
    [
        {"cluster": "hw-dgx-h100"}, {"cluster": "paper-dgx-h100-x2", "gpus": 16}, {"direction": "bwd"}, {"routing": "trace:deepseek-v2-lite"},
    ],
)  # fmt: skip
def test_other_layers_have_no_map(asked: dict[str, object]) -> None:
    layer = {**LAYER, "model": "deepseek-v2-lite", "tokens": 16} | asked
    with pytest.raises(ConfigError, match=r"map: found .*, expected a paper cluster of one NVLink domain with switches, fwd, and a drawn routing"):
        dysharp.compare(["deepep"], mapped=True, **layer)
    with pytest.raises(ConfigError, match="map: found it beside a workload"):
        dysharp.compare(["nccl"], mapped=True, workload="all-reduce:1MiB", cluster="hw-dgx-h100")
