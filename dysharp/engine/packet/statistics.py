"""What the blocks of the packet fabric counted, and the check that everything came back."""

from typing import Any

import numpy as np

from dysharp.errors import SimulationError
from dysharp.program.tables import Program
from dysharp.uarch import columns as col
from dysharp.uarch import tables
from dysharp.uarch.packet import columns as f
from dysharp.uarch.packet.state import Fabric
from dysharp.uarch.state import BurstState

KINDS = (
    "store", "multicast", "copy", "request", "reduce_request", "request_copy", "response", "contribution", "ack", "copy_ack", "merged_ack",
    "result", "partial_sum", "bypass", "notification", "synthetic", "pushed_contribution", "sum", "sum_ack", "load", "answer",
)  # fmt: skip
"""Packets by what they are, in the order of the kernel's numbers."""


def statistics_of(p: Program, state: BurstState, fabric: Fabric) -> dict[str, Any]:
    """Counts by block, plain values for JSON. Times in microseconds, summed over all links (or hubs) unless the name says otherwise.

    `flits`: by kind of packet, `{up, down}`. `al_tlb`: lookups = hits + misses + merged; `full_retries`: lookups that found no miss register;
    `peak_rows`: most rows at once in the row table of a hub; `bank_wait_ns_mean`: what a lookup would wait for its bank. `multimemq`: target
    lists on their way, mean per GPU (rate x fetch, Little).
    `reduction`: sessions = results + sessions that left early; `partial_sums`: packet pairs that sessions sent when they left early. `occupancy`:
    `{max, mean}`, over all
    ports or hubs together for tables, of the fullest port for `input_buffer`. `stalls_us` by cause; `stalls` how often.
    """
    st, time_ps = fabric.agenda.st, max(1, int(state.clock.x[col.RUN_NOW]))
    link, output, total = fabric.lanes.link, fabric.outputs.output, len(fabric.lanes.link)
    spilled = int(state.tables.places[p.n_rows :, col.PLACE_LEFT].sum())
    lookups, hits, fetches = int(st[f.ST_LOOKUPS]), int(st[f.ST_HITS]), int(st[f.ST_FETCHES])

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
            "allocated": int(st[f.ST_ALLOCATED]), "peak_rows": int(st[f.ST_PEAK_ROWS]), "full_retries": int(st[f.ST_FULL]),
            "bank_waits": int(st[f.ST_BANK_WAITS]), "bank_wait_ns_mean": float(st[f.ST_BANK_PS]) / 1e3 / lookups if lookups else 0.0,
            "misses_under_way": {"max": int(st[f.ST_PEAK_MISSES]), "mean": mean(f.ST_AL_AREA, f.ST_AL_SINCE, f.ST_MISSES_NOW)},
        },
        "reduction": {
            "sessions": int(st[f.ST_SESSIONS]), "results": int(st[f.ST_RESULTS]), "evictions": int(st[f.ST_EVICTIONS]),
            "timeouts": int(st[f.ST_TIMEOUTS]), "partial_sums": int(st[f.ST_PARTIALS]), "bypasses": int(st[f.ST_BYPASSES]),
            "merged_loads": int(st[f.ST_MERGED_LOADS]),
            "occupancy": {"max": int(st[f.ST_PEAK_SESSIONS]), "mean": mean(f.ST_RED_AREA, f.ST_RED_SINCE, f.ST_SESSIONS_NOW)},
        },
        "multimemq": {"fetches": fetches, "lists_under_way_mean": fetches * int(fabric.agenda.c[f.C_FETCH]) / time_ps / p.n_nodes},
        "input_buffer": {"max_flits": int(link[:, f.LINK_PEAK].max(initial=0)), "mean_peak_flits": float(link[:, f.LINK_PEAK].mean())},
        "stalls": {
            "credit": int(st[f.ST_CREDIT_WAITS]), "target_fetch": int(st[f.ST_FETCH_WAITS]), "hub_buffer": int(st[f.ST_HUB_WAITS]),
            "crossbar_lane": int(st[f.ST_LANE_WAITS]), "al_miss": int(st[f.ST_AL_WAITS]), "answer_queue": int(st[f.ST_ANSWER_WAITS]),
        },
        "stalls_us": {
            "credit": float(link[:, f.LINK_PS_CREDIT].sum()) / 1e6, "target_fetch": float(link[:, f.LINK_PS_FETCH].sum()) / 1e6,
            "hub_buffer": float(output[:total, f.OUTPUT_PS_HUB].sum()) / 1e6,
        },
    }  # fmt: skip


def check_drained(p: Program, state: BurstState, fabric: Fabric) -> None:
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
