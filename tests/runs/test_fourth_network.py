"""A further kind of network is one record: its links, words, causes, colours and column reach every output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import dysharp
from dysharp.cli.texts.comparison_text import print_comparison
from dysharp.cli.texts.row_text import print_row
from dysharp.program.nets import BETWEEN, NET_KINDS, NIC, NetKind, add, nets_of
from dysharp.program.tables import Net
from dysharp.runs.causes import causes, resource_words
from dysharp.show.html_report import render, report_of_rows
from dysharp.specs import Cluster, load_cluster

MESH = replace(load_cluster("paper-dgx-h100-x4"), name="mesh")


def _links(cluster: Cluster) -> tuple[Net, ...]:
    return tuple(replace(net, name="ub") for net in NIC.nets(cluster)) if cluster.name.startswith("mesh") else ()


UB = NetKind(
    name="ub",
    place=BETWEEN,
    nets=_links,
    causes=("mesh links out", "mesh links in", "latencies of the mesh"),
    links=("the mesh links out of GPU {}", "the mesh links into GPU {}"),
    colours=("#000001", "#000002", "#000003"),
    column=("UB", "share of the time for which the mesh links are busy"),
)


@pytest.fixture(autouse=True)
def fourth() -> Iterator[None]:
    add(UB)
    yield
    del NET_KINDS["ub"]


def test_it_takes_its_place_in_its_clusters_only() -> None:
    assert [net.name for net in nets_of(MESH)] == ["ub"]
    assert [net.name for net in nets_of(load_cluster("paper-dgx-h100-x4"))] == ["nic"]


def test_its_words_stand_in_every_output(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"model": "S-8", "gpus": 16, "tokens": 16}
    done = dysharp.compare(["deepep", "megatron-a2a"], cluster=MESH, **one)
    row = done.rows[0]
    as_nics = dysharp.run("deepep", cluster="paper-dgx-h100-x4", **one)
    assert (row.digest, row.time_us) == (as_nics.digest, as_nics.time_us)  # only names differ
    assert set(row.traffic_bytes) == {"up", "down", *UB.sides}
    assert set(row.attribution) <= set(causes())
    assert all(f"ub_{part}_us" in row.attribution for part in ("out", "in", "latency"))
    print_comparison(done)
    print_row(row)
    printed = " ".join(capsys.readouterr().out.split())
    assert "UB %: share of the time for which the mesh links are busy" in printed
    shown = {words: f"{row.attribution[key]:.1f}" for key, words in zip(UB.cause_keys, UB.causes, strict=True)}
    assert all((f"{words} {us} us" in printed) == (us != "0.0") for words, us in shown.items())
    assert shown["latencies of the mesh"] != "0.0"
    page = render(report_of_rows([row.to_dict()], "x"))
    assert "latencies of the mesh" in page
    assert "#000003" in page
    assert resource_words("gpu[3].ub in") == "the mesh links into GPU 3"


def test_other_resources_are_quoted() -> None:
    """It said "the busiest resource is maps of GPU 0 and probabilities"."""
    assert resource_words("gpu[0].maps and probabilities") == '"maps and probabilities" of GPU 0'
    text = "gpu[1].ready (forward) and gpu[7].memory (backward), gpu[2].ready and gpu[3].down"
    known = '"ready" of GPU 1 (forward) and the memory of GPU 7 (backward), "ready" of GPU 2 and the down link of GPU 3'
    assert resource_words(text) == known
