"""Which machines' measurements are predicted."""

from __future__ import annotations

import pytest

from dysharp.measured.measurements import Unsupported, check_cluster, gpu_of, out_of_scope
from tests.measured.csv_lines import line, read


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"config": {"nodes": 1, "link": "NVLink", "bottleneck": "NVLink"}}, ""),
        ({"config": {"nodes": 2}}, "more than one NVLink domain"),
        ({"config": {"link": "IB"}}, "more than one NVLink domain"),
        ({"config": {"bottleneck": "RDMA"}}, "more than one NVLink domain"),
        ({"system": "DeepEP-LL (pure RDMA)"}, "more than one NVLink domain"),
        ({"hardware": "8xH800/node", "config": {"ep": 16}}, "more than one NVLink domain"),
        ({"hardware": "8xH800/node", "config": {"ep": 8}}, ""),
        ({"hardware": "8xMI300X"}, "a fabric without a switch: only MoRI's kernels and kernels of one GPU are predicted there"),
    ],
)
def test_scope(changes: dict[str, object], reason: str) -> None:
    (m,) = read(line(**changes))
    assert out_of_scope(m) == reason


@pytest.mark.parametrize(
    ("hardware", "gpu"),
    [("8xGB200 (NVLink5)", "gb200"), ("8x SM100", "b200"), ("h800", "h800"), ("1xH200", "h200-sxm"), ("8xH20", "h20"), ("8xB300", "b300")],
)
def test_the_gpu_of_a_text(hardware: str, gpu: str) -> None:
    assert gpu_of(*read(line(hardware=hardware))) == gpu


@pytest.mark.parametrize("hardware", ["V100-SXM", "GH200", "8xL20"])
def test_other_gpus_are_not_packaged(hardware: str) -> None:
    with pytest.raises(Unsupported, match="no packaged GPU"):
        gpu_of(*read(line(hardware=hardware)))


def test_clusters_have_so_many_gpus() -> None:
    check_cluster("h100-sxm", 8)
    with pytest.raises(Unsupported, match="no packaged cluster of 16 h100-sxm"):
        check_cluster("h100-sxm", 16)
