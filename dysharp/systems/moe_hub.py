"""MoE-Hub: stores name an expert's region and a row, and the hub of the receiver gives the row its place on arrival."""

from dataclasses import replace

import numpy as np

from dysharp.base import ns_to_ps
from dysharp.program import I32, Discipline, Framing, Head, Tail, frozen, place_in
from dysharp.specs import choice_int, choice_str
from dysharp.systems import Costs, Facts, Moves, Reach, Shown, system
from dysharp.systems.building import STORE, LayerBuilder, blocks_in_order, fused, in_pairs, placed, stream_order
from dysharp.systems.building.experts import GemmOps


@frozen
class Options:
    """Options of MoE-Hub and of its ablations.

    | option | meaning |
    |---|---|
    | `store_bytes` | payload of a packet without packet manager (mh-base, mh-dep) |
    | `poll_ns` | time until a thread block sees that its tile is ready, without readiness in hardware (mh-base, mh-pkt) |
    | `grid` | order in which polling thread blocks take SMs: "expert" after expert, or experts in "turn" |
    | `second_gemm` | what GEMM-2 of a tile waits for: its own "tile" of GEMM-1, or the whole "kernel"; "auto" = tile where readiness is in hardware |
    | `totals` | rows of an expert, for the hub (moe-hub, mh-dep): "known" before, or "announced" by every source at its end |
    | `rows_at_once` | rows that the SMs of a GPU write side by side |
    | `rat_banks`, `rat_bank_entries` | banks of the row table (RAT) of a GPU's hub, rows in each |
    | `al_misses` | rows that a hub reads back from memory at once; 0 = as many as rows at line rate need |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    store_bytes: int = choice_int("moe_hub.store_bytes")
    poll_ns: int = choice_int("moe_hub.poll_ns")
    grid: str = choice_str("moe_hub.grid")
    second_gemm: str = choice_str("moe_hub.second_gemm")
    totals: str = choice_str("moe_hub.totals")
    rows_at_once: int = choice_int("moe_hub.rows_at_once")
    rat_banks: int = choice_int("moe_hub.rat_banks")
    rat_bank_entries: int = choice_int("moe_hub.rat_bank_entries")
    al_misses: int = choice_int("hub.al_misses")
    compute: bool = True


def _exchange(layer: LayerBuilder, options: Options, *, managed: bool) -> I32:
    """Dispatch and Combine, one copy per (token, expert) each way. Returns `[useful rows]` ops of Combine.

    `managed`: the packet manager merges stores to whole packets and serves the receivers in turn, the smallest row
    first. Otherwise the rows leave token by token, in packets of `store_bytes`.
    """
    framing = STORE if managed else Framing("store", payload_bytes=options.store_bytes)
    order = stream_order(layer, layer.p.row_source, layer.p.row_gpu, by_token=True) if managed else None
    table = layer.row_table(framing, options.rat_banks, options.rat_bank_entries)
    layer.dispatch_rows(order=order, by_rows=True, framing=framing, table=table, at_once=options.rows_at_once)
    return layer.combine_rows(Discipline.READY_FIFO, framing=framing).of_useful_row


def _experts(layer: LayerBuilder, back: I32, options: Options, *, polled: bool) -> None:
    """Tiles start when their rows are there; the ops `back` wait for the results.

    `polled`: thread blocks of GEMM-1 take SMs in the order of the grid and poll there until their tile is ready.
    Otherwise they stay outside of the SMs until the hub has counted all bytes that they read.
    """
    seen = _polls(layer, options.poll_ns) if polled else None
    if not layer.compute:
        layer.wait_rows(back, layer.tiles if seen is None else seen, Tail.TILE_READY if seen is None else Tail.OP_DONE)
        return
    whole_kernel = options.second_gemm == "kernel" or (options.second_gemm == "auto" and polled)
    gemms = in_pairs(layer, back) if whole_kernel else fused(layer, back)
    if gemms is not None and not polled and options.totals == "announced":
        _await_totals(layer, gemms)
    if seen is not None and gemms is not None:
        started = blocks_in_order(layer, gemms, layer.tiles if options.grid == "expert" else _in_turn(layer))
        layer.wait_each(gemms.first, seen, started)


def _await_totals(layer: LayerBuilder, gemms: GemmOps) -> None:
    """Tiles that are not full start when every GPU has announced its totals, which it does when its last row has left."""
    sent, told = layer.join("rows.sent"), layer.join("totals.known")
    for rows in layer.dispatched:
        last = placed(layer.n_gpus, rows.node, rows.op)  # each GPU sends its rows in the order of their ops
        layer.b.edges(Tail.OP_ISSUED, last[last >= 0], Head.OP_ISSUE, sent[last >= 0])
    layer.flags("totals", 1, sent, told)
    part = np.flatnonzero(layer.tile_rows < layer.tiling.rows)
    for head in gemms.first:
        layer.wait_each(head[part], told[layer.tile_gpu[part]])


def _polls(layer: LayerBuilder, poll_ns: int) -> I32:
    """`[tiles]` DELAYs from a ready tile until a poll has seen it."""
    most = int(layer.counted(layer.tile_gpu).max(initial=1))
    pools = layer.pools(most, "polls")
    issuer = layer.ready("polls", pools)
    polls = layer.copies("other", [0, ns_to_ps(poll_ns)], layer.tile_gpu, issuer[layer.tile_gpu], name="poll")
    layer.wait_tiles(polls.op, layer.tiles)
    return polls.op


def _in_turn(layer: LayerBuilder) -> I32:
    """The tiles of each GPU: the first tile of every expert, then the second tiles."""
    return np.lexsort((layer.tile_slot, place_in(layer.tile_slot), layer.tile_gpu)).astype(np.int32)


FACTS = Facts(
    source="MoE-Hub (arXiv 2605.05888)",
    options=Options,
    moves=Moves("one_copy_per_expert"),
    costs=Costs(permutes=0, fused=False, drops="routing kernel, scaling kernel at the source, room of regions"),
    reach=Reach(stays="hubs place rows that come by NVLink, and the paper has no NIC"),
    shown=Shown("#6A00F4"),
)
ABLATION = replace(FACTS, source=f"{FACTS.source}, ablation")


@system("moe-hub", replace(FACTS, inert=("store_bytes", "poll_ns", "grid")))
def plan(layer: LayerBuilder, options: Options) -> None:
    """Full MoE-Hub: places on arrival, packet manager, readiness in hardware."""
    _experts(layer, _exchange(layer, options, managed=True), options, polled=False)


@system("mh-dep", replace(ABLATION, inert=("poll_ns", "grid"), shown=Shown("#66A61E")))
def _plan_dep(layer: LayerBuilder, options: Options) -> None:
    """MoE-Hub without packet manager: stores leave token by token, as they were issued."""
    _experts(layer, _exchange(layer, options, managed=False), options, polled=False)


@system("mh-pkt", replace(ABLATION, inert=("store_bytes", "totals"), shown=Shown("#7570B3")))
def _plan_pkt(layer: LayerBuilder, options: Options) -> None:
    """MoE-Hub without readiness in hardware: thread blocks poll on their SMs."""
    _experts(layer, _exchange(layer, options, managed=True), options, polled=True)


@system("mh-base", replace(ABLATION, inert=("totals",), shown=Shown("#BB0077")))
def _plan_base(layer: LayerBuilder, options: Options) -> None:
    """MoE-Hub with places on arrival alone: no packet manager, thread blocks poll."""
    _experts(layer, _exchange(layer, options, managed=False), options, polled=True)
