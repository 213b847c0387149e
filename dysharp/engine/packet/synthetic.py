"""Synthetic traffic on the packet fabric, one event per packet and hop, measured as `network.measure` measures flits."""

import time
from dataclasses import dataclass, field

import numpy as np

from dysharp.arrays import I64
from dysharp.engine.burst.lower import tree
from dysharp.engine.flit.config import NetworkConfig, Traffic
from dysharp.engine.flit.network import Protocol
from dysharp.engine.flit.traffic import Draws
from dysharp.engine.packet.fabric import dirty_set, links_of, outputs_of
from dysharp.errors import ConfigError, SimulationError
from dysharp.uarch import columns as col
from dysharp.uarch.packet import columns as f
from dysharp.uarch.packet.columns import N_KINDS
from dysharp.uarch.packet.state import Agenda, Lanes, Outputs, Packets

CYCLE = 1000  # time units of a cycle


@dataclass(frozen=True, slots=True)
class EventPoint:
    """One load on one crossbar. Rates in flits per cycle and terminal, latencies in cycles from creation to the tail's arrival."""

    load: float
    seed: int
    accepted: float
    packet_latency: float
    packet_latency_min: float
    packet_latency_max: float
    n_packets: int
    n_flits: int
    kernel_s: float = field(compare=False)

    @property
    def flits_per_s(self) -> float:
        """Flits delivered per second of the event loop."""
        return self.n_flits / self.kernel_s if self.kernel_s else float("nan")


def pipeline_cycles(config: NetworkConfig) -> tuple[int, int]:
    """Cycles from a head's start on its link until it may leave the switch, and from a tail's last cycle on the output to its arrival."""
    r = config.router
    return config.terminal_delay + r.routing_delay + allocation_cycles(config) - 1, r.traversal_delay + config.terminal_delay + 1


def allocation_cycles(config: NetworkConfig) -> int:
    """Cycles of both allocations. A grant of any internal step but a cycle's last is on the output a cycle sooner."""
    r = config.router
    if r.speculative:
        return max(r.vc_alloc_delay, r.sw_alloc_delay)
    both = r.vc_alloc_delay + r.sw_alloc_delay
    if r.internal_speedup == 1:
        return both
    if both == 2:  # two steps of one cycle
        return 1 if r.internal_speedup == 2 else 0
    return both - 1


def measure_events(config: NetworkConfig, traffic: Traffic, load: float, seed: int = 1, protocol: Protocol | None = None) -> EventPoint:
    """Measure one load on a single crossbar ("fly", n = 1) with the packets that `measure` draws for the same seed and periods.

    Raises ConfigError for other networks, SimulationError if a packet or a credit is missing at the end.
    """
    if config.topology != "fly" or config.n != 1:
        raise ConfigError(f"packet events: found topology {config.topology!r} with n = {config.n}, expected one crossbar")
    protocol = protocol or Protocol()
    from dysharp.uarch.packet.synthetic import SO_ACCEPTED, SO_FLITS, SO_FROM, SO_LATENCY, SO_LEFT, SO_MAX, SO_MIN, SO_PACKETS, SO_TO, open_run

    first = protocol.warmup_periods * protocol.period
    last = protocol.max_periods * protocol.period
    draws = Draws(config, traffic, load, seed)
    chunks = [draws.chunk(i * protocol.period, protocol.period) for i in range(protocol.max_periods + max(2, protocol.max_periods))]
    when, source, dest = (np.concatenate([chunk[i] for chunk in chunks]) for i in range(3))
    born = np.stack((when * CYCLE, source, dest, np.full(len(when), -1)), axis=1).astype(np.int64)
    state = _state(config, traffic)
    tree_now = state[3].tree
    so = np.zeros(16, np.int64)
    so[SO_FLITS], so[SO_FROM], so[SO_TO], so[SO_MIN] = traffic.packet_flits, first * CYCLE, last * CYCLE, 1 << 60
    so[SO_LEFT] = int(((when >= first) & (when < last)).sum())
    accepted = np.zeros(config.n_terminals, np.int64)
    tree_now[len(tree_now) // 2] = born[0, 0] if len(born) else col.INF
    _settle(tree_now)
    late = pipeline_cycles(config)[0] * CYCLE
    queues = np.full((config.n_terminals, 2), -1, np.int64)
    rest = (*state, np.zeros((2, N_KINDS), np.int64), so, accepted)
    if not getattr(open_run, "signatures", True):
        open_run(-1, late, born, queues, *rest)
    begin = time.perf_counter()
    open_run(1 << 60, late, born, queues, *rest)
    kernel_s = time.perf_counter() - begin
    if so[SO_LEFT]:
        raise SimulationError(f"packet events: {so[SO_LEFT]} measured packets have not arrived")
    n = int(so[SO_PACKETS])
    return EventPoint(
        load=load, seed=seed, accepted=float(accepted.sum()) / (last - first) / config.n_terminals,
        packet_latency=float(so[SO_LATENCY]) / n / CYCLE if n else float("nan"), packet_latency_min=int(so[SO_MIN]) / CYCLE if n else 0.0,
        packet_latency_max=int(so[SO_MAX]) / CYCLE, n_packets=n, n_flits=int(so[SO_ACCEPTED]) * traffic.packet_flits, kernel_s=kernel_s,
    )  # fmt: skip


def _settle(tree: I64) -> None:
    for node in range(len(tree) // 2 - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])


def _state(config: NetworkConfig, traffic: Traffic) -> tuple[Packets, Lanes, Outputs, Agenda]:
    """An empty crossbar: one plane, one link per terminal, one group of VCs."""
    r, n, flits = config.router, config.n_terminals, traffic.packet_flits
    c = np.zeros(f.C_COUNT, np.int64)
    values = {
        f.C_LINKS: 1, f.C_TOTAL: n, f.C_GROUPS: 1, f.C_VPG: r.num_vcs, f.C_PORTS: n, f.C_LAT: (config.terminal_delay + 1) * CYCLE,
        f.C_VC_FLITS: r.vc_buf_size, f.C_INGRESS: 1 << 40, f.C_SIZES: flits + 1, f.C_EXT: 1, f.C_PER_PLANE: 1, f.C_LEAF: 1,
        f.C_CYCLE: max(0, allocation_cycles(config) - 1 + r.routing_delay) * CYCLE, f.C_TAIL: pipeline_cycles(config)[1] * CYCLE,
    }  # fmt: skip
    for column, value in values.items():
        c[column] = value
    slots = n * (r.num_vcs * -(-r.vc_buf_size // flits) + r.num_vcs + 4 * (config.terminal_delay + 8))
    credits = 1 << (slots - 1).bit_length()
    x = np.zeros(f.RUN_COLUMNS, np.int64)
    x[f.RUN_FREE] = slots
    packet = np.zeros((slots, 16), np.int32)
    n_rings = f.FABRIC_FIXED + 3 * (flits + 1) + 1
    lanes = Lanes(
        link=links_of(n, 1, 1, max(r.internal_speedup, r.input_speedup)), plane_links=np.arange(n, dtype=np.int64).reshape(1, n),
        occupied=np.zeros((n, r.num_vcs), np.int64), channels=np.full((n * r.num_vcs, 2), -1, np.int32), held=np.zeros((n, 1), np.int64),
        credit_due=np.zeros(credits, np.int64), credit_what=np.zeros(credits, np.int64), dirty_links=dirty_set(n),
    )  # fmt: skip
    speedup = min(max(r.internal_speedup, r.output_speedup), r.num_vcs)  # a packet that crosses has a VC of its output
    return (
        Packets(packet, packet.view(np.int64), np.zeros(slots, np.int32), np.arange(slots - 1, -1, -1, dtype=np.int64)),
        lanes,
        outputs_of(c, speedup),
        Agenda(
            rings=np.full((n_rings, 2), -1, np.int32), tree=tree(1 + n_rings), flit_ps=np.arange(flits + 1, dtype=np.int64) * CYCLE, c=c, x=x,
            st=np.zeros(f.ST_COUNT, np.int64),
        ),
    )  # fmt: skip
