"""Keys that no time depends on: the tiles that a cluster tracks, and planes of links that packets choose in turn. A run says so."""

import dysharp
from dysharp.runs.one_pass import TRACKED
from dysharp.specs import list_clusters, load_cluster


def test_another_tracked_tile_is_named_and_changes_nothing():
    clusters = (f"paper-dgx-h100,tile_rows={rows}" for rows in (128, 1))
    plain, other = (dysharp.run("dysharp", model="S-8", cluster=cluster, tokens=64, routing="uniform") for cluster in clusters)
    assert other.digest == plain.digest
    text = "tile_rows=1 of the cluster has no effect on a time: tiles of GEMMs have 128 rows (choice gemm.tile_rows)"
    assert [text in row.warnings for row in (plain, other)] == [False, True]


def test_packaged_clusters_have_one_tile():
    assert {load_cluster(name).tile_rows for name in list_clusters()} == {TRACKED}


def test_planes_that_change_nothing_are_named():
    given = {"model": "S-8", "cluster": "paper-dgx-h100", "gpus": 4, "tokens": 8, "routing": "uniform", "fidelity": "packet"}
    plain, planes = (dysharp.run("deepep", **given, options=options) for options in ({}, {"fabric.n_planes": 1}))
    assert planes.time_us == plain.time_us
    found = [[text for text in row.warnings if "n_planes" in text] for row in (plain, planes)]
    assert found == [[], ["fabric.n_planes=1 has no effect: packets choose links, and only stripe=hash chooses by plane"]]
