"""A recorded point on the recorded run's own packets: the same random numbers, asked for in the same order.

What the recorded runs did, found by matching their injected rates, per-terminal rates and latencies digit for digit: in every cycle, in
order of terminals, a source with nothing left to send draws once per cycle it has not looked at yet, until a draw makes a packet; then
the destination is drawn, and one more number that nobody uses. When a head leaves its source, the way up a tree is drawn. A packet is measured if it
is drawn in a measured period, or was created in one and is drawn later.
"""

import time
from collections.abc import Callable

import numpy as np

from dysharp.engine.flit.config import NetworkConfig, Traffic
from dysharp.engine.flit.network import NetworkPoint, Protocol, Run, measure_run
from dysharp.engine.flit.replay.streams import stream
from dysharp.engine.flit.traffic import NEVER, packet_rate, targets
from dysharp.errors import ConfigError
from dysharp.uarch.flit.state import Created, Draws


class _Replay(Run):
    """Sources that draw as the recorded ones did."""

    def __init__(self, config: NetworkConfig, traffic: Traffic, load: float, seed: int, protocol: Protocol) -> None:
        from dysharp.engine.flit.replay.loop import replay_run

        super().__init__(config, traffic, load, seed, protocol)
        n = config.n_terminals
        if traffic.burst is not None or (config.topology == "fattree" and config.n > 2):
            raise ConfigError("replay: found bursty sources or a tree of more than two levels, expected a network like the recorded ones")
        self.replay_kernel = replay_run
        self.drawn_now = Created(*(np.full(n + 1, value, np.int64) for value in (NEVER, 0, 0, 0, -1)))
        self.cursor, self.looked, self.record = np.zeros(2, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
        fixed = targets(traffic, n)
        self.dest_of = np.full(n, -1, np.int64) if fixed is None else fixed
        weights = np.ones(n, np.int64)
        weights[: len(traffic.weights)] = [int(w) for w in traffic.weights]
        self.cdf = np.cumsum(weights)

    def advance(self, cycles: int, until_measured: bool = False) -> int:
        """Run `cycles` more. Packets are counted when they are drawn, so none are reported."""
        until = self.now + cycles
        fractions = stream(self.seed, True).first(self.config.n_terminals * (until + 1))
        creates = fractions < packet_rate(self.traffic, self.load)
        ints = stream(self.seed, False).first(3 * int(creates.sum()) + 1)
        begin = time.perf_counter()
        tree = self.config.topology == "fattree"
        draws = Draws(creates, ints, self.cursor, self.looked, self.record, self.dest_of, self.cdf)
        self.replay_kernel(until, until_measured, tree, self.state, self.drawn_now, draws)
        self.kernel_s += time.perf_counter() - begin
        return 0

    def drain(self) -> None:
        """Sources that have not looked yet would draw more packets, so the network is left as it is."""


def replay(
    config: NetworkConfig, traffic: Traffic, load: float, seed: int, protocol: Protocol, progress: Callable[[int, int], None] | None = None
) -> NetworkPoint:
    """`measure` on the packets that a recorded run with this seed drew; `load`: the load offered to it. Raises as `measure` does."""
    return measure_run(_Replay(config, traffic, load, seed, protocol), progress)
