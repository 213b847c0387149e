"""A cluster's tracked tile sizes hardware: a run with another one says that no time depends on it."""

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
