"""Packet events against the flit-exact router on crossbars, same packets: where they agree within 1 %, and by how much not."""

from __future__ import annotations

import pytest

from dysharp.engine.packet.network import NetworkConfig, Protocol, RouterConfig, Traffic, measure
from dysharp.engine.packet.synthetic import measure_events
from dysharp.errors import ConfigError

PROTOCOL = Protocol(period=2000, warmup_periods=1, max_periods=3, threshold=1e-9, check=False)


def both(k: int, flits: int, load: float, pattern: str = "uniform", **router: int) -> tuple[float, float]:
    """Events over flits: (packet latency, accepted rate) minus one."""
    config = NetworkConfig(k=k, router=RouterConfig(**({"num_vcs": 16, "vc_buf_size": 256, "internal_speedup": 2} | router)))
    traffic = Traffic(pattern, packet_flits=flits)
    exact, events = measure(config, traffic, load, 1, PROTOCOL), measure_events(config, traffic, load, 1, PROTOCOL)
    assert events.packet_latency_min == exact.packet_latency_min
    return events.packet_latency / exact.packet_latency - 1, events.accepted / exact.accepted - 1


@pytest.mark.parametrize("k", [8, 16, 32])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.85])
def test_single_flit_packets_agree_within_one_percent(k: int, load: float) -> None:
    latency, accepted = both(k, 1, load)
    assert abs(latency) < 0.01
    assert abs(accepted) < 0.01


@pytest.mark.parametrize("pattern", ["neighbor", "bitcomp", "shuffle"])
@pytest.mark.parametrize("flits", [2, 9])
def test_permutations_agree_within_one_percent(pattern: str, flits: int) -> None:
    latency, accepted = both(16, flits, 0.8, pattern)
    assert abs(latency) < 0.01
    assert abs(accepted) < 0.01


@pytest.mark.parametrize("load", [0.1, 0.8])
def test_long_packets_on_many_channels_are_served_whole_and_so_arrive_earlier(load: float) -> None:
    latency, accepted = both(16, 9, load)
    assert -0.09 < latency < 0  # the router interleaves flits of several VCs on one output
    assert abs(accepted) < 0.01


def test_only_one_crossbar() -> None:
    with pytest.raises(ConfigError, match="expected one crossbar"):
        measure_events(NetworkConfig(k=2, n=2), Traffic(), 0.1)
