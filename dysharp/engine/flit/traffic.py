"""Draws of a point: when which source creates a packet for whom. All of them happen here, in chunks of cycles; kernels draw nothing."""

from dataclasses import dataclass, field

import numpy as np

from dysharp.base import F64, I64, Bools, ConfigError, Numbers
from dysharp.engine.flit.config import NetworkConfig, Traffic

NEVER = 1 << 60


def targets(traffic: Traffic, n: int) -> I64 | None:
    """[n] the terminal to which each terminal sends; None for patterns that draw the receiver."""
    ids = np.arange(n, dtype=np.int64)
    bits = n.bit_length() - 1
    if traffic.pattern in ("transpose", "bitcomp", "bitrev", "shuffle") and n != 1 << bits:
        raise ConfigError(f"traffic.pattern {traffic.pattern!r} permutes the bits of a terminal number: found {n} terminals, expected a power of two")
    match traffic.pattern:
        case "transpose":
            if bits % 2:
                raise ConfigError(f"traffic.pattern 'transpose' swaps halves of a terminal number: found {n} terminals, expected a power of four")
            return (ids >> (bits // 2)) | (ids & ((1 << (bits // 2)) - 1)) << (bits // 2)
        case "bitcomp":
            return n - 1 - ids
        case "bitrev":
            return np.array([int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(n)], np.int64)
        case "shuffle":
            return (ids << 1 | ids >> max(bits - 1, 0)) & (n - 1)
        case "tornado":
            return (ids + (n + 1) // 2 - 1) % n
        case "neighbor":
            return (ids + 1) % n
        case "permutation":
            return _given(traffic.targets, n)
    return None


def _given(given: Numbers, n: int) -> I64:
    if len(given) != n:
        raise ConfigError(f"traffic.targets has {len(given)} entries, expected one for each of {n} terminals")
    for i, target in enumerate(given):
        if not 0 <= target < n:
            raise ConfigError(f"traffic.targets[{i}] is {target}, expected a terminal from 0 to {n - 1}: nothing routes there")
    return np.array(given, np.int64)


def packet_rate(traffic: Traffic, load: float) -> float:
    """Packets per cycle and terminal while a source is on. Raises ConfigError for loads that no source can offer."""
    if not 0 < load <= 1:
        raise ConfigError(f"load is {load}, expected flits per cycle and terminal above 0 and at most 1")
    rate = load / traffic.packet_flits
    if traffic.burst is not None:
        on, off = traffic.burst
        rate *= (on + off) / on
        if rate > 1:
            raise ConfigError(f"load {load} with traffic.burst {traffic.burst} needs {rate:.3g} packets per cycle while on, expected at most 1")
    return rate


@dataclass(slots=True)
class Draws:
    """The packets of one point, chunk by chunk. Same seed, same chunks: same packets."""

    config: NetworkConfig
    traffic: Traffic
    load: float
    seed: int
    _when: np.random.Generator = field(init=False)
    _where: np.random.Generator = field(init=False)
    _way: np.random.Generator = field(init=False)
    _on: Bools = field(init=False)
    _left: I64 = field(init=False)
    _fixed: I64 | None = field(init=False)
    _cdf: F64 | None = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"seed is {self.seed!r}, expected a whole number, at least 0")
        n = self.config.n_terminals
        self._when, self._where, self._way = (np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(3))
        self._fixed = targets(self.traffic, n)
        self._cdf = None
        if self.traffic.weights:
            if len(self.traffic.weights) > n:
                raise ConfigError(f"traffic.weights has {len(self.traffic.weights)} entries, expected at most {n}: nothing routes to the others")
            weights = np.ones(n)
            weights[: len(self.traffic.weights)] = self.traffic.weights
            if not weights.sum():
                raise ConfigError("traffic.weights: expected one above zero")
            self._cdf = np.cumsum(weights) / weights.sum()
        if self.traffic.burst is not None:
            on, off = self.traffic.burst
            self._on = self._when.random(n) < on / (on + off)
            self._left = np.where(self._on, self._when.geometric(1 / on, n), self._when.geometric(1 / off, n)).astype(np.int64)

    def chunk(self, begin: int, cycles: int) -> tuple[I64, I64, I64, I64]:
        """(cycle, source, destination, salt) of the packets created in [begin, begin + cycles), by cycle then source."""
        n = self.config.n_terminals
        creates = self._when.random((cycles, n)) < packet_rate(self.traffic, self.load)
        if self.traffic.burst is not None:
            creates &= self._states(cycles)
        when, source = np.nonzero(creates)
        if self._fixed is not None:
            dest = self._fixed[source]
        elif self._cdf is not None:
            dest = np.minimum(np.searchsorted(self._cdf, self._where.random(len(when)), side="right"), n - 1)
        else:
            dest = self._where.integers(0, n, len(when))
        salt = self._way.integers(0, n, len(when)) if self.config.topology == "fattree" else np.zeros(len(when), np.int64)
        return when + begin, source.astype(np.int64), dest.astype(np.int64), salt

    def _states(self, cycles: int) -> Bools:
        """[cycles, n]: is the source on. Durations are geometric, so the state is a two-state Markov chain."""
        assert self.traffic.burst is not None
        on = np.empty((cycles, self.config.n_terminals), np.bool_)
        for i in range(self.config.n_terminals):
            at = 0
            while at < cycles:
                until = min(cycles, at + int(self._left[i]))
                on[at:until, i] = self._on[i]
                self._left[i] -= until - at
                at = until
                if self._left[i] == 0:
                    self._on[i] = not self._on[i]
                    self._left[i] = self._when.geometric(1 / self.traffic.burst[0 if self._on[i] else 1])
        return on
