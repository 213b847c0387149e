"""What a measurement and a recorded row ask for."""

from __future__ import annotations

import pytest

from dysharp.base.errors import ConfigError
from dysharp.engine.flit.curves import _setting
from dysharp.engine.flit.network import NetworkConfig, Protocol, RouterConfig, Traffic
from dysharp.engine.flit.recorded import replay

ROW = {
    "curve": "xbar", "topology": "fly", "k": "16", "n": "1", "num_vcs": "4", "vc_buf_size": "8", "packet_size": "9", "link_delay": "3",
    "sample_period": "500", "vc_allocator": "islip", "sw_allocator": "islip", "internal_speedup": "1", "input_speedup": "2",
    "output_speedup": "1", "speculative": "0", "routing_delay": "0", "vc_alloc_delay": "1", "sw_alloc_delay": "1", "st_prepare_delay": "1",
    "st_final_delay": "2", "credit_delay": "2", "traffic": "hot4", "saturated": "0", "offered_flits_per_cycle_node": "0.25",
    "injected_flits_per_cycle_node": "0.24", "accepted_max_node": "0.8", "accepted_flits_per_cycle_node": "0.25",
}  # fmt: skip


@pytest.mark.parametrize(("saturated", "load"), [("0", 0.24), ("1", 0.25)])
def test_a_row_of_a_hot_terminal(saturated: str, load: float) -> None:
    """Terminal 0 takes 0.8 of all 16 x 0.25 flits, a share of 1/5, against 15 terminals of weight 1: w / (w + 15) = 1/5."""
    network, traffic, protocol, found = _setting(ROW | {"saturated": saturated})
    assert traffic.pattern == "hotspot"
    assert traffic.packet_flits == 9
    assert traffic.weights == pytest.approx((15 / 4,))
    assert (network.n_terminals, network.terminal_delay, protocol.period, protocol.max_periods, found) == (16, 3, 500, 7, load)
    router = network.router
    assert (router.num_vcs, router.vc_buf_size, router.input_speedup, router.traversal_delay, router.credit_delay) == (4, 8, 2, 3, 2)


def test_a_row_of_even_traffic() -> None:
    assert _setting(ROW | {"traffic": "uniform"})[1] == Traffic("uniform", 9)


@pytest.mark.parametrize("wrong", [{"period": 0}, {"warmup_periods": 0}, {"max_periods": 3}, {"stuck_cycles": 0}])
def test_a_protocol_measures_at_least_one_period(wrong: dict[str, int]) -> None:
    assert Protocol(period=1, warmup_periods=3, max_periods=4, stuck_cycles=1).max_periods == 4
    with pytest.raises(ConfigError, match="expected a period, warm-up and stuck_cycles of at least 1 and more periods in all than warm-up"):
        Protocol(**wrong)


@pytest.mark.parametrize("network", [NetworkConfig("fattree", 2, 2, RouterConfig()), NetworkConfig("fly", 2, 3, RouterConfig())])
def test_trees_of_two_levels_and_stages_in_a_row_are_replayed(network: NetworkConfig) -> None:
    assert replay(network, Traffic(), 0.1, 1, Protocol(100)).accepted == pytest.approx(0.1, rel=0.5)
