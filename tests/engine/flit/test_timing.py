"""Router timing in an empty network, to the cycle."""

from __future__ import annotations

import pytest

from dysharp.engine.flit.network import NetworkConfig, Protocol, RouterConfig, Traffic, measure

ROUTER = RouterConfig()
EMPTY = 0.002  # of line rate: packets practically never meet, and the fastest one certainly met nobody


def idle(network: NetworkConfig, packet_flits: int = 1, pattern: str = "uniform") -> int:
    point = measure(network, Traffic(pattern, packet_flits), EMPTY * packet_flits, protocol=Protocol(4000))
    assert point.packet_latency_min == point.network_latency_min
    return point.packet_latency_min


@pytest.mark.parametrize("flits", [1, 2, 9])
@pytest.mark.parametrize(
    ("network", "head"),
    [
        (NetworkConfig("fly", 8), 6),
        (NetworkConfig("fly", 32), 6),
        (NetworkConfig("fly", 4, 2), 10),
        (NetworkConfig("fly", 2, 4), 18),
        (NetworkConfig("fly", 8, 1, RouterConfig(internal_speedup=2)), 5),
        (NetworkConfig("fly", 8, 1, RouterConfig(speculative=True)), 5),
        (NetworkConfig("fly", 8, 1, RouterConfig(input_speedup=2, output_speedup=2)), 6),
        (NetworkConfig("fly", 8, 1, RouterConfig(vc_allocator="islip", sw_allocator="islip")), 6),
        (NetworkConfig("fly", 8, 1, RouterConfig(routing_delay=1)), 7),
        (NetworkConfig("fly", 8, 1, RouterConfig(vc_alloc_delay=3)), 8),
        (NetworkConfig("fly", 8, 1, RouterConfig(traversal_delay=2)), 7),
        (NetworkConfig("fly", 8, terminal_delay=10), 24),
        (NetworkConfig("fly", 8, 1, RouterConfig(vc_buf_size=256), terminal_delay=50), 104),
        (NetworkConfig("fly", 4, 2, RouterConfig(vc_buf_size=16), link_delay=5), 14),
    ],
    ids=lambda v: f"{v.topology}{v.k}x{v.n}" if isinstance(v, NetworkConfig) else str(v),
)
def test_idle_latency(network: NetworkConfig, head: int, flits: int) -> None:
    if network.terminal_delay == 10 and flits == 9:
        head += 15  # the ninth flit of a packet waits for the head's credit: 8 slots, 23 cycles of credit loop
    assert idle(network, flits) == head + flits - 1


@pytest.mark.parametrize("flits", [1, 9])
def test_fat_tree(flits: int) -> None:
    """One router to a neighbour (or itself), three to anybody else."""
    network = NetworkConfig("fattree", 4, 2)
    near = Traffic("permutation", flits, targets=tuple(i ^ 1 for i in range(16)))
    far = Traffic("permutation", flits, targets=tuple((i + 4) % 16 for i in range(16)))
    for traffic, head, hops in ((near, 6, 1), (far, 14, 3)):
        point = measure(network, traffic, EMPTY * flits, protocol=Protocol(4000))
        assert (point.packet_latency_min, point.hops) == (head + flits - 1, hops)


def test_long_links() -> None:
    """With D = 50, 9 flits take 112 cycles if they fit the buffer; in 8 slots the last waits for the head's credit, at t + 103."""
    assert idle(NetworkConfig("fly", 8, 1, RouterConfig(vc_buf_size=9), terminal_delay=50), 9) == 112
    assert idle(NetworkConfig("fly", 8, 1, RouterConfig(vc_buf_size=8), terminal_delay=50), 9) == 207
    assert idle(NetworkConfig("fly", 8, 1, RouterConfig(vc_buf_size=8), terminal_delay=10), 9) == 47


def test_a_switch_allocation_of_several_cycles_delays_every_flit() -> None:
    network = NetworkConfig("fly", 8, 1, RouterConfig(sw_alloc_delay=2))
    assert idle(network, 1) == 7
    assert idle(network, 9) == 6 + 8 * 2 + 1  # one flit of a VC every other cycle


def test_credit_delay_costs_throughput_only() -> None:
    slow = NetworkConfig("fly", 4, 2, RouterConfig(num_vcs=1, vc_buf_size=4, credit_delay=10))
    fast = NetworkConfig("fly", 4, 2, RouterConfig(num_vcs=1, vc_buf_size=4))
    assert idle(slow) == idle(fast) == 10
    rates = [measure(n, Traffic("permutation", targets=tuple(range(16))), 1.0, protocol=Protocol(500)).accepted for n in (slow, fast)]
    assert rates[0] < 0.7 * rates[1]
