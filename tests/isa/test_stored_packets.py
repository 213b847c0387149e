"""No bit of a packet, no byte of a train and no derived size moves unnoticed: regression values of every command, and of packaged specs."""

from __future__ import annotations

from tests.isa.stored_packets import STORED, rows
from tests.stored_values import check


def test_packets_and_sizes_are_the_stored_ones() -> None:
    check(STORED, dict(rows()))
