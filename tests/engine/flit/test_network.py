"""What a measurement promises: determinism, conservation, statistics, deadlock reports, refusals."""

from __future__ import annotations

import operator
import re
from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ConfigError, SimulationError
from dysharp.engine.flit import columns as u
from dysharp.engine.flit.network import NetworkConfig, Protocol, RouterConfig, Traffic, measure
from dysharp.engine.flit.state import build, check_drained
from dysharp.engine.flit.traffic import Draws, targets

VARIANTS = {
    "crossbar": NetworkConfig("fly", 8),
    "one port": NetworkConfig("fly", 1),
    "one VC of one flit": NetworkConfig("fly", 8, 1, RouterConfig(num_vcs=1, vc_buf_size=1)),
    "64 VCs": NetworkConfig("fly", 4, 1, RouterConfig(num_vcs=64, vc_buf_size=2)),
    "64 ports": NetworkConfig("fly", 64, 1, RouterConfig(num_vcs=3)),
    "fly": NetworkConfig("fly", 3, 3),
    "fat tree": NetworkConfig("fattree", 2, 3),
    "internal speedup": NetworkConfig("fly", 4, 2, RouterConfig(internal_speedup=2)),
    "lanes": NetworkConfig("fly", 4, 2, RouterConfig(input_speedup=2, output_speedup=2)),
    "lanes and speedup": NetworkConfig("fattree", 4, 2, RouterConfig(num_vcs=5, internal_speedup=3, input_speedup=3, output_speedup=2)),
    "speculative": NetworkConfig("fattree", 4, 2, RouterConfig(speculative=True, input_speedup=2, internal_speedup=2)),
    "islip": NetworkConfig("fly", 4, 2, RouterConfig(vc_allocator="islip", sw_allocator="islip")),
    "delays": NetworkConfig(
        "fattree", 4, 2,
        RouterConfig(4, 3, "islip", routing_delay=2, vc_alloc_delay=3, sw_alloc_delay=2, traversal_delay=4, credit_delay=3),
    ),
    "long links": NetworkConfig("fly", 4, 2, terminal_delay=17, link_delay=9),
}  # fmt: skip


@pytest.mark.parametrize("flits", [1, 9])
@pytest.mark.parametrize("name", VARIANTS)
def test_everything_comes_back(name: str, flits: int, short: Protocol) -> None:
    """Far past saturation: the drain inside `measure` accounts for every flit and credit; the same seed gives the same point."""
    network = VARIANTS[name]
    one, two = (measure(network, Traffic("uniform", flits), 0.9, seed=3, protocol=short) for _ in range(2))
    assert one == two
    assert one.n_packets > 0
    assert one.packet_latency >= one.network_latency >= one.flit_latency > 0
    assert one.packet_latency_min <= one.packet_latency <= one.packet_latency_max
    assert one.accepted_min <= one.accepted <= one.accepted_max <= 1.0001
    assert measure(network, Traffic("uniform", flits), 0.9, seed=4, protocol=short).digest != one.digest


def test_measurement_does_not_depend_on_the_check(short: Protocol) -> None:
    points = [measure(VARIANTS["fly"], Traffic(), 0.5, protocol=replace(short, check=c)) for c in (True, False)]
    assert points[0].packet_latency == points[1].packet_latency
    assert points[0].cycles == points[1].cycles


def test_missing_credit_and_flit_are_named() -> None:
    network = NetworkConfig("fly", 4, 2)
    for column, row, value, message in (
        ("outputs.vcs", (17, u.CREDIT), 7, "router[1].port[0].out VC 1 has 7 credits, expected 8"),
        ("inputs.vcs", (6, u.OCC), 2, "router[0].port[1].in VC 2 holds 2 flits"),
        ("sources.credit", 9, 7, "source[2] VC 1 has 7 credits, expected 8"),
    ):
        state = build(network, Traffic())
        check_drained(state, network)
        operator.attrgetter(column)(state)[row] = value
        with pytest.raises(SimulationError, match=re.escape(message)):
            check_drained(state, network)


@pytest.mark.parametrize("num_vcs", [1, 2])
def test_deadlock_names_the_cycle(num_vcs: int) -> None:
    """A full ring without a dateline: the VCs of the ring wait for each other all the way round."""
    network = NetworkConfig("ring", 5, 1, RouterConfig(num_vcs=num_vcs, vc_buf_size=2))
    with pytest.raises(SimulationError, match=r"^deadlock at cycle \d+: no flit moved for \d+ cycles with \d+ in the network; ") as e:
        measure(network, Traffic("uniform", 9), 0.9, protocol=Protocol(2000))
    chain = re.findall(r"router\[(\d)\]\.port\[\d\]\.in VC \d", str(e.value))
    assert chain[0] == chain[-1]
    assert set(chain) == set("01234")


def test_a_ring_with_little_traffic_runs(short: Protocol) -> None:
    point = measure(NetworkConfig("ring", 4), Traffic("neighbor"), 0.2, protocol=short)
    assert point.packet_latency_min == 10
    assert point.hops == 2


def test_every_pattern_arrives_where_it_should(short: Protocol) -> None:
    network = NetworkConfig("fly", 4, 2)
    patterns = ("transpose", "bitcomp", "bitrev", "shuffle", "tornado", "neighbor")
    for pattern in patterns:
        permutation = targets(Traffic(pattern), 16)
        assert permutation is not None
        assert sorted(permutation) == list(range(16))
        assert not measure(network, Traffic(pattern), 0.1, protocol=short).saturated
    assert list(targets(Traffic("transpose"), 16)[:5]) == [0, 4, 8, 12, 1]  # type: ignore[index]
    assert list(targets(Traffic("bitcomp"), 16)[:3]) == [15, 14, 13]  # type: ignore[index]


def test_hotspot_share() -> None:
    point = measure(NetworkConfig("fly", 16), Traffic("hotspot", weights=(4.0,)), 0.2, protocol=Protocol(4000))
    assert point.accepted_max == pytest.approx(0.2 * 16 * 4 / 19, rel=0.03)
    assert point.accepted_min == pytest.approx(0.2 * 16 / 19, rel=0.1)


def test_bursts_keep_the_load_and_cost_latency() -> None:
    network, protocol = NetworkConfig("fly", 8), Protocol(5000)
    calm, bursty = (measure(network, Traffic(burst=b), 0.5, protocol=protocol) for b in (None, (50.0, 50.0)))
    assert bursty.injected == pytest.approx(0.5, rel=0.05)
    assert bursty.packet_latency > 2 * calm.packet_latency


def test_draws_are_bernoulli() -> None:
    when, source, dest, _ = Draws(NetworkConfig("fly", 8), Traffic(packet_flits=9), 0.9, seed=1).chunk(100, 20_000)
    assert when.min() >= 100
    assert (np.diff(when) >= 0).all()
    assert len(when) / (8 * 20_000) == pytest.approx(0.1, rel=0.02)
    assert np.bincount(source * 8 + dest, minlength=64).min() > 150


def test_latency_grows_with_load(short: Protocol) -> None:
    points = [measure(NetworkConfig("fly", 8), Traffic(), load, protocol=short) for load in (0.1, 0.5, 0.9)]
    assert [p.saturated for p in points] == [False, False, True]
    assert points[0].packet_latency < points[1].packet_latency < points[2].packet_latency


@pytest.mark.parametrize(
    ("build_it", "message"),
    [
        (lambda: RouterConfig(num_vcs=0), "router.num_vcs is 0, expected a whole number from 1 to 64"),
        (lambda: RouterConfig(num_vcs=65), "router.num_vcs is 65, expected a whole number from 1 to 64"),
        (lambda: RouterConfig(vc_buf_size=0), "router.vc_buf_size is 0, expected a whole number from 1"),
        (lambda: RouterConfig(vc_alloc_delay=0), "router.vc_alloc_delay is 0, expected a whole number from 1"),
        (lambda: RouterConfig(sw_allocator="islipp"), 'router.sw_allocator is \'islipp\'; did you mean "islip"?'),
        (lambda: RouterConfig(num_vcs=1, input_speedup=2), "router.input_speedup is 2, expected at most num_vcs = 1"),
        (lambda: RouterConfig(speculative=True, sw_alloc_delay=2), "router.speculative needs vc_alloc_delay = sw_alloc_delay = 1"),
        (lambda: NetworkConfig("torus"), "network.topology is 'torus'; expected one of fattree, fly, ring"),
        (lambda: NetworkConfig("fly", 65), "a router has 65 ports of 1 lanes, expected at most 64 lanes"),
        (lambda: NetworkConfig("fly", 40, 1, RouterConfig(input_speedup=2)), "a router has 40 ports of 2 lanes"),
        (lambda: NetworkConfig("fly", 8, 12), "terminals, expected at most 16384"),
        (lambda: NetworkConfig("fly", 8, terminal_delay=0), "network.terminal_delay is 0, expected a whole number from 1"),
        (lambda: Traffic("hotspot"), "traffic.weights has 0 entries, expected some with the pattern 'hotspot'"),
        (lambda: Traffic(weights=(2.0,)), "traffic.weights has 1 entries, expected none with the pattern 'uniform'"),
        (lambda: Traffic("hotspot", weights=(-1.0,)), "expected finite numbers, none negative"),
        (lambda: Traffic(packet_flits=0), "traffic.packet_flits is 0, expected a whole number from 1"),
        (lambda: Traffic(burst=(0.5, 1.0)), "expected mean cycles of on and off, each at least 1"),
        (lambda: Protocol(period=0), "protocol: expected a period"),
    ],
)  # fmt: skip
def test_bad_configurations(build_it: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_it()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("traffic", "load", "message"),
    [
        (Traffic(), 1.2, "load is 1.2, expected flits per cycle and terminal above 0 and at most 1"),
        (Traffic(), 0.0, "load is 0.0, expected"),
        (Traffic(), float("nan"), "load is nan, expected"),
        (Traffic(burst=(1.0, 9.0)), 0.5, "needs 5 packets per cycle while on, expected at most 1"),
        (Traffic("transpose"), 0.5, "found 6 terminals, expected a power of two"),
        (Traffic("permutation", targets=(0, 1, 2)), 0.5, "traffic.targets has 3 entries, expected one for each of 6 terminals"),
        (Traffic("permutation", targets=(0, 1, 2, 3, 4, 6)), 0.5, "traffic.targets[5] is 6, expected a terminal from 0 to 5: nothing routes there"),
        (Traffic("hotspot", weights=(1.0,) * 7), 0.5, "traffic.weights has 7 entries, expected at most 6"),
        (Traffic("hotspot", weights=(0.0,) * 6), 0.5, "traffic.weights: expected one above zero"),
    ],
)  # fmt: skip
def test_bad_points(traffic: Traffic, load: float, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        measure(NetworkConfig("fly", 6), traffic, load)


def test_transpose_needs_two_halves() -> None:
    with pytest.raises(ConfigError, match="found 8 terminals, expected a power of four"):
        measure(NetworkConfig("fly", 8), Traffic("transpose"), 0.5)


def test_too_much_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"network holds up to \d+ packets, expected at most"):
        measure(NetworkConfig("fly", 64, 2, RouterConfig(num_vcs=64, vc_buf_size=256)), Traffic(), 0.5)


def test_few_packets_saturate_nothing() -> None:
    """Of two sources 57 packets were drawn where a load of 0.01 means 60: all of them arrived, each in the 6 cycles of an empty router."""
    point = measure(NetworkConfig("fly", 2), Traffic(), 0.01, protocol=Protocol(period=1000))
    assert point.accepted == pytest.approx(point.injected) == pytest.approx(0.0095)
    assert (point.packet_latency, point.saturated) == (6, False)
