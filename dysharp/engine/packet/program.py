"""Runs a Program packet by packet: `run_packet`. What its blocks counted, the check that everything came back, and who waits for whom."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.base.arrays import I64
from dysharp.base.errors import SimulationError
from dysharp.base.values import frozen
from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks import tables
from dysharp.engine.blocks.state import BurstState
from dysharp.engine.burst.run import Timing, deadlock_text
from dysharp.engine.burst.run import trace_of as op_trace
from dysharp.engine.cycles import first_cycle
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.fabric import FabricConfig, build, grow
from dysharp.engine.packet.state import Fabric
from dysharp.program.tables import Program
from dysharp.program.trace import Trace

SLICE_EVENTS = 4_000_000
LOG_STEPS = 1 << 20  # most steps of a table that are logged


@frozen
class PacketRun:
    """What a run at packet level gives: the same Trace as at burst level, and what its blocks counted.

    `al_read` `[n_rows]` int64 ps: when an AL TLB last read the row's entry from memory, -1 = never. A table that evicts nothing reads
    each row once, at its first packet. `port_log` `[n, 4]`: kind (LOG_*), session, count and outcome of each step of the listened port's table.
    """

    trace: Trace
    timing: Timing
    statistics: dict[str, Any]
    al_read: I64
    port_log: I64


def run_packet(
    program: Program, config: FabricConfig | None = None, progress: Callable[[int, int], None] | None = None, *, listen: int = -1
) -> PacketRun:
    """Time `program` packet by packet; `listen`: a switch port (link) whose reduction table is logged.

    Raises SimulationError on deadlock, and if a flit or a credit is missing at the end.
    """
    begin = time.perf_counter()
    from dysharp.engine.burst.loop import run_start
    from dysharp.engine.packet.loop import run_events

    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    state, fabric = build(program, config or FabricConfig())
    if listen >= 0:
        log = np.zeros((LOG_STEPS + 1, 4), np.int64)
        log[0, 1] = listen
        fabric = fabric._replace(units=fabric.units._replace(log=log))
    x = state.clock.x
    lower_s = time.perf_counter() - begin
    if not getattr(run_events, "signatures", True):
        begin = time.perf_counter()
        run_events(0, state, fabric)
        compile_s += time.perf_counter() - begin
    begin = time.perf_counter()
    run_start(state)
    while run_events(SLICE_EVENTS, state, fabric):
        if x[f.RUN_STATUS] == f.GROW:
            fabric = grow(fabric, 2 * len(fabric.packets.packet))
        if progress:
            progress(int(x[col.RUN_DONE]), program.n_ops)
    engine_s = time.perf_counter() - begin
    if x[col.RUN_DONE] < program.n_ops:
        raise SimulationError(f"{deadlock_text(program, state)}{_cycle_text(program, fabric)}")
    _check_drained(program, state, fabric)
    trace, timing = _trace_of(program, state, fabric), Timing(compile_s, lower_s, engine_s)
    return PacketRun(trace, timing, _statistics_of(program, state, fabric), _al_read(program, fabric), _log(fabric))


def _log(fabric: Fabric) -> I64:
    """The steps of the table that was listened to."""
    log = fabric.units.log
    return log[1 : log[0, 0] + 1] if len(log) else log


def _al_read(p: Program, fabric: Fabric) -> I64:
    """When each row's entry was last read from memory; -1 = never."""
    if not fabric.agenda.c[f.C_AL]:
        return np.full(p.n_rows, -1, np.int64)
    due = fabric.hubs.reads[: p.n_rows, f.READ_DUE]
    return np.where(due > 0, due - fabric.agenda.c[f.C_AL_MISS], -1)


def _trace_of(p: Program, state: BurstState, fabric: Fabric) -> Trace:
    """What the op level recorded; bytes on NVLink are the bytes of the packets that crossed its links."""
    m, shape = p.hardware, (p.n_nodes, p.hardware.n_links)
    up = fabric.lanes.link[:, f.LINK_FLITS].reshape(shape).sum(axis=1) * m.flit
    down = fabric.outputs.output[: len(fabric.lanes.link), f.OUTPUT_FLITS].reshape(shape).sum(axis=1) * m.flit
    trace = op_trace(p, state)
    return replace(trace, up_busy=np.append(up, trace.up_busy[p.n_nodes :]), down_busy=np.append(down, trace.down_busy[p.n_nodes :]))


Resource = tuple[str, int, int]  # ("up", link, 0), ("vc", link, vc), ("down", link, group), ("hub", link, 0)


def _cycle_text(p: Program, fabric: Fabric) -> str:
    """ "; A waits for B waits for A" of the first cycle of resources found, or nothing: then no packet is stuck, only ops are."""
    graph = _graph(fabric)
    ring = first_cycle(sorted(graph), graph.get)
    return "; " + " waits for ".join(_name(p, r) for r in ring) if ring else ""


def _name(p: Program, r: Resource) -> str:
    kind, link, number = r
    where = f"gpu[{link // p.hardware.n_links}].link[{link % p.hardware.n_links}]"
    return {"up": f"{where}.up", "vc": f"{where} switch buffer VC {number}", "down": f"{where}.down", "hub": f"{where} hub buffer"}[kind]


def _graph(fabric: Fabric) -> dict[Resource, Resource]:
    """What each stuck resource waits for: an up link for the buffer it would fill, a VC for the output of its head, an output for room in
    the hub behind it, a hub for its answers to leave by the up link."""
    c, link, occupied = fabric.agenda.c, fabric.lanes.link, fabric.lanes.occupied
    packet = fabric.packets.packet
    graph: dict[Resource, Resource] = {}
    vpg, n_groups = int(c[f.C_VPG]), int(c[f.C_GROUPS])
    for i in np.flatnonzero(link[:, f.LINK_MASK] != 0):
        queue = (int(link[i, f.LINK_MASK]) & -int(link[i, f.LINK_MASK])).bit_length() - 1
        first = int(fabric.sources.groups[queue]) * vpg
        graph["up", int(i), 0] = ("vc", int(i), first + int(occupied[i, first : first + vpg].argmin()))
    n_vcs = occupied.shape[1]
    waiting = {}  # head of a VC -> output
    n_ports = int(c[f.C_PORTS])
    for row in np.flatnonzero(fabric.outputs.out_queues[:, 0] >= 0):
        o, group = divmod(int(row) // (n_ports + 1), n_groups)
        head = int(fabric.outputs.out_queues[row, 0])
        if int(row) % (n_ports + 1) < n_ports:
            up, vc = int(packet[head, f.PACKET_LINK]), int(packet[head, f.PACKET_VC])
            waiting[up * n_vcs + vc] = (o % len(link), group)
    for at, (down, group) in waiting.items():
        graph["vc", at // n_vcs, at % n_vcs] = ("down", down, group)
        if fabric.lanes.held[down, group]:
            graph["down", down, group] = ("hub", down, 0)
    for stuck in np.flatnonzero(fabric.sources.requests[:, 0] >= 0):
        graph["hub", int(stuck), 0] = ("up", int(stuck), 0)
    return graph


KINDS = (
    "store", "multicast", "copy", "request", "reduce_request", "request_copy", "response", "contribution", "ack", "copy_ack", "merged_ack",
    "result", "partial_sum", "bypass", "notification", "synthetic", "pushed_contribution", "sum", "sum_ack", "load", "answer",
)  # fmt: skip
"""Packets by what they are, in the order of the kernel's numbers."""


def _statistics_of(p: Program, state: BurstState, fabric: Fabric) -> dict[str, Any]:
    """Counts by block, plain values for JSON. Times in microseconds, summed over all links (or hubs) unless the name says otherwise.

    `flits`: by kind of packet, `{up, down}`. `al_tlb`: lookups = hits + misses + merged; `full_retries`: lookups that found no miss register;
    `rows_read`: rows that were read at least once; `peak_rows`: most rows at once in the row table of a hub; `bank_wait_ns_mean`: what a
    lookup would wait for its bank. `multimemq`: target lists on their way, mean per GPU (rate x fetch, Little).
    `reduction`: sessions = results + sessions that left early; `partial_sums`: packet pairs that sessions sent when they left early. `occupancy`:
    `{max, mean}`, over all ports or hubs together for tables, of the fullest port for `input_buffer`. `stalls_us` by cause; `stalls` how often.
    """
    st, time_ps = fabric.agenda.st, max(1, int(state.clock.x[col.RUN_NOW]))
    link, output, total = fabric.lanes.link, fabric.outputs.output, len(fabric.lanes.link)
    spilled = int(state.tables.places[p.n_rows :, col.PLACE_LEFT].sum())
    lookups, hits, fetches = int(st[f.ST_LOOKUPS]), int(st[f.ST_HITS]), int(st[f.ST_FETCHES])

    def counts(**columns: int) -> dict[str, Any]:
        return {name: int(st[column]) for name, column in columns.items()}

    def mean(area: int, since: int, now: int) -> float:
        return float(st[area] + st[now] * (time_ps - st[since])) / time_ps

    return {
        "flits": {
            side: {name: int(n) for name, n in zip(KINDS, fabric.flits_by_kind[i], strict=True) if n} for i, side in enumerate(("up", "down"))
        },
        "packets": {"cut": int(state.clock.x[f.RUN_PACKETS]), "notifications": int(state.clock.x[f.RUN_NOTES])},
        "al_tlb": {
            "table": p.tables[0].name if p.tables else "",
            "lookups": lookups, "hits": hits, "misses": int(st[f.ST_MISSES]), "merged": int(st[f.ST_MERGED]),
            "hit_rate": hits / lookups if lookups else None, "evictions": int(st[f.ST_TLB_EVICTIONS]) + spilled,
            "allocated": int(st[f.ST_ALLOCATED]), "rows_read": int((_al_read(p, fabric) >= 0).sum()), "peak_rows": int(st[f.ST_PEAK_ROWS]),
            "full_retries": int(st[f.ST_FULL]),
            "bank_waits": int(st[f.ST_BANK_WAITS]), "bank_wait_ns_mean": float(st[f.ST_BANK_PS]) / 1e3 / lookups if lookups else 0.0,
            "misses_under_way": {"max": int(st[f.ST_PEAK_MISSES]), "mean": mean(f.ST_AL_AREA, f.ST_AL_SINCE, f.ST_MISSES_NOW)},
        },
        "reduction": counts(
            sessions=f.ST_SESSIONS, results=f.ST_RESULTS, evictions=f.ST_EVICTIONS, timeouts=f.ST_TIMEOUTS, partial_sums=f.ST_PARTIALS,
            bypasses=f.ST_BYPASSES, merged_loads=f.ST_MERGED_LOADS,
        ) | {"occupancy": {"max": int(st[f.ST_PEAK_SESSIONS]), "mean": mean(f.ST_RED_AREA, f.ST_RED_SINCE, f.ST_SESSIONS_NOW)}},
        "multimemq": {"fetches": fetches, "lists_under_way_mean": fetches * int(fabric.agenda.c[f.C_FETCH]) / time_ps / p.n_nodes},
        "input_buffer": {"max_flits": int(link[:, f.LINK_PEAK].max(initial=0)), "mean_peak_flits": float(link[:, f.LINK_PEAK].mean())},
        "stalls": counts(
            credit=f.ST_CREDIT_WAITS, target_fetch=f.ST_FETCH_WAITS, hub_buffer=f.ST_HUB_WAITS, crossbar_lane=f.ST_LANE_WAITS,
            al_miss=f.ST_AL_WAITS, answer_queue=f.ST_ANSWER_WAITS,
        ),
        "stalls_us": {
            "credit": float(link[:, f.LINK_PS_CREDIT].sum()) / 1e6, "target_fetch": float(link[:, f.LINK_PS_FETCH].sum()) / 1e6,
            "hub_buffer": float(output[:total, f.OUTPUT_PS_HUB].sum()) / 1e6,
        },
    }  # fmt: skip


def _check_drained(p: Program, state: BurstState, fabric: Fabric) -> None:
    """Raises SimulationError, naming the place, unless every packet has arrived, every credit is back and every table is empty."""
    links = np.arange(len(fabric.lanes.link))

    def name(i: int) -> str:
        return f"gpu[{i // p.hardware.n_links}].link[{i % p.hardware.n_links}]"

    def none(found: Any, what: str) -> None:
        bad = np.flatnonzero(np.asarray(found).reshape(len(links), -1).any(axis=1))
        if len(bad):
            raise SimulationError(f"drained fabric: {name(int(bad[0]))} {what}")

    none(fabric.lanes.occupied if fabric.agenda.c[f.C_VC_FLITS] else 0 * fabric.lanes.held, "has not got all its credits back")
    none(fabric.lanes.held, "still holds flits in the buffer of its hub")
    none(fabric.lanes.link[:, f.LINK_MASK] >> len(p.classes), "still has a packet to send")
    none(fabric.outputs.output[: len(links), f.OUTPUT_SENDING] >= 0, "is still busy")
    none(fabric.units.ports[:, tables.PORT_LIVE], "still has a reduction session")
    none(fabric.outputs.asking[: len(fabric.outputs.asking) // 2].reshape(len(links), -1), "still has a packet waiting for it")
    if int(state.clock.x[f.RUN_FREE]) != len(fabric.packets.packet):
        raise SimulationError(f"drained fabric: {len(fabric.packets.packet) - int(state.clock.x[f.RUN_FREE])} packets are left over, expected none")
    sent, arrived = int(fabric.lanes.link[:, f.LINK_FLITS].sum()), int(fabric.flits_by_kind[0].sum())
    left, delivered = int(fabric.outputs.output[: len(links), f.OUTPUT_FLITS].sum()), int(fabric.flits_by_kind[1].sum())
    if sent != arrived or left != delivered:
        raise SimulationError(f"drained fabric: {sent} flits sent up and {arrived} arrived, {left} sent down and {delivered} delivered")
    chunks = fabric.units.chunks
    if ((chunks[:, f.CHUNK_STATE] == col.SUM_OPEN) & (chunks[:, f.CHUNK_LEFT] > 0)).any():
        raise SimulationError("drained fabric: a sum still waits for a contribution")
    if fabric.hubs.hubs[:, tables.HUB_PENDING].any():
        raise SimulationError("drained fabric: a hub still waits for its table in memory")
