"""Packet events against the flit-exact router on crossbars, same packets: where they agree within 1 %, and by how much not.

`python -m pytest tests/engine/packet/test_events_network.py -m "slow or long" -s` prints the grid that docs/design/0006 sums up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.crossbar_events import measure_events
from dysharp.api.network_curve import _cluster_setting
from dysharp.base.errors import ConfigError
from dysharp.engine.flit.network import NetworkConfig, Protocol, RouterConfig, Traffic, measure
from dysharp.specs import load_cluster

PROTOCOL = Protocol(period=2000, warmup_periods=1, max_periods=3, threshold=1e-9, check=False)

PAPER: dict[str, Any] = {"num_vcs": 16, "vc_buf_size": 256, "internal_speedup": 2, "hold_switch": True}
SETTINGS: dict[str, tuple[dict[str, Any], float]] = {  # router, and the load it saturates at under uniform traffic
    "16 VCs x 256, speed-up 2": (PAPER, 1.0),
    "4 VCs x 64, speed-up 2": (PAPER | {"num_vcs": 4, "vc_buf_size": 64}, 1.0),
    "16 VCs x 256, speed-up 3": (PAPER | {"internal_speedup": 3}, 1.0),
    "1 VC x 256, speed-up 2": (PAPER | {"num_vcs": 1}, 0.58),
}
HOT = 2.0  # weight of terminal 0, every other one 1


def both(k: int, flits: int, load: float, pattern: str = "uniform", **router: Any) -> tuple[float, float]:
    """Events over flits: (packet latency, accepted rate) minus one."""
    config = NetworkConfig(k=k, router=RouterConfig(**({"num_vcs": 16, "vc_buf_size": 256, "internal_speedup": 2} | router)))
    traffic = Traffic(pattern, packet_flits=flits)
    exact, events = measure(config, traffic, load, 1, PROTOCOL), measure_events(config, traffic, load, 1, PROTOCOL)
    assert events.packet_latency_min == exact.packet_latency_min
    return events.packet_latency / exact.packet_latency - 1, events.accepted / exact.accepted - 1


@pytest.mark.slow
@pytest.mark.parametrize("k", [8, 16, 32])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.85])
def test_single_flit_packets_agree_within_one_percent(k: int, load: float) -> None:
    latency, accepted = both(k, 1, load)
    assert abs(latency) < 0.01
    assert abs(accepted) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["neighbor", "bitcomp", "shuffle"])
@pytest.mark.parametrize("flits", [2, 9])
def test_permutations_agree_within_one_percent(pattern: str, flits: int) -> None:
    latency, accepted = both(16, flits, 0.8, pattern)
    assert abs(latency) < 0.01
    assert abs(accepted) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.1, 0.8])
def test_long_packets_on_many_channels_agree_within_nine_percent(load: float) -> None:
    """The router interleaves flits of several VCs on one output; packet events serve packets whole, which is earlier."""
    latency, accepted = both(16, 9, load)
    assert abs(latency) < 0.09
    assert abs(accepted) < 0.01


def test_only_one_crossbar() -> None:
    with pytest.raises(ConfigError, match="expected one crossbar"):
        measure_events(NetworkConfig(k=2, n=2), Traffic(), 0.1)


def whole(config: NetworkConfig, traffic: Traffic, load: float, seeds: int, protocol: Protocol = PROTOCOL) -> tuple[float, float, float]:
    """Means of `seeds`: flit-exact latency, and events over it and over the accepted rate, minus one."""
    exact = [measure(config, traffic, load, seed, protocol) for seed in range(1, seeds + 1)]
    events = [measure_events(config, traffic, load, seed, protocol) for seed in range(1, seeds + 1)]
    assert [e.packet_latency_min for e in events] == [e.packet_latency_min for e in exact]
    latency = sum(e.packet_latency for e in exact)
    rate = sum(e.accepted for e in events) / sum(e.accepted for e in exact)
    return latency / seeds, sum(e.packet_latency for e in events) / latency - 1, rate - 1


def traffic_of(pattern: str, k: int, flits: int) -> tuple[Traffic, float]:
    """The pattern, and the part of its uniform saturation that a crossbar carries."""
    if pattern == "hotspot":
        return Traffic(pattern, flits, weights=(HOT,)), (k - 1 + HOT) / (k * HOT)
    return Traffic(pattern, flits), 1.0


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("flits", [5, 9])
@pytest.mark.parametrize("pattern", ["uniform", "hotspot", "shuffle"])
def test_routers_that_serve_packets_whole_agree_within_one_percent(name: str, flits: int, pattern: str) -> None:
    router, most = SETTINGS[name]
    traffic, part = traffic_of(pattern, 16, flits)
    for load in (0.2, 0.5, 0.9):
        _, latency, accepted = whole(NetworkConfig(k=16, router=RouterConfig(**router)), traffic, load * most * part, 1)
        assert abs(latency) < 0.01
        assert abs(accepted) < 0.01


def test_a_switch_of_the_paper_that_serves_packets_whole_agrees() -> None:
    setting = _cluster_setting(load_cluster("paper-gh200-nvl32"))
    config = replace(setting.config, router=replace(setting.config.router, hold_switch=True))
    for load in (0.2, 0.9):
        _, latency, accepted = whole(config, setting.traffic, load, 1)
        assert abs(latency) < 0.005
        assert abs(accepted) < 0.005


def test_without_speed_up_the_order_of_arbitration_tells() -> None:
    """Inputs ask first in the router, outputs take first in packet events: within 1 % to half of saturation, then within 6 %."""
    config = NetworkConfig(k=16, router=RouterConfig(**PAPER | {"internal_speedup": 1}))
    assert abs(whole(config, Traffic(packet_flits=9), 0.5, 1)[1]) < 0.01
    assert abs(whole(config, Traffic(packet_flits=9), 0.8, 2)[1]) < 0.06


def test_packets_that_are_held_need_buffers_of_their_size_and_no_speculation() -> None:
    with pytest.raises(ConfigError, match="at least the 9 flits of a packet"):
        measure(NetworkConfig(router=RouterConfig(hold_switch=True)), Traffic(packet_flits=9), 0.1)
    with pytest.raises(ConfigError, match="speculative"):
        RouterConfig(hold_switch=True, speculative=True)


@pytest.mark.parametrize("topology", ["fly", "fattree"])
@pytest.mark.parametrize("router", [{}, {"internal_speedup": 2}, {"input_speedup": 2, "output_speedup": 2}, {"sw_allocator": "islip"}])
def test_networks_that_hold_the_switch_give_everything_back(topology: str, router: dict[str, Any]) -> None:
    """The drain of `measure` counts all flits and credits, also past saturation; flits of a packet follow each other without a gap."""
    config = NetworkConfig(topology, 4, 2, RouterConfig(vc_buf_size=10, hold_switch=True, **router))
    for load in (0.1, 0.9):
        point = measure(config, Traffic(packet_flits=5), load, protocol=Protocol(period=500))
        assert point.flit_latency_min <= point.network_latency_min - 4


@pytest.mark.parametrize(
    ("k", "name"),
    [pytest.param(k, name, marks=pytest.mark.slow if k == 8 and n < 2 else pytest.mark.long) for k in (8, 16, 32) for n, name in enumerate(SETTINGS)],
)
def test_the_grid_agrees_within_one_percent(name: str, k: int) -> None:
    router, most = SETTINGS[name]
    config = NetworkConfig(k=k, router=RouterConfig(**router))
    protocol = Protocol(period=64_000 // k, warmup_periods=1, max_periods=3, threshold=1e-9, check=False)
    worst, rates = [], []
    for pattern in ("uniform", "hotspot", "shuffle"):
        for flits in (5, 9):
            traffic, part = traffic_of(pattern, k, flits)
            rows = [whole(config, traffic, round(0.1 * tenth * most * part, 4), 3, protocol) for tenth in range(2, 10)]
            worst.append(max((row[1] for row in rows), key=abs))
            rates.append(max((row[2] for row in rows), key=abs))
            print(f"| {name} | {k} | {pattern} | {flits} | {rows[0][0]:.1f} to {rows[-1][0]:.1f} | {worst[-1]:+.2%} | {rates[-1]:+.2%} |")
    assert max(map(abs, worst)) < 0.01
    assert max(map(abs, rates)) < 0.01


@pytest.mark.parametrize("k", [pytest.param(8, marks=pytest.mark.slow), *(pytest.param(k, marks=pytest.mark.long) for k in (16, 32))])
def test_the_grid_without_speed_up(k: int) -> None:
    config = NetworkConfig(k=k, router=RouterConfig(**PAPER | {"internal_speedup": 1}))
    protocol = Protocol(period=64_000 // k, warmup_periods=1, max_periods=3, threshold=1e-9, check=False)
    for load in (0.5, 0.6, 0.7, 0.8, 0.85):
        for flits in (5, 9):
            exact, latency, accepted = whole(config, Traffic(packet_flits=flits), load, 4, protocol)
            print(f"| 16 VCs x 256, no speed-up | {k} | uniform {load} | {flits} | {exact:.1f} | {latency:+.2%} | {accepted:+.2%} |")
            assert -0.09 < latency < (0.01 if load > 0.6 else 0.001)
            assert load > 0.6 or latency > -0.01
            assert abs(accepted) < 0.01
