"""Defaults of a network besides NVLink: a message costs its bytes alone, every node has the same rate."""

from dysharp.program.tables import Net


def test_defaults_of_a_network() -> None:
    net = Net("nic", rate=50_000, lat=4_000_000, ack=8_000_000)
    assert (net.message_ps, net.rate_of(0), net.rate_of(7)) == (0, 50_000, 50_000)
    assert net.train_bytes > 1 << 20
