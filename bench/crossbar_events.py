"""Synthetic traffic on the packet fabric, one event per packet and hop, measured as `network.measure` measures flits.

Sources with infinite queues, sinks that take everything, the links and the switch of the packet level: the packet fabric against the flit-exact
network, for tests and for `python bench/packet.py`.
"""

import time
from dataclasses import dataclass, field

import numpy as np

from dysharp.base.arrays import I64
from dysharp.base.errors import ConfigError, SimulationError
from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import fifo_push
from dysharp.engine.blocks.heap import tree_first, tree_set
from dysharp.engine.burst.lower import tree
from dysharp.engine.flit.config import NetworkConfig, Traffic
from dysharp.engine.flit.network import Protocol
from dysharp.engine.flit.traffic import Draws
from dysharp.engine.kernel import block, kernel
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.columns import N_KINDS
from dysharp.engine.packet.fabric import _dirty_set, _links_of, _outputs_of
from dysharp.engine.packet.links import (
    credits_take,
    dirty_mark,
    dirty_take,
    due_take,
    lane_back,
    lines_end,
    link_blocked,
    link_send,
    links_free,
    out_ask,
    out_begin,
    out_leave,
    out_pick,
    packet_schedule,
    slot_free,
    slot_take,
    vc_find,
)
from dysharp.engine.packet.state import Agenda, Lanes, Outputs, PacketRecords
from dysharp.engine.packet.switch import _buffer_leave

BORN_TIME, BORN_SOURCE, BORN_DEST, BORN_NEXT = range(4)  # columns of `born` [n_packets, 4]
QUEUE_HEAD, QUEUE_TAIL = range(2)
# sums of the open loop
(
    SO_PACKETS, SO_LATENCY, SO_MIN, SO_MAX, SO_NETWORK, SO_FLITS, SO_ACCEPTED, SO_FROM, SO_TO, SO_LEFT, SO_NEXT, SO_SQUARE,
) = range(12)  # fmt: skip


@block
def packets_born(leaf, now, born, queues, link, dirty_links, tree, sums):
    """Packets that are created now join the queues of their sources."""
    e = sums[SO_NEXT]
    while e < born.shape[0] and born[e, BORN_TIME] == now:
        i = born[e, BORN_SOURCE]
        born[e, BORN_NEXT] = -1
        if queues[i, QUEUE_HEAD] < 0:
            queues[i, QUEUE_HEAD] = e
            link[i, f.LINK_MASK] = 1
            if link[i, f.LINK_FREE] == 1:
                dirty_mark(dirty_links, i)
        else:
            born[queues[i, QUEUE_TAIL], BORN_NEXT] = e
        queues[i, QUEUE_TAIL] = e
        e += 1
    sums[SO_NEXT] = e
    tree_set(tree, leaf, born[e, BORN_TIME] if e < born.shape[0] else col.INF)


@block
def ask(p, packet, link, outputs, c):
    """Packet p, at the head of its VC, asks for its output."""
    out_ask(packet[p, f.PACKET_OUT], p, link[packet[p, f.PACKET_LINK], f.LINK_INPUT], packet, link, outputs, c)


@block
def plain_crossings_end(r, now, packets, lanes, outputs, agenda):
    """Packets have crossed to their outputs: the next packet of the VC asks, after the cycles of its allocation."""
    packet, packet_time, c = packets.packet, packets.packet_time, agenda.c
    while True:
        p = due_take(r, now, packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT2, agenda)
        if p < 0:
            break
        o = packet[p, f.PACKET_OUT]
        outputs.output[o, f.OUTPUT_FREE] += 1
        dirty_mark(outputs.dirty_outputs, o)
        i = packet[p, f.PACKET_LINK]
        lane_back(i, lanes, outputs, c)
        head = _buffer_leave(p, i, now, packet, lanes, agenda)
        if head >= 0 and c[f.C_CYCLE] > 0:
            packet_schedule(f.FABRIC_CYCLE, head, now + c[f.C_CYCLE], f.PACKET_NEXT2, packet, packet_time, agenda)
        elif head >= 0:
            ask(head, packet, lanes.link, outputs, c)


@block
def plain_heads_arrive(r, now, packets, lanes, outputs, agenda):
    """Heads reach the switch: a packet that is the first of its VC asks for its output."""
    packet, packet_time, channels = packets.packet, packets.packet_time, lanes.channels
    while True:
        p = due_take(r, now, packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT, agenda)
        if p < 0:
            break
        row = packet[p, f.PACKET_LINK] * lanes.occupied.shape[1] + packet[p, f.PACKET_VC]
        if fifo_push(channels, row, packet, f.PACKET_NEXT, p):
            ask(p, packet, lanes.link, outputs, agenda.c)


@block
def allocations_end(now, packets, link, outputs, agenda):
    """Packets that came to the head of their VC are allocated."""
    packet = packets.packet
    while True:
        p = due_take(f.FABRIC_CYCLE, now, packets.packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT2, agenda)
        if p < 0:
            break
        ask(p, packet, link, outputs, agenda.c)


@block
def sinks_take(now, born, packets, held, agenda, sums, accepted):
    """Tails reach their terminals."""
    packet = packets.packet
    flits = sums[SO_FLITS]
    while True:
        p = due_take(f.FABRIC_DELIVER, now, packets.packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT, agenda)
        if p < 0:
            break
        o = packet[p, f.PACKET_OUT]
        held[o, 0] -= flits
        accepted[o] += flits if sums[SO_FROM] <= now < sums[SO_TO] else 0
        t = born[packet[p, f.PACKET_OP], BORN_TIME]
        if sums[SO_FROM] <= t < sums[SO_TO]:
            sums[SO_PACKETS] += 1
            sums[SO_LATENCY] += now - t
            sums[SO_MIN] = min(sums[SO_MIN], now - t)
            sums[SO_MAX] = max(sums[SO_MAX], now - t)
            sums[SO_LEFT] -= 1
        sums[SO_ACCEPTED] += 1
        slot_free(p, packets.free, agenda.x)


@block
def source_send(i, late, born, queues, packets, lanes, agenda, sums):
    """Source i sends the packet at the head of its queue if a VC has room for it."""
    packet, link, c, x = packets.packet, lanes.link, agenda.c, agenda.x
    e = queues[i, QUEUE_HEAD]
    flits = sums[SO_FLITS]
    vc = vc_find(i, 0, flits, lanes.occupied, c)
    if vc < 0:
        link_blocked(i, link, x, agenda.st)
    else:
        queues[i, QUEUE_HEAD] = born[e, BORN_NEXT]
        if queues[i, QUEUE_HEAD] < 0:
            link[i, f.LINK_MASK] = 0
        p = slot_take(packets.free, x)
        packet[p, f.PACKET_KIND] = f.PLAIN
        packet[p, f.PACKET_OP] = e
        packet[p, f.PACKET_FLITS] = flits
        packet[p, f.PACKET_OUT_FLITS] = flits
        packet[p, f.PACKET_OUT] = born[e, BORN_DEST]
        link_send(i, 0, p, vc, 0, late, agenda.flit_ps[flits], packet, packets.packet_time, link, lanes.occupied, agenda)


@block
def sink_grant(o, now, packets, lanes, outputs, agenda):
    """Output o begins packets as long as a lane into it is free and one may cross."""
    link, output, c, x = lanes.link, outputs.output, agenda.c, agenda.x
    while output[o, f.OUTPUT_FREE] > 0:
        p = out_pick(o, now, packets.packet, packets.packet_time, link, outputs, lanes.held, c, x, agenda.st)
        if p < 0:
            break
        out_leave(o, p, x[f.RUN_OUT], packets.packet, link, outputs, c)
        out_begin(o, p, x[f.RUN_OUT], now, packets, link, output, lanes.held, agenda)


@kernel
def open_run(until, late, born, queues, packets, lanes, outputs, agenda, flits_by_kind, sums, accepted):
    """Run to time `until`, or until every packet created in [SO_FROM, SO_TO) has arrived. `late`: from a head's start to the switch."""
    link, dirty_links, dirty_outputs = lanes.link, lanes.dirty_links, outputs.dirty_outputs
    tree, c, x = agenda.tree, agenda.c, agenda.x
    ring_arrive = f.FABRIC_FIXED + c[f.C_SIZES]
    ring_out = ring_arrive + c[f.C_EXT]
    ring_line = ring_out + c[f.C_SIZES]
    now = x[col.RUN_NOW]
    while now < until and sums[SO_LEFT] > 0:
        while tree[1] == now:
            leaf = tree_first(tree)
            r = leaf - c[f.C_LEAF]
            if r < 0:
                packets_born(leaf, now, born, queues, link, dirty_links, tree, sums)
            elif r >= ring_line:
                lines_end(r, now, packets, outputs.output, agenda, flits_by_kind)
            elif r >= ring_out:
                plain_crossings_end(r, now, packets, lanes, outputs, agenda)
            elif r >= ring_arrive:
                plain_heads_arrive(r, now, packets, lanes, outputs, agenda)
            elif r >= f.FABRIC_FIXED:
                links_free(r, now, link, dirty_links, agenda)
            elif r == f.FABRIC_CYCLE:
                allocations_end(now, packets, link, outputs, agenda)
            elif r == f.FABRIC_CREDIT:
                credits_take(now, lanes, agenda)
            else:
                sinks_take(now, born, packets, lanes.held, agenda, sums, accepted)
        while dirty_links[0] != 0:
            i = dirty_take(dirty_links)
            if link[i, f.LINK_FREE] == 1 and link[i, f.LINK_MASK] != 0:
                source_send(i, late, born, queues, packets, lanes, agenda, sums)
        while dirty_outputs[0] != 0:
            sink_grant(dirty_take(dirty_outputs), now, packets, lanes, outputs, agenda)
        now = tree[1]
        if now == col.INF:
            break
        x[col.RUN_NOW] = now


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


def _state(config: NetworkConfig, traffic: Traffic) -> tuple[PacketRecords, Lanes, Outputs, Agenda]:
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
        link=_links_of(n, 1, 1, max(r.internal_speedup, r.input_speedup)), plane_links=np.arange(n, dtype=np.int64).reshape(1, n),
        occupied=np.zeros((n, r.num_vcs), np.int64), channels=np.full((n * r.num_vcs, 2), -1, np.int32), held=np.zeros((n, 1), np.int64),
        credit_due=np.zeros(credits, np.int64), credit_what=np.zeros(credits, np.int64), dirty_links=_dirty_set(n),
    )  # fmt: skip
    speedup = min(max(r.internal_speedup, r.output_speedup), r.num_vcs)  # a packet that crosses has a VC of its output
    return (
        PacketRecords(packet, packet.view(np.int64), np.zeros(slots, np.int32), np.arange(slots - 1, -1, -1, dtype=np.int64)),
        lanes,
        _outputs_of(c, speedup),
        Agenda(
            rings=np.full((n_rings, 2), -1, np.int32), tree=tree(1 + n_rings), flit_ps=np.arange(flits + 1, dtype=np.int64) * CYCLE, c=c, x=x,
            st=np.zeros(f.ST_COUNT, np.int64),
        ),
    )  # fmt: skip
