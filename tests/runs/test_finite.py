"""Finite hardware: both knobs of a table are one table, the burst level names what it leaves out, and verdicts of claims."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dysharp as ds
from dysharp.cli.app import cli
from dysharp.errors import ConfigError
from dysharp.figures import load_figure
from dysharp.figures.finite import _finite_point, claims_of, estimate
from dysharp.runs.finite import ALL, RESOURCES, Survival, finite_lines, ways
from dysharp.runs.point import Point
from dysharp.specs import load_model

SMALL: dict[str, Any] = {"model": "S-8", "gpus": 4, "tokens": 32, "routing": "uniform", "options": {"compute": False}}
CLUSTER = "paper-gh200-nvl32"


@pytest.mark.parametrize(
    ("key", "option", "more"),
    [
        ("reduction_buffer_KiB=1", {"reduction_entries": 4}, 1.005),
        ("al_tlb_entries=4", {"al_entries": 4}, 1.005),
        ("multimemq_entries=1", {"queue_entries": 1}, 2),
    ],
)
def test_key_and_option_are_one_table(key: str, option: dict[str, int], more: float) -> None:
    whole, by_key = (ds.run("dysharp", **SMALL, cluster=cluster, fidelity="packet") for cluster in (CLUSTER, f"{CLUSTER},{key}"))
    options = SMALL["options"] | {f"fabric.{name}": value for name, value in option.items()}
    by_option = ds.run("dysharp", **SMALL | {"options": options}, cluster=CLUSTER, fidelity="packet")
    assert by_key.time_us == by_option.time_us
    assert by_key.time_us > more * whole.time_us
    assert by_key.blocks["config"] == by_option.blocks["config"]


def test_a_small_reduction_table_evicts_and_no_source_waits() -> None:
    small, whole = (ds.run("dysharp", **SMALL, cluster=f"{CLUSTER},reduction_buffer_KiB={size}", fidelity="packet") for size in (1, 64))
    assert small.blocks["reduction"]["evictions"] > whole.blocks["reduction"]["evictions"] == 0
    burst = [ds.run("dysharp", **SMALL, cluster=f"{CLUSTER},reduction_buffer_KiB={size}").time_us for size in (1, 64)]
    assert burst[0] == burst[1]


@pytest.mark.parametrize("key", ["reduction_buffer_KiB=16", "multimemq_entries=8", "internal_speedup=1"])
def test_the_burst_level_names_a_size_that_it_leaves_out(key: str) -> None:
    name = key.partition("=")[0]
    row = ds.run("dysharp", **SMALL, cluster=f"{CLUSTER},{key}")
    assert [text for text in row.warnings if text.startswith(f"dysharp: {name} has no effect at burst level")]
    assert not any("no effect at burst" in text for text in ds.run("dysharp", **SMALL).warnings)
    others = ds.run("deepep", **SMALL | {"options": {}}, cluster=f"{CLUSTER},{key}").warnings
    assert any("no effect at burst" in text for text in others) == (name == "internal_speedup")  # DeepEP asks no table


def test_the_burst_level_says_where_a_row_does_not_fill_the_links() -> None:
    """Rows of 512 B are 4 packets for 18 links of 25 GB/s. The packet level waits for the fullest link; even links bring both levels together."""
    few = replace(load_model("S-8"), hidden=256)
    burst = ds.run("comet", model=few, gpus=8, tokens=64)
    drawn, even = (ds.run("comet", model=few, gpus=8, tokens=64, fidelity="packet", options={"fabric.stripe": way}) for way in ("rotating", "even"))
    assert any("a row has 4 packets for 18 links" in text for text in burst.warnings)
    assert not any("packets for" in text for text in (*drawn.warnings, *ds.run("comet", model="S-8", gpus=8, tokens=64).warnings))
    assert even.time_us < 1.03 * burst.time_us < 1.1 * burst.time_us < drawn.time_us


@pytest.mark.parametrize(
    ("headline", "finite", "most", "verdict"),
    [
        (2.0, 1.91, None, "holds"),
        (2.0, 1.89, None, "weaker"),
        (2.0, 1.0, None, "gone"),
        (0.9, 0.8, None, "no gain"),
        (1.0, 1.03, 1.03, "holds"),
        (1.0, 1.05, 1.03, "gone"),
        (0.7851, 0.7852, 0.76, "holds"),  # both missed the bound, by the same
    ],
)
def test_a_claim_keeps_nine_tenths_of_its_gain_or_less(headline: float, finite: float, most: float | None, verdict: str) -> None:
    assert Survival("x", headline, finite, {}, most).verdict == verdict


def test_a_share_of_an_ideal_system_is_no_gain_over_it() -> None:
    assert [Survival("x", 0.96, share, {}, nothing=0.0).verdict for share in (0.9, 0.8)] == ["holds", "weaker"]
    assert Survival("x", 1.009, 1.0, {}).verdict == "no gain"


def test_what_takes_most_is_the_resource_whose_end_counts_most_or_packets() -> None:
    tables = Survival("x", 2.0, 1.5, {ALL: 1.95, "AL TLB": 1.6, "buffers": 1.9})
    assert (tables.resource, tables.verdict) == ("buffers", "weaker")
    assert Survival("x", 2.0, 1.5, {ALL: 1.55, "AL TLB": 1.5, "buffers": 1.52}).resource == "packets in place of trains"
    assert Survival("x", 2.0, 2.1, {ALL: 2.1, "AL TLB": 2.1}).resource == ""
    nothing = Survival("x", 1.0, 1.0, {ALL: 1.0, "buffers": 1.004})  # it said "most takes: buffers (0.00)"
    assert (nothing.resource, nothing.sentence.partition(": no gain")[2]) == ("", "; no resource takes 0.01.")
    assert list(tables.to_dict()["taken"].values()) == pytest.approx([0.4, 0.1, 0.05])


def test_ways_differ_in_one_resource() -> None:
    asked = ways({"options": {"fabric.acks": "first", "deepep.n_sm": 20}, "window": 8})
    assert asked["headline"] == {"fidelity": "burst", "window": None, "options": {"deepep.n_sm": 20}}
    assert asked["buffers"]["options"] == {"fabric.acks": "first", "deepep.n_sm": 20, "fabric.vc_flits": 0}
    assert set(asked) == {"headline", "finite", ALL, *RESOURCES}


def test_compare_says_what_is_left_of_a_gain() -> None:
    small = SMALL | {"options": {"deepep.compute": False, "dysharp.compute": False}}
    done = ds.compare(["deepep", "dysharp"], finite=True, **small)
    burst = ds.compare(["deepep", "dysharp"], **small)
    assert done.finite is not None
    assert done.finite.headline == burst.speedup["dysharp"]
    assert done.finite.finite == done.speedup["dysharp"]
    assert done.sentence.startswith("dysharp over deepep: ")
    assert {row.fidelity for row in done.rows} == {"packet"}
    assert done.to_dict()["finite"]["verdict"] == done.finite.verdict
    assert finite_lines("dysharp", **SMALL)[0].startswith("dysharp: ")
    with pytest.raises(ConfigError, match="found it beside tuned"):
        ds.compare(finite=True, tuned=True)


def test_points_run_at_packet_level_with_fewer_tokens() -> None:
    layer, work = Point("dysharp", "S-8", CLUSTER, ""), Point("cais", "sub-layer:llama-7b:L1", "paper-cais-h100", "")
    assert _finite_point(layer, 16, "headline") == Point("dysharp", "S-8", CLUSTER, "", tokens=16)
    assert _finite_point(layer, None, "crossbar").options == (("fabric.speedup", 8),)
    assert _finite_point(work, 16, "reduction table").cluster == "paper-cais-h100,reduction_buffer_KiB=0"
    small = replace(work, cluster="paper-cais-h100,reduction_buffer_KiB=5")  # as figure 14 of CAIS names it
    assert _finite_point(small, 16, "reduction table").cluster == "paper-cais-h100,reduction_buffer_KiB=0"
    assert _finite_point(small, 16, "crossbar").cluster == small.cluster
    assert _finite_point(work, 16, "finite").model == "sub-layer:128x4096x512x1408:bf16"
    figure = load_figure("fig15")
    assert {claim.metric for claim in claims_of(figure)} == {"speedup"}
    assert estimate([(figure, figure.points)], 64).startswith("72 points; packet level: about ")


@pytest.mark.slow
def test_reproduce_prints_verdicts_and_goes_on_from_its_store(tmp_path: Path) -> None:
    command = ["reproduce", "fig15", "--finite", "--models", "S-8", "--tokens", "4", "--store", str(tmp_path), "--json"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)
    assert {line["name"] for line in lines} == {claim.name for claim in claims_of(load_figure("fig15"))}
    assert all(line["verdict"] in ("holds", "weaker", "gone", "no gain") for line in lines)
    assert all(line["without"] for line in lines if line["verdict"] != "holds")
    stored = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*"))
    assert CliRunner().invoke(cli, command).stdout == done.stdout
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")) == stored


@pytest.mark.slow
def test_a_claim_of_each_paper_is_not_gone() -> None:
    claims = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "finite.py"))["claims"]
    assert [one.verdict in ("holds", "weaker") for one in claims()] == [True] * 3
