"""Targets that a train lists: by default those of its members that are on other nodes."""

from __future__ import annotations

import pytest

from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Hardware, Kind, ProgramBuilder, Template, To

HARDWARE = Hardware(450_000, 250_000, 500_000, 500_000, 500_000, 500_000, 8, 73_728, 18)
EXPLICIT = Framing("explicit", address_per_target=1)
ROW = 128


def up_bytes(to: list[int], targets: int | None) -> int:
    """Wire bytes on the link out of a multicast of one packet from node 0 to nodes `to`."""
    b = ProgramBuilder(HARDWARE, 4)
    template = b.template(Template("send", Kind.MULTICAST, "dispatch", framing=b.framing(EXPLICIT)))
    n = len(to)
    _, row, _ = b.regions(to, [1] * n, ROW, [1] * n, alloc=Alloc.PREFIX)
    b.ops(template, [0], bytes=ROW, to=To([n], to, [1] * n, range(row, row + n)), targets=targets)
    return int(b.build().wires.up[0])


@pytest.mark.parametrize(("to", "remote"), [([1], 1), ([1, 2, 3], 3), ([0, 1, 2], 2), ([0, 1, 2, 3], 3)])
def test_the_own_node_is_not_listed(to: list[int], remote: int) -> None:
    header_and_data, addresses = 1 + ROW // 16, remote - 1
    assert up_bytes(to, None) == 16 * (header_and_data + addresses)


def test_given_targets_replace_the_default() -> None:
    assert up_bytes([1, 2, 3], 2) == up_bytes([1, 2], None) < up_bytes([1, 2, 3], None)
