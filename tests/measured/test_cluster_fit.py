"""Which measurements are of a cluster's GPU."""

from __future__ import annotations

import pytest

from dysharp.measured.cluster_fit import measurements_of
from tests.measured.csv_lines import line, read


@pytest.mark.parametrize(
    ("hardware", "reason"),
    [
        ("this machine", ""),  # names no GPU: of this cluster
        ("h100-sxm", ""),
        ("8xH100-SXM (NVLink4 NVSwitch)", ""),
        ("b200", "of b200"),
        ("8xB200", "of b200"),
    ],
)
def test_measurements_of_this_gpu(hardware: str, reason: str) -> None:
    own, others = measurements_of(read(line(hardware=hardware)), "h100-sxm")
    assert [why for _, why in others] == ([reason] if reason else [])
    assert [m.hardware for m in own] == ([] if reason else ["h100-sxm"])
