"""Sizes of the reduction table: every port has its own ring, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.engine.blocks import tables as t

COLUMNS = 6


@pytest.mark.parametrize("n_ports", [1, 2, 3, 9])
def test_a_cleared_table_has_an_empty_ring_for_every_port(n_ports: int) -> None:
    n_sessions = 4
    sessions = np.full((n_sessions + n_ports, COLUMNS), 77, np.int64)
    ports = np.full((n_ports, 2), 5, np.int64)
    t.red_clear(n_sessions, sessions, ports)
    heads = np.arange(n_sessions, n_sessions + n_ports)
    assert sessions[heads, t.SESSION_PREV].tolist() == sessions[heads, t.SESSION_NEXT].tolist() == heads.tolist()
    assert ports[:, t.PORT_LIVE].tolist() == [0] * n_ports
    assert sessions[:n_sessions].tolist() == [list(t.SESSION_EMPTY)] * n_sessions
