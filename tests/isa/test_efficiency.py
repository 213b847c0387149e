"""Payload efficiency: flits counted by hand, and two ways to count them."""

from __future__ import annotations

import pytest

from dysharp.base.errors import ConfigError
from dysharp.isa.efficiency import FORMATS, closed_efficiency, encoded_efficiency

# 128 B are 8 flits of payload on each of 9 links. Flits of the request, of each of 8 copies, of their acks, of the merged ack.
BY_HAND = {
    "ideal": 72 / (9 + 8 * (9 + 1) + 1),
    "dysharp": 72 / (10 + 8 * (9 + 1) + 1),  # one extension flit lists eight targets
    "dysharp-listed": 72 / (10 + 8 * (10 + 1) + 1),
}


@pytest.mark.parametrize(("name", "expected"), BY_HAND.items())
def test_eight_targets_of_128_bytes(name: str, expected: float) -> None:
    assert closed_efficiency(name, 128) == pytest.approx(expected)
    assert encoded_efficiency(name, 128) == pytest.approx(expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("payload", "targets"), [(1, 1), (16, 2), (17, 3), (128, 8), (256, 9)])
def test_encoded_packets_are_as_long_as_their_trains(name: str, payload: int, targets: int) -> None:
    assert encoded_efficiency(name, payload, targets) == pytest.approx(closed_efficiency(name, payload, targets))


@pytest.mark.parametrize(("payload", "targets"), [(0, 8), (257, 8), (128, 0)])
def test_sizes_that_no_packet_has_are_refused(payload: int, targets: int) -> None:
    for efficiency in (closed_efficiency, encoded_efficiency):
        with pytest.raises(ConfigError, match=f"found {payload} bytes to {targets} targets, expected 1 to 256 bytes and a target"):
            efficiency("ideal", payload, targets)
