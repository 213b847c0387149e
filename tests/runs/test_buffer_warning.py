"""The burst level warns where the buffers of a link are too small for copies and sums of the switch, as the packet level shows."""

import pytest

import dysharp
from dysharp.analysis import Row

WARNING = "times the bytes on their way (rate x latency), expected 2 or more"


def row(system: str, cluster: str, fidelity: str = "burst") -> Row:
    return dysharp.run(system, model="S-8", cluster=cluster, tokens=128, routing="uniform", fidelity=fidelity)


@pytest.mark.parametrize("system", ["dysharp", "nvls"])
def test_small_buffers_are_named_where_the_levels_part(system: str) -> None:
    burst, packet = (row(system, "paper-dgx-h100,n_vcs=1", fidelity) for fidelity in ("burst", "packet"))
    assert packet.time_us > 1.1 * burst.time_us
    assert any(f"0.7 {WARNING}" in text for text in burst.warnings)
    assert not any(WARNING in text for text in packet.warnings)


@pytest.mark.parametrize(("system", "cluster"), [("dysharp", "paper-dgx-h100"), ("deepep", "paper-dgx-h100,n_vcs=1")])
def test_larger_buffers_and_unicast_are_not_named(system: str, cluster: str) -> None:
    assert not any(WARNING in text for text in row(system, cluster).warnings)
