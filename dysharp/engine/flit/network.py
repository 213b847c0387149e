"""Latency against load of a flit-exact network: `measure` one point; where nothing moves, who waits for whom.

Source of router timing and of the protocol: recorded curves of an established router simulator (docs/network.md).
"""

import hashlib
import json
import time
from dataclasses import asdict, field

import numpy as np

from dysharp.base import I64, ByName, ConfigError, OnProgress, SimulationError, frozen
from dysharp.engine.cycles import first_cycle
from dysharp.engine.flit import columns as u
from dysharp.engine.flit.config import NetworkConfig, RouterConfig, Traffic
from dysharp.engine.flit.records import Created, FlitState
from dysharp.engine.flit.state import build, check_drained, clear_statistics, settled
from dysharp.engine.flit.traffic import NEVER, Draws

__all__ = ["NetworkConfig", "NetworkPoint", "Protocol", "RouterConfig", "Traffic", "measure"]

SATURATED = 0.97  # accepted or injected below this part of the offered load


@frozen
class Protocol:
    """How a point is measured: `warmup_periods` discarded, then periods until mean packet latency and throughput changed by less than
    `threshold` three times running (at most `max_periods` in all), then, sources active, until every packet created in a measured
    period has arrived. `stuck_cycles` without any movement are a deadlock."""

    period: int = 6000
    warmup_periods: int = 3
    max_periods: int = 7
    threshold: float = 0.05
    stuck_cycles: int = 1000
    check: bool = True

    def __post_init__(self) -> None:
        if self.period < 1 or self.warmup_periods < 1 or self.max_periods <= self.warmup_periods or self.stuck_cycles < 1:
            raise ConfigError(
                f"protocol: expected a period, warm-up and stuck_cycles of at least 1 and more periods in all than warm-up, found {self}"
            )
        if not self.threshold > 0:
            raise ConfigError(f"protocol.threshold is {self.threshold}, expected a number above 0")


@frozen
class NetworkPoint:
    """One load. Rates in flits per cycle and terminal, latencies in cycles: packet from creation to its tail's arrival, network from the
    head's entry, flit from its own entry to its own arrival. `hops`: routers crossed. Latencies are NaN if nothing was measured."""

    load: float
    seed: int
    injected: float
    accepted: float
    accepted_min: float
    accepted_max: float
    packet_latency: float
    packet_latency_min: int
    packet_latency_max: int
    network_latency: float
    network_latency_min: int
    network_latency_max: int
    flit_latency: float
    flit_latency_min: int
    flit_latency_max: int
    hops: float
    saturated: bool
    n_packets: int
    measured_cycles: int
    cycles: int
    n_flits: int
    digest: str
    wall_s: float = field(compare=False)
    kernel_s: float = field(compare=False)

    @property
    def flits_per_s(self) -> float:
        """Flits delivered per second of the cycle loop."""
        return self.n_flits / self.kernel_s if self.kernel_s else float("nan")


def _nothing_created() -> Created:
    """Columns of packets to be created that have none but the last, which never comes."""
    return Created(*(np.full(1, NEVER, np.int64) for _ in Created._fields))


class NetworkRun:
    """One network under one stream of packets."""

    def __init__(self, config: NetworkConfig, traffic: Traffic, load: float, seed: int, protocol: Protocol) -> None:
        from dysharp.engine.flit.loop import network_run

        self.kernel = network_run
        self.config, self.traffic, self.load, self.seed, self.protocol = config, traffic, load, seed, protocol
        self.draws = Draws(config, traffic, load, seed)
        self.state: FlitState = build(config, traffic)
        self.created = _nothing_created()
        self.drawn = 0  # cycle up to which packets are drawn
        self.kernel_s = 0.0

    @property
    def now(self) -> int:
        return int(self.state.run[u.RUN_NOW])

    def advance(self, cycles: int, until_measured: bool = False) -> int:
        """Run `cycles` more with active sources. Returns the number of packets created in them."""
        n = self._draw(cycles)
        self._go(self.now + cycles, until_measured)
        return n

    def _draw(self, cycles: int) -> int:
        """Append the packets of the next cycles to those still queued, whose order by cycle re-creates their sources' queues."""
        assert self.drawn <= self.now
        new = self.draws.chunk(self.now, cycles)
        self.drawn = self.now + cycles
        kept = self.created.next[:-1] != -2
        more = (*new, np.zeros(len(new[0]), np.int64))
        self.created = Created(*(np.concatenate([old[:-1][kept], new, [NEVER]]) for old, new in zip(self.created, more, strict=True)))
        self._requeue()
        return len(new[0])

    def _requeue(self) -> None:
        a = self.state
        a.run[u.RUN_EVENT] = 0
        a.sources.source[:, u.SOURCE_HEAD] = -1
        # A source in the middle of a packet stays listed; the others are listed again by their first queued packet.
        sending = a.sources.listed[: a.run[u.RUN_LISTED]]
        sending = sending[a.sources.source[sending, u.SOURCE_LEFT] > 0]
        a.sources.source[:, u.SOURCE_LISTED] = 0
        a.sources.source[sending, u.SOURCE_LISTED] = 1
        a.run[u.RUN_LISTED] = len(sending)
        a.sources.listed[: len(sending)] = sending

    def _go(self, until: int, until_measured: bool = False) -> None:
        a = self.state
        while self.now < until:
            stop = min(until, self.now + max(self.protocol.stuck_cycles, 2000))
            begin = time.perf_counter()
            self.kernel(stop, until_measured, a, self.created)
            self.kernel_s += time.perf_counter() - begin
            quiet = self.now - int(a.run[u.RUN_MOVED])
            longest = 4 * (max(self.config.terminal_delay, self.config.link_delay) + self.config.router.credit_delay + 64)
            if a.run[u.RUN_IN_NET] and quiet > self.protocol.stuck_cycles + longest:
                raise SimulationError(_deadlock_text(a, quiet))
            if until_measured and a.run[u.RUN_LEFT] == 0:
                return

    def drain(self) -> None:
        """No new packets; everything leaves; nothing may be missing."""
        self.created = _nothing_created()
        self._requeue()
        a = self.state
        while not settled(a):
            self._go(self.now + 64)
        check_drained(a, self.config)


def measure(
    config: NetworkConfig, traffic: Traffic, load: float, seed: int = 1, protocol: Protocol | None = None,
    progress: OnProgress | None = None,
) -> NetworkPoint:  # fmt: skip
    """Measure one load (flits per cycle and terminal). `progress(periods done, at most)`.

    Raises ConfigError for what cannot run, SimulationError on a deadlock (naming the cycle of waiting VCs) and if a flit or a credit
    is missing after the final drain.
    """
    return measure_run(NetworkRun(config, traffic, load, seed, protocol or Protocol()), progress)


def measure_run(run: NetworkRun, progress: OnProgress | None = None) -> NetworkPoint:
    """What `measure` does, with a run of another kind. Raises as it does."""
    begin = time.perf_counter()
    a, protocol, config = run.state, run.protocol, run.config
    before: tuple[float, float] = (0.0, 0.0)
    steady, measured_periods, created = 0, 0, 0
    for period in range(protocol.max_periods):
        if progress:
            progress(period, protocol.max_periods)
        if period <= protocol.warmup_periods:
            # every warm-up period is judged alone, the measured ones together
            clear_statistics(a)
        if period == protocol.warmup_periods:
            a.run[u.RUN_ALL], a.run[u.RUN_FROM], a.run[u.RUN_LEFT] = 0, run.now, 0
        made = run.advance(protocol.period)
        measuring = period >= protocol.warmup_periods
        measured_periods += measuring
        created += made if measuring else 0
        cycles = protocol.period * max(measured_periods, 1)
        after = (float(a.stats[u.STAT_PACKET]) / max(int(a.stats[u.STAT_N]), 1), float(a.accepted.sum()) / cycles)
        close = all(abs(y - z) <= protocol.threshold * y for y, z in zip(after, before, strict=True))
        before = after
        steady = steady + 1 if close and measuring else 0
        if steady == 3:
            break
    n, cycles = config.n_terminals, measured_periods * protocol.period
    sent, accepted = int(a.sources.source[:, u.SOURCE_SENT].sum()), a.accepted.copy()
    a.run[u.RUN_TO] = run.now
    a.run[u.RUN_LEFT] += created  # each arrival took one away
    while a.run[u.RUN_LEFT] > 0:
        run.advance(protocol.period, until_measured=True)
    total_cycles, stats, n_flits, kernel_s = run.now, a.stats.copy(), int(a.run[u.RUN_EJECTED]), run.kernel_s
    if protocol.check:
        run.drain()
    rates = accepted / cycles
    row: ByName = {
        "load": run.load, "seed": run.seed, "injected": sent / cycles / n, "accepted": float(rates.mean()),
        "accepted_min": float(rates.min()), "accepted_max": float(rates.max()), **_latencies(stats),
        "hops": _mean(stats[u.STAT_HOPS], stats[u.STAT_N]), "n_packets": int(stats[u.STAT_N]), "measured_cycles": cycles,
        "cycles": total_cycles, "n_flits": n_flits,
    }  # fmt: skip
    asked = min(run.load, created * run.traffic.packet_flits / cycles / n)  # few sources draw less than the load
    row["saturated"] = bool(min(row["accepted"], row["injected"]) < SATURATED * asked)
    built = asdict(config)
    if not built["router"]["hold_switch"]:
        del built["router"]["hold_switch"]  # digests of old are those of networks without it
    digest = hashlib.blake2b(json.dumps([built, asdict(run.traffic), asdict(protocol), row], sort_keys=True).encode(), digest_size=16)
    return NetworkPoint(**row, digest=digest.hexdigest(), wall_s=time.perf_counter() - begin, kernel_s=kernel_s)


def _mean(total: int, n: int) -> float:
    return float(total) / int(n) if n else float("nan")


def _latencies(s: I64) -> dict[str, float | int]:
    packets, flits = int(s[u.STAT_N]), int(s[u.STAT_FLITS])
    columns = (
        ("packet", packets, u.STAT_PACKET, u.STAT_PACKET_MIN, u.STAT_PACKET_MAX),
        ("network", packets, u.STAT_NET, u.STAT_NET_MIN, u.STAT_NET_MAX),
        ("flit", flits, u.STAT_FLIT, u.STAT_FLIT_MIN, u.STAT_FLIT_MAX),
    )
    row: dict[str, float | int] = {}
    for name, n, total, low, high in columns:
        row |= {f"{name}_latency": _mean(s[total], n), f"{name}_latency_min": int(s[low]) if n else 0, f"{name}_latency_max": int(s[high])}
    return row


def _waits_for(a: FlitState, in_vc: int) -> int | None:
    """The input VC that must move before `in_vc` can, if any: the owner of the output VC that `in_vc` wants, or the buffer behind its output VC."""
    n_vcs, radix = a.shape.vcs, a.shape.radix
    go = int(a.inputs.lane[a.inputs.vcs[in_vc, u.LANE], u.LANE_ROUTER]) * radix + int(a.inputs.vcs[in_vc, u.OUT])
    if a.inputs.vcs[in_vc, u.STATE] == u.WAIT:
        owners = a.outputs.vcs[go * n_vcs : (go + 1) * n_vcs, u.OWNER]
        return int(owners[0]) if (owners >= 0).all() else None
    if a.inputs.vcs[in_vc, u.STATE] in (u.ACTIVE, u.HELD):
        out_vc = int(a.inputs.vcs[in_vc, u.OVC])
        if a.inputs.vcs[in_vc, u.OCC] == 0:  # its next flit is still upstream
            gi = in_vc // n_vcs
            base, step = int(a.inputs.ports[gi, u.IN_BASE]), int(a.inputs.ports[gi, u.IN_STEP])
            up = base + step * (in_vc % n_vcs)
            return int(a.outputs.vcs[up, u.OWNER]) if up >= 0 and a.outputs.vcs[up, u.OWNER] >= 0 else None
        if a.outputs.vcs[out_vc, u.CREDIT] == 0 and not a.outputs.ports[go, u.OUT_SINK]:
            return int(a.outputs.ports[go, u.OUT_TO]) + out_vc - go * n_vcs
    return None


def _deadlock_text(a: FlitState, quiet: int) -> str:
    """One line: how long, how many flits, and the cycle of input VCs that wait for each other."""
    n_vcs, radix = a.shape.vcs, a.shape.radix
    head = f"deadlock at cycle {int(a.run[u.RUN_NOW])}: no flit moved for {quiet} cycles with {int(a.run[u.RUN_IN_NET])} in the network"
    starts = (int(in_vc) for in_vc in np.flatnonzero(a.inputs.vcs[:, u.STATE] != u.IDLE))
    ring = first_cycle(starts, lambda in_vc: _waits_for(a, in_vc))
    if not ring:
        return head + "; no cycle of waiting VCs was found"
    names = [f"router[{g // n_vcs // radix}].port[{g // n_vcs % radix}].in VC {g % n_vcs}" for g in ring]
    return f"{head}; " + " waits for ".join(names)
