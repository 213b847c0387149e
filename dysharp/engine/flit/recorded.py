"""A recorded point on the recorded run's own packets: the same random numbers, asked for in the same order.

What the recorded runs did, found by matching their injected rates, per-terminal rates and latencies digit for digit: in every cycle, in
order of terminals, a source with nothing left to send draws once per cycle it has not looked at yet, until a draw makes a packet; then
the destination is drawn, and one more number that nobody uses. When a head leaves its source, the way up a tree is drawn. A packet is measured if it
is drawn in a measured period, or was created in one and is drawn later.

The two generators of the recorded runs are Knuth's subtractive one, of whole numbers and of fractions. Source: D. E. Knuth, The Art of Computer
Programming, volume 2, section 3.6: x[j] = x[j-100] - x[j-37] modulo 2**30, or x[j-100] + x[j-37] modulo 1; of every 1009 numbers the first 100
are used.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dysharp.base import Array, ConfigError, OnProgress
from dysharp.engine.flit.config import NetworkConfig, Traffic
from dysharp.engine.flit.network import NetworkPoint, NetworkRun, Protocol, measure_run
from dysharp.engine.flit.records import Created, ReplayDraws
from dysharp.engine.flit.traffic import NEVER, packet_rate, targets

LONG, SHORT, BATCH, TAKEN = 100, 37, 1009, 100
MODULUS = 1 << 30
ROUNDS = 69
Mix = Callable[[Any, Any], Any]


def _whole(a: Any, b: Any) -> Any:
    return (a - b) & (MODULUS - 1)


def _fraction(a: Any, b: Any) -> Any:
    return (a + b) % 1.0


def _extend(state: Array, n: int, mix: Mix) -> Array:
    """The next `n` numbers after the 100 in `state`, which come first."""
    x = np.empty(LONG + n, state.dtype)
    x[:LONG] = state
    for begin in range(LONG, LONG + n, SHORT):  # those of one stretch do not depend on each other
        end = min(begin + SHORT, LONG + n)
        x[begin:end] = mix(x[begin - LONG : end - LONG], x[begin - SHORT : end - SHORT])
    return x


class _Stream:
    """Numbers in order. Same seed, same numbers."""

    def __init__(self, seed: int, *, fractions: bool) -> None:
        self._mix: Mix = _fraction if fractions else _whole
        self._state = _started(seed, fractions)
        self._made: Array = self._state[:0]

    def first(self, n: int) -> Array:
        """The first `n` numbers: [n] int64 below 2**30, or float64 below 1. The numbers are kept, so that many points share them."""
        parts, have = [self._made], len(self._made)
        while have < n:
            x = _extend(self._state, BATCH, self._mix)
            self._state = x[BATCH:]
            parts.append(x[:TAKEN])
            have += TAKEN
        if len(parts) > 1:
            self._made = np.concatenate(parts)
        return self._made[:n]


@cache
def _stream(seed: int, fractions: bool) -> _Stream:
    """The stream of a seed, made once."""
    return _Stream(seed, fractions=fractions)


def _started(seed: int, fractions: bool) -> Array:
    """The state after a seed: a polynomial in the recurrence, squared and shifted by the bits of the seed."""
    mix: Mix = _fraction if fractions else _whole
    ulp = 2.0**-52
    zero: Any = 0.0 if fractions else 0
    x: list[Any] = [zero] * (2 * LONG - 1)
    value: Any = 2.0 * ulp * ((seed & (MODULUS - 1)) + 2) if fractions else (seed + 2) & (MODULUS - 2)
    limit: Any = 1.0 if fractions else MODULUS
    wrap: Any = 1.0 - 2 * ulp if fractions else MODULUS - 2
    for j in range(LONG):
        x[j] = value
        value += value
        if value >= limit:
            value -= wrap
    x[1] += ulp if fractions else 1
    bits, rounds = seed & (MODULUS - 1), ROUNDS
    while rounds:
        for j in range(LONG - 1, 0, -1):
            x[2 * j], x[2 * j - 1] = x[j], zero
        for j in range(2 * LONG - 2, LONG - 1, -1):
            x[j - (LONG - SHORT)] = mix(x[j - (LONG - SHORT)], x[j])
            x[j - LONG] = mix(x[j - LONG], x[j])
        if bits & 1:
            x[1 : LONG + 1] = x[:LONG]
            x[0] = x[LONG]
            x[SHORT] = mix(x[SHORT], x[LONG])
        if bits:
            bits >>= 1
        else:
            rounds -= 1
    state = np.array(x[SHORT:LONG] + x[:SHORT], np.float64 if fractions else np.int64)
    for _ in range(10):
        state = _extend(state, 2 * LONG - 1, mix)[2 * LONG - 1 :]
    return state


class _Replay(NetworkRun):
    """Sources that draw as the recorded ones did."""

    def __init__(self, config: NetworkConfig, traffic: Traffic, load: float, seed: int, protocol: Protocol) -> None:
        from dysharp.engine.flit.recorded_loop import replay_run

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
        fractions = _stream(self.seed, True).first(self.config.n_terminals * (until + 1))
        creates = fractions < packet_rate(self.traffic, self.load)
        ints = _stream(self.seed, False).first(3 * int(creates.sum()) + 1)
        begin = time.perf_counter()
        tree = self.config.topology == "fattree"
        draws = ReplayDraws(creates, ints, self.cursor, self.looked, self.record, self.dest_of, self.cdf)
        self.replay_kernel(until, until_measured, tree, self.state, self.drawn_now, draws)
        self.kernel_s += time.perf_counter() - begin
        return 0

    def drain(self) -> None:
        """Sources that have not looked yet would draw more packets, so the network is left as it is."""


def replay(
    config: NetworkConfig, traffic: Traffic, load: float, seed: int, protocol: Protocol, progress: OnProgress | None = None
) -> NetworkPoint:
    """`measure` on the packets that a recorded run with this seed drew; `load`: the load offered to it. Raises as `measure` does."""
    return measure_run(_Replay(config, traffic, load, seed, protocol), progress)
