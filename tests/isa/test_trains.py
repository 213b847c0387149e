"""Trains of several packets are the sum of their packets; the last link of a stripe, by hand."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from dysharp.isa.framing import Framing, pull_train, push_train, stripe_ps

FRAMINGS = (
    Framing("store", payload_bytes=256),
    Framing("dymultimem", payload_bytes=256, targets_per_ext=8),
    Framing("explicit", payload_bytes=128, address_per_target=1, source_ack_per_target=1),
)


@pytest.mark.parametrize("train", [push_train, pull_train])
@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: f.name)
@pytest.mark.parametrize("targets", [1, 9])
@pytest.mark.parametrize(("payload", "aux"), [(257, 0), (512, 0), (1000, 17), (2048, 300), (0, 40)])
def test_a_train_is_the_sum_of_its_packets(train, framing: Framing, targets: int, payload: int, aux: int) -> None:
    def cut(n_bytes: int) -> list[int]:
        return [min(framing.payload_bytes, n_bytes - at) for at in range(0, n_bytes, framing.payload_bytes)]

    packets = [astuple(train(framing, size, targets)) for size in [*cut(payload), *cut(aux)]]
    assert astuple(train(framing, payload, targets, aux)) == tuple(map(sum, zip(*packets, strict=True)))


@pytest.mark.parametrize("targets", [1, 3])
def test_two_explicit_packets_by_hand(targets: int) -> None:
    """130 bytes: packets of 8 and 1 flits of data. Each has a header and, beyond the first target, an address of 16 bytes per target."""
    further = 16 * (targets - 1)
    push, pull = push_train(FRAMINGS[2], 130, targets), pull_train(FRAMINGS[2], 130, targets)
    assert (push.up, push.down, push.ack_up, push.ack_down, push.packets) == (2 * (16 + further) + 144, 32 + 144, 32, 2 * (16 + further), 2)
    assert (pull.up, pull.down, pull.response, pull.result) == (2 * (16 + further), 32, 32 + 144, 32 + 144 + 2 * further)


@pytest.mark.parametrize(
    ("wire_bytes", "packets", "n_links", "idle_packets"),
    [(0, 0, 4, 0), (800, 8, 4, 0), (800, 8, 1, 0), (900, 9, 4, 3), (300, 3, 4, 1), (100, 1, 4, 3)],
)
def test_the_last_link_of_a_stripe_ends_later_than_the_mean(wire_bytes: int, packets: int, n_links: int, idle_packets: int) -> None:
    """Packets of 100 bytes at 1 byte per us and rate unit: the links that carry a packet less are idle for it."""
    assert stripe_ps(wire_bytes, packets, n_links, 100_000) == idle_packets * 100 * 10
