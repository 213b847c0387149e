"""Which machines' measurements are predicted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dysharp.measured.family import Level, family_of, parse
from dysharp.measured.measurements import Unsupported, check_cluster, gpu_of, out_of_scope, read_measurements, read_operators
from dysharp.measured.predictions import ClosedForms
from dysharp.specs import list_gpus, load_gpu
from dysharp.specs.fitted import fitted_values
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


def test_rows_of_one_gpu_are_predicted_or_refused_on_every_architecture() -> None:
    """A row of each family, kind and kernel, as if it were of another GPU: a time, or a reason."""
    gpus = {load_gpu(name).arch: name for name in list_gpus()}
    rows = {(m.kind, m.system, str(m.config.get("kernel"))): m for m in (*read_measurements(), *read_operators())}
    for gpu, m in product(gpus.values(), rows.values()):
        family, row = family_of(m), replace(m, hardware=gpu)
        if family is not None and family.level == Level.GPU and family.closed_us is not None:
            try:
                parsed = parse(row, family)
            except Unsupported:
                continue
            assert ClosedForms([parsed]).us(fitted_values())[0] > 0, (gpu, m.id)
