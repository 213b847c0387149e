"""The server of a link: times added by hand. Rate 2 bytes/us, so that a byte takes 500,000 ps."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.engine.blocks.columns import PORT_RATE, SERVER_BUSY_START, SERVER_FREE, SERVER_WIRE, UP
from dysharp.engine.blocks.link import server_debt, server_grant, server_hold
from dysharp.engine.kernel import kernel

RATE = 2
BYTE = 500_000


@kernel
def _grant(nodes, now, n_bytes, rate):
    nodes[0, PORT_RATE] = rate
    return server_grant(nodes, 0, UP, now, n_bytes, 0)


@kernel
def _grant_message(nodes, now, n_bytes, message):
    nodes[0, PORT_RATE] = RATE
    return server_grant(nodes, 0, UP, now, n_bytes, message)


@kernel
def _hold(nodes, end, until):
    return server_hold(nodes, 0, UP, end, until)


@kernel
def _debt(nodes, n_bytes):
    server_debt(nodes, 0, UP, n_bytes)


@pytest.fixture
def nodes() -> np.ndarray:
    return np.zeros((1, 24), np.int64)


def test_trains_without_a_gap_are_one_busy_period(nodes: np.ndarray) -> None:
    assert _grant(nodes, 100, 3, RATE) == 100 + 3 * BYTE
    assert _grant(nodes, 100 + 3 * BYTE, 2, RATE) == 100 + 5 * BYTE
    assert nodes[0, UP + SERVER_BUSY_START] == 100
    assert nodes[0, UP + SERVER_WIRE] == 5


def test_a_busy_period_is_rounded_once(nodes: np.ndarray) -> None:
    first = _grant(nodes, 1, 1, 3)
    assert first == 1 + 333_334
    assert _grant(nodes, first, 1, 3) == 1 + 666_667
    assert _grant(nodes, 1 + 666_667, 1, 3) == 1 + 1_000_000


def test_debt_goes_before_the_next_train(nodes: np.ndarray) -> None:
    end = _grant(nodes, 1, 1, RATE)
    _debt(nodes, 4)
    assert _grant(nodes, end, 1, RATE) == 1 + 6 * BYTE
    assert nodes[0, UP + SERVER_WIRE] == 6


def test_idle_time_drains_debt(nodes: np.ndarray) -> None:
    end = _grant(nodes, 1, 1, RATE)
    _debt(nodes, 4)
    later = end + 3 * BYTE
    assert _grant(nodes, later, 1, RATE) == later + 2 * BYTE  # 3 of 4 bytes have drained


def test_cut_through_opens_a_busy_period(nodes: np.ndarray) -> None:
    end = _grant(nodes, 1, 2, RATE)
    assert _hold(nodes, end, end - 5) == end
    assert _hold(nodes, end, end + 7) == end + 7 == nodes[0, UP + SERVER_FREE]
    assert _grant(nodes, end + 7, 1, RATE) == end + 7 + BYTE


def test_a_message_takes_its_fixed_time_at_the_server(nodes: np.ndarray) -> None:
    assert _grant_message(nodes, 1, 3, 4) == 1 + 7 * BYTE
    assert nodes[0, UP + SERVER_WIRE] == 3
