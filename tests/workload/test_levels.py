"""Rows by network, counted by hand: four GPUs in two NVLink domains."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.workload import routing_from
from dysharp.workload.levels import LEVELS

# Expert e lies on GPU e. GPU 0 has tokens for (1, 2) and (0, 3), all other tokens stay on their GPU.
CHOICES = [[[1, 2], [0, 3]], [[1, -1], [1, -1]], [[2, -1], [2, -1]], [[3, -1], [3, -1]]]
COUNTED = {  # scheme: NVLink out and in, NICs out and in
    "direct": ([1, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 1, 1]),
    "nic_only": ([0, 0, 0, 0], [0, 0, 0, 0], [3, 0, 0, 0], [0, 1, 1, 1]),
    "by_rail": ([2, 0, 0, 0], [0, 2, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]),
    "two_hop": ([1, 0, 1, 0], [0, 1, 0, 1], [2, 0, 0, 0], [0, 0, 2, 0]),
}


@pytest.mark.parametrize("scheme", COUNTED)
def test_rows_by_hand(scheme: str) -> None:
    routing = routing_from(np.array(CHOICES, np.int32).reshape(8, 2), 4, 4)
    nvlink, nic = LEVELS[scheme](routing, 2)
    assert tuple(side.tolist() for side in (*nvlink, *nic)) == COUNTED[scheme]
