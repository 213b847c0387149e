"""Sizes and costs of the packet fabric's blocks, and a Program as the arrays of its kernels (docs/design/0006)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.base.arrays import Array
from dysharp.base.errors import ConfigError
from dysharp.base.units import PS_PER_US, ns_to_ps
from dysharp.base.values import frozen
from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks import tables
from dysharp.engine.blocks.state import BurstState
from dysharp.engine.burst.lower import beyond_packets, lower, row_places, tree
from dysharp.engine.burst.lower_points import load_entries
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.state import Agenda, EgressState, Fabric, Hubs, Lanes, Outputs, PacketRecords, Units
from dysharp.program.builder import PULLS
from dysharp.program.constants import sessions_of_table
from dysharp.program.tables import HubTable, Kind, Program
from dysharp.specs import Cluster, choice_int

STRIPES = ("rotating", "even", "hash")
CHANNELS = ("two", "class", "one")
ACKS = ("turns", "first")
NEVER = 1 << 40


@frozen
class FabricConfig:
    """Blocks of the fabric. Entries 0 = infinite (the block never makes anything wait); times in picoseconds.

    `n_planes` switches; `speedup` crossbar lanes into and out of a port; `stripe`: how packets choose links; `channels`: virtual-channel
    groups ("two": requests and answers, "class": every class its own, "one": all together); `cycle_ps`: time that dynamic routing and summing add;
    `reduction_entries` sessions per port, `reduction_timeout_ps` 0 = never; `al_entries` TLB entries per hub, `al_mshrs` its misses
    under way, `al_miss_ps` reading the table, `al_banks` and `al_bank_ps` the banks it is looked up in and how often each takes a lookup
    (their waits are counted, not charged: docs/design/0006); `queue_entries` of the MultimemQ per GPU, `fetch_ps` a target list; `answer_entries`
    requests per link whose answers have not left; `n_vcs`, `vc_flits` -1 = those of the Program's machine, `al_entries`, `al_mshrs`,
    `al_miss_ps` -1 = those of the Program's table. `acks`: whether acknowledgements and notifications take "turns" with rows on a link or go
    "first".
    """

    n_planes: int = 1
    speedup: int = 2
    stripe: str = "rotating"
    channels: str = "two"
    cycle_ps: int = 640
    reduction_entries: int = 0
    reduction_timeout_ps: int = 0
    al_entries: int = -1
    al_mshrs: int = -1
    al_banks: int = 0
    al_bank_ps: int = 625
    al_miss_ps: int = -1
    queue_entries: int = 0
    fetch_ps: int = 30_000
    answer_entries: int = 0
    n_vcs: int = -1
    vc_flits: int = -1
    acks: str = "turns"

    def __post_init__(self) -> None:
        for name, value, known in (("stripe", self.stripe, STRIPES), ("channels", self.channels, CHANNELS), ("acks", self.acks, ACKS)):
            if value not in known:
                raise ConfigError(f"fabric.{name} is {value!r}, expected one of {', '.join(known)}")
        for name in ("n_planes", "speedup"):
            if getattr(self, name) < 1:
                raise ConfigError(f"fabric.{name} is {getattr(self, name)}, expected at least 1")


def fabric_of(cluster: Cluster) -> FabricConfig:
    """The blocks of `cluster` at their published sizes, the rest from the choices `packet.*`."""
    return FabricConfig(
        n_planes=cluster.n_switches, speedup=cluster.internal_speedup, cycle_ps=choice_int("packet.switch_cycle_ps"),
        reduction_entries=sessions_of_table(cluster), reduction_timeout_ps=choice_int("packet.reduction_timeout_us") * PS_PER_US,
        al_banks=choice_int("packet.al_banks"), al_bank_ps=choice_int("packet.al_bank_ps"),
        queue_entries=cluster.multimemq_entries * choice_int("packet.multimemq_lsus"), fetch_ps=ns_to_ps(choice_int("dysharp.target_fetch_ns")),
        n_vcs=cluster.n_vcs, vc_flits=cluster.vc_flits,
    )  # fmt: skip


def asked_fabric(cluster: Cluster, given: Mapping[str, Any]) -> FabricConfig:
    """`fabric_of`, with the options `fabric.*` of a run: a size of a table means what the key of the cluster means."""
    units = {"queue_entries": choice_int("packet.multimemq_lsus")}
    return replace(fabric_of(cluster), **{name: value * units.get(name, 1) for name, value in given.items()})


def with_table(p: Program, config: FabricConfig) -> FabricConfig:
    """`config` with the sizes of the Program's table where it has none of its own. Raises ConfigError for several tables."""
    if len(p.tables) > 1:
        raise ConfigError(f"packet level: found {len(p.tables)} tables of hubs in the Program, expected at most 1")
    table = p.tables[0] if p.tables else HubTable("none", 0, 0, 0)
    entries = (table.entries or NEVER) if p.tables else 0  # a table that holds all rows still reads each row once
    of_table: dict[str, Any] = {"al_entries": entries, "al_mshrs": table.misses, "al_miss_ps": table.miss_ps}
    return replace(config, **{name: value for name, value in of_table.items() if getattr(config, name) < 0})


def _bank_entries(p: Program, config: FabricConfig) -> int:
    """Rows in a bank of the row table, -1 = the Program has none."""
    return max(1, config.al_entries // p.tables[p.row_table].banks) if p.row_table >= 0 else -1


def _packet_wires(p: Program) -> Array:
    """`[n_wires, 16]` int64: how each train of NVLink is cut into packets (columns CUT_*). The wire table is their sum.

    A message of another network is not cut: its row is 0.
    """
    w, flit = p.wires, p.hardware.flit
    out = _zeros(max(1, len(w.up)), 16)
    wired = np.flatnonzero((p.ops.wire >= 0) & (p.op_net() == 0))
    rows, first = np.unique(p.ops.wire[wired], return_index=True)
    for row, op in zip(rows, wired[first], strict=True):
        template = p.templates[p.ops.template[op]]
        framing, payload, aux = p.framings[template.framing], int(p.ops.bytes[op]), int(w.aux[row])
        n_payload, n_aux = framing.packets(payload), framing.packets(aux)
        n = max(1, n_payload + n_aux)
        data = framing.data_flits(payload, flit) + framing.data_flits(aux, flit)
        full = framing.data_flits(framing.payload_bytes, flit)
        sizes = (payload, n_payload), (aux, n_aux)
        last, aux_last = (framing.data_flits(b - (k - 1) * framing.payload_bytes, flit) if k else 0 for b, k in sizes)
        ends = framing.payload_bytes, payload - (n_payload - 1) * framing.payload_bytes
        cut = [framing.data_flits(b, flit, cast) for cast in (framing.answer, framing.total) for b in ends]
        pull = template.kind in PULLS
        up = int(w.up[row]) // flit - (0 if pull else data)
        total = framing.data_flits(payload, flit, framing.total) + framing.data_flits(aux, flit)
        answer = int(w.result[row]) // flit - total if pull else 0
        acks = int(w.ack_up[row]) // flit // n, int(w.ack_down[row]) // flit // n
        out[row] = (n, n_payload, full, last, full, aux_last, up // n, 0, *acks, answer // n, 0, *cut)
        out[row, f.CUT_DOWN_H] = (int(w.down[row]) // flit - (0 if pull else data)) // n
        out[row, f.CUT_DYNAMIC] = framing.targets_per_ext > 0
    return out


def build(p: Program, config: FabricConfig, n_slots: int = 1 << 14) -> tuple[BurstState, Fabric]:
    """All arrays of one run at time zero: those of the op level, and the packet fabric with room for `n_slots` packets."""
    if reason := beyond_packets(p):
        raise ConfigError(f"packet level: {reason} (use --fidelity burst)")
    config = with_table(p, config)
    state = lower(p)
    cuts = _packet_wires(p)
    c = _constants(p, config, cuts)
    total = int(c[f.C_TOTAL])
    if total > 2048:
        raise ConfigError(f"packet level: found {total} links, expected at most 2048")
    n_rings = f.FABRIC_FIXED + 3 * int(c[f.C_SIZES]) + int(c[f.C_EXT])
    messages = len(p.pools.node) + col.N_RINGS * p.n_nets + p.n_nodes
    leaf = messages + (2 * p.n_ports + p.n_nets if p.nets else 0)
    c[f.C_LEAF] = leaf
    _widen(p, state, cuts)
    state = state._replace(tables=state.tables._replace(places=row_places(p, state.members.mem[:-1, f.MEMBER_LEFT])))
    state = _clocked(p, state, messages, leaf + n_rings)
    fabric = Fabric(
        packets=PacketRecords(np.zeros((0, 16), np.int32), _zeros(0, 8), np.zeros(0, np.int32), _zeros(0)),
        lanes=_lanes(p, config, c),
        outputs=_outputs_of(c, config.speedup),
        sources=_sources(p, config, cuts),
        units=Units(
            _zeros(total, 6), _zeros(total, 2), _zeros(0, 4), **_merging(p, config, state, cuts, total),
            log=_zeros(0, 4),
        ),
        hubs=_hubs(p, config, state, int(c[f.C_ROWS])),
        agenda=Agenda(
            rings=_nobody(n_rings, 2), tree=state.clock.tree,
            flit_ps=_durations(p.hardware.rate, p.hardware.n_links, p.hardware.flit, int(c[f.C_SIZES])), c=c, x=state.clock.x,
            st=_zeros(f.ST_COUNT),
        ),
        accepted=np.full((1, 2), -1, np.int64),
        flits_by_kind=_zeros(2, f.N_KINDS),
    )  # fmt: skip
    fabric.units.ports[:, tables.PORT_ENTRIES] = config.reduction_entries or NEVER
    tables.red_clear(0, fabric.units.sessions, fabric.units.ports)
    return state, grow(fabric, max(n_slots, 4 * int(c[f.C_MARGIN])))


def _zeros(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


def _nobody(*shape: int) -> Array:
    """Heads and ends of empty queues."""
    return np.full(shape, -1, np.int32)


def _clocked(p: Program, state: BurstState, messages: int, n_leaves: int) -> BurstState:
    """The op level with the packet level's clock: its leaves and scalars, no latency of notifications (they travel as packets).

    `messages`: the first leaf of the ports of other networks.
    """
    x = _zeros(f.RUN_COLUMNS)
    x[col.RUN_WORK_HEAD] = -1
    m = state.clock.m.copy()
    m[col.HARDWARE_NOTIFY] = 0
    m[col.LEAF_RINGS] = len(p.pools.node)
    m[col.LEAF_UP], m[col.LEAF_ARRIVE], m[col.LEAF_DOWN] = messages, messages + p.n_ports, messages + p.n_ports + p.n_nets
    return state._replace(clock=state.clock._replace(tree=tree(n_leaves), m=m, x=x))


def _lanes(p: Program, config: FabricConfig, c: Array) -> Lanes:
    total, n_ports, n_vcs = int(c[f.C_TOTAL]), int(c[f.C_PORTS]), int(c[f.C_GROUPS] * c[f.C_VPG])
    link = _links_of(total, p.hardware.n_links, int(c[f.C_PER_PLANE]), config.speedup)
    plane_links = np.full((-(-p.hardware.n_links // int(c[f.C_PER_PLANE])), n_ports), -1, np.int64)
    plane_links[link[:, f.LINK_PLANE], link[:, f.LINK_INPUT]] = np.arange(total)
    credits = 1 << (max(4 * int(c[f.C_MARGIN]), 1 << 14) - 1).bit_length()
    return Lanes(
        link=link, plane_links=plane_links, occupied=_zeros(total, n_vcs), channels=_nobody(total * n_vcs, 2),
        held=_zeros(total, int(c[f.C_GROUPS])), credit_due=_zeros(credits), credit_what=_zeros(credits),
        dirty_links=_dirty_set(total),
    )  # fmt: skip


def _links_of(total: int, n_links: int, per_plane: int, speedup: int) -> Array:
    """`[total, 18]` int64: idle links, `n_links` of each GPU, `per_plane` of them to each plane, `speedup` free lanes each."""
    link = _zeros(total, f.LINK_COLUMNS)
    number = np.arange(total) % n_links
    link[:, f.LINK_NODE] = np.arange(total) // n_links
    link[:, f.LINK_PLANE] = number // per_plane
    link[:, f.LINK_INPUT] = link[:, f.LINK_NODE] * per_plane + number % per_plane
    link[:, f.LINK_FREE], link[:, f.LINK_LANES], link[:, f.LINK_CURSOR] = 1, speedup, -1
    link[:, [f.LINK_BLOCKED, f.LINK_FETCH]] = -1
    return link


def _outputs_of(c: Array, speedup: int) -> Outputs:
    """Idle outputs with `speedup` lanes each."""
    total, n_groups, n_ports = int(c[f.C_TOTAL]), int(c[f.C_GROUPS]), int(c[f.C_PORTS])
    output = _zeros(2 * total, f.OUTPUT_COLUMNS)
    output[:, f.OUTPUT_FREE] = speedup
    output[:, [f.OUTPUT_GROUP, f.OUTPUT_BLOCKED, f.OUTPUT_SENDING, f.OUTPUT_HEAD, f.OUTPUT_SHORT]] = -1
    output[:, f.OUTPUT_INPUT0 :] = -1
    return Outputs(
        output=output, out_queues=_nobody(2 * total * n_groups * (n_ports + 1), 2),
        asking=_zeros(2 * total * n_groups, -(-(n_ports + 1) // 64)), asked=_zeros(total, -(-2 * n_ports // 64)),
        dirty_outputs=_dirty_set(2 * total),
    )  # fmt: skip


def _dirty_set(n: int) -> Array:
    """An empty set of up to `n` resources: a word that says which words are not empty, then 64 resources a word."""
    return _zeros(1 + -(-n // 64))


def _sources(p: Program, config: FabricConfig, cuts: Array) -> EgressState:
    total, n_classes = p.n_nodes * p.hardware.n_links, len(p.classes)
    fetches = np.full((p.n_nodes, 1 + max(1, config.queue_entries)), -NEVER, np.int64)
    fetches[:, 0] = 0
    return EgressState(
        egress=_nobody(total * (n_classes + 2), 2), cursors=_nobody(total * n_classes, 2), cuts=cuts,
        groups=_groups_of(p, config), fetches=fetches, node_wake=np.full(p.n_nodes, col.INF, np.int64), stripes=_zeros(p.n_nodes),
        requests=_nobody(total, 2),
    )  # fmt: skip


def _hubs(p: Program, config: FabricConfig, state: BurstState, n_keys: int) -> Hubs:
    keys = _zeros(n_keys + p.n_nodes, 6)
    hubs = _zeros(p.n_nodes, tables.HUB_BANK0 + config.al_banks)
    hubs[:, tables.HUB_ENTRIES] = config.al_entries or NEVER
    hubs[:, tables.HUB_MSHRS] = config.al_mshrs or NEVER
    tables.al_clear(n_keys, keys, hubs)
    if n_keys:
        keys[:n_keys, tables.KEY_LAYOUT] = np.where(_allocated(p), state.stores.rows[:, col.ROW_SLOT], 0)
    return Hubs(
        keys=keys, hubs=hubs, waiters=_zeros(0, 2), reads=_zeros(max(1, n_keys), 2),
        stalled=_nobody(p.n_nodes, 2), next_free=_zeros(max(1, p.n_regions)), answer=_zeros(1),
    )  # fmt: skip


def _allocated(p: Program) -> Array:
    """`[n_rows]` bool: rows whose first packet asks the table for a place. All others have their entry in memory before a packet asks."""
    asks = np.array([t.table >= 0 and t.kind not in PULLS for t in p.templates], bool)[p.ops.template]
    fills = np.repeat(asks, np.diff(p.members.fill_ptr[p.members.ptr]))
    allocated = np.zeros(p.n_rows, bool)
    allocated[p.members.fill_row[fills]] = True
    return allocated


def _merging(p: Program, config: FabricConfig, state: BurstState, cuts: Array, total: int) -> dict[str, Any]:
    """The columns of `Units` for sums of pushes and for loads that merge.

    A place of the Program holds a row over all ports of its home. Here a port has places for its packets of as many
    rows. Raises ConfigError where packets of one sum or address would come to several ports.
    """
    ops = np.flatnonzero(np.isin(p.kinds(), (Kind.PUSH_REDUCE, Kind.MERGED_LOAD)))
    none = _zeros(0)
    if p.ops.session is None or p.sessions is None or len(ops) == 0:
        return {"sum_of": none.astype(np.int32), "chunk0": none, "chunks": _zeros(0, 3), "places": none, "loads": None} | _gates(p, 0)
    session = p.ops.session[ops]
    key = np.full(len(p.sessions.home), -1, np.int64)
    key[session] = p.ops.key[ops]
    n = _zeros(len(key))
    n[session] = cuts[p.ops.wire[ops], f.CUT_PACKETS]
    differs = (key[session] != p.ops.key[ops]) | (key[session] < 0) | (n[session] != cuts[p.ops.wire[ops], f.CUT_PACKETS])
    if config.stripe == "even" or differs.any():
        what = "found contributions of a sum or loads of an address that leave by several links, expected one key and size, and links by key"
        raise ConfigError(f"packet level: {what} (use --fidelity burst)")
    chunks = _zeros(int(n.sum()), 3)
    chunks[:, f.CHUNK_LEFT], chunks[:, f.CHUNK_HEAD] = np.repeat(p.sessions.expected, n), -1
    per_port = -(-int(n.max(initial=1)) // p.hardware.n_links)
    loads = state.ops.points.loads if state.ops.points else None
    if loads is not None:
        loads = loads._replace(entries=load_entries(np.repeat(p.sessions.expected, n), total))
    return {
        "sum_of": np.where(p.kinds() == Kind.PUSH_REDUCE, p.ops.session, -1).astype(np.int32), "chunk0": np.cumsum(n) - n, "chunks": chunks,
        "places": np.full(total, p.sessions.places * per_port or NEVER, np.int64), "loads": loads,
    } | _gates(p, len(key))  # fmt: skip


def _gates(p: Program, n_sessions: int) -> dict[str, Any]:
    """The columns of `Units` for gates."""
    own = np.zeros(0, np.int32) if p.ops.gate is None or not n_sessions else p.ops.gate
    return {"gate_of": own, "gates": np.full((n_sessions if len(own) else 0, 2), -1, np.int64)}


def _widen(p: Program, state: BurstState, cuts: Array) -> None:
    """Members count their packets; extra bytes of a copy become flits."""
    if p.n_members:
        mem = state.members.mem
        mem[:-1, f.MEMBER_LEFT] = cuts[p.ops.wire[mem[:-1, col.MEMBER_OP]], f.CUT_PACKETS]
        by_packets = mem[:-1, col.MEMBER_NODE] < p.n_nodes
        mem[:-1, col.MEMBER_EXT] = np.where(by_packets, mem[:-1, col.MEMBER_EXT] // p.hardware.flit, mem[:-1, col.MEMBER_EXT])


def _durations(rate: int, n_links: int, flit: int, sizes: int) -> Array:
    """`[sizes]` int64 ps that a packet of that many flits takes on one link."""
    return -(-np.arange(sizes, dtype=np.int64) * flit * 1_000_000 * n_links // rate)


def _groups_of(p: Program, config: FabricConfig) -> Array:
    """Virtual-channel group of every egress queue: classes, their responses, acknowledgements, notifications."""
    n = len(p.classes)
    if config.channels == "one":
        return _zeros(2 * n + 2)
    if config.channels == "class":
        return np.concatenate([np.arange(n), np.arange(n), [n, n]]).astype(np.int64)
    # requests and stores; responses, pushed contributions and acknowledgements
    pushed = np.zeros(n)
    pushed[[t.cls for t in p.templates if t.kind is Kind.PUSH_REDUCE]] = 1
    return np.concatenate([pushed, np.ones(n), [1, 0]]).astype(np.int64)


def _constants(p: Program, config: FabricConfig, cuts: Array) -> Array:
    """The constants C_*."""
    m = p.hardware
    c = _zeros(f.C_COUNT)
    wired = p.ops.wire >= 0
    per_op = np.diff(p.members.ptr)
    most = int(per_op[wired].max(initial=1))
    fills = int(np.diff(p.members.fill_ptr).max(initial=1)) or 1
    n_groups = {"two": 2, "one": 1, "class": len(p.classes) + 1}[config.channels]
    if n_groups > f.MAX_GROUPS:
        raise ConfigError(f"fabric.channels: found {n_groups} groups of virtual channels, expected at most {f.MAX_GROUPS}")
    data = cuts[:, [f.CUT_FULL, f.CUT_LAST, f.CUT_AUX, f.CUT_AUX_LAST]].max(initial=0)
    ext = 0 if p.members.ext_bytes is None else int(p.members.ext_bytes.max(initial=0)) // m.flit
    note = m.notify_bytes // m.flit
    sizes = int(max(cuts[:, f.CUT_UP_H : f.CUT_RESULT_H + 1].max(initial=0) + data + ext, note)) + 1
    exts = int((cuts[:, f.CUT_UP_H] - cuts[:, f.CUT_DOWN_H]).max(initial=0)) + 1
    per_plane = -(-m.n_links // config.n_planes)
    vc_flits = m.vc_bytes // m.flit // m.n_links if config.vc_flits < 0 else config.vc_flits
    if m.vc_bytes and config.vc_flits < 0:
        vc_flits = max(1, vc_flits)
    total = p.n_nodes * m.n_links
    values = {
        f.C_LINKS: m.n_links, f.C_TOTAL: total, f.C_GROUPS: n_groups, f.C_VPG: m.n_vcs if config.n_vcs < 0 else config.n_vcs,
        f.C_PORTS: p.n_nodes * per_plane, f.C_LAT: m.lat, f.C_TAIL: m.lat, f.C_CYCLE: config.cycle_ps, f.C_VC_FLITS: vc_flits,
        f.C_RESPONDER: m.responder, f.C_AL: config.al_entries, f.C_AL_MISS: config.al_miss_ps, f.C_FETCH: config.fetch_ps,
        f.C_QUEUE: config.queue_entries, f.C_TIMEOUT: config.reduction_timeout_ps, f.C_STRIPE: STRIPES.index(config.stripe),
        f.C_CLASSES: len(p.classes), f.C_ACK_GROUP: {"two": 1, "one": 0, "class": n_groups - 1}[config.channels],
        f.C_NOTE_GROUP: 0, f.C_SIZES: sizes, f.C_EXT: 2 * exts, f.C_PER_PLANE: per_plane, f.C_FILLS: fills,
        f.C_ANSWERS: config.answer_entries, f.C_ROWS: p.n_rows if config.al_entries else 0,
        f.C_NOTE_FLITS: note, f.C_BANKS: config.al_banks, f.C_BANK_PS: config.al_bank_ps, f.C_BANK_ENTRIES: _bank_entries(p, config),
        f.C_FIRST: 0b11 << 2 * len(p.classes) if config.acks == "first" else 0,
        f.C_MARGIN: total * (most + 3) + int(p.regions.tile_rows.max(initial=0)) + 64,
    }  # fmt: skip
    for column, value in values.items():
        c[column] = value
    c[f.C_INGRESS] = c[f.C_VPG] * vc_flits if vc_flits else NEVER
    return c


def grow(fabric: Fabric, n_slots: int) -> Fabric:
    """The same state with room for `n_slots` packets, and twice the credits on their way if the credits are full."""
    c, x, units = fabric.agenda.c, fabric.agenda.x, fabric.units
    old, fills = len(fabric.packets.packet), int(c[f.C_FILLS])
    free_now = int(x[f.RUN_FREE])
    x[f.RUN_FREE] = free_now + n_slots - old
    c[f.C_SLOTS] = n_slots
    packet = _grown(fabric.packets.packet, n_slots)
    free = _zeros(n_slots)
    free[: n_slots - old] = np.arange(n_slots - 1, old - 1, -1)
    free[n_slots - old : n_slots - old + free_now] = fabric.packets.free[:free_now]
    sessions = _zeros(n_slots + len(units.ports), 6)
    sessions[:old], sessions[n_slots:] = units.sessions[:old], units.sessions[old:]
    sessions[old:n_slots] = tables.SESSION_EMPTY
    links = sessions[:, [tables.SESSION_PREV, tables.SESSION_NEXT]]
    sessions[:, [tables.SESSION_PREV, tables.SESSION_NEXT]] = np.where(links >= old, links + n_slots - old, links)
    return fabric._replace(
        packets=PacketRecords(packet, packet.view(np.int64), _grown(fabric.packets.behind, n_slots), free),
        units=units._replace(sessions=sessions, idle=_grown(units.idle, n_slots)),
        hubs=fabric.hubs._replace(waiters=_grown(fabric.hubs.waiters, n_slots * fills)),
        lanes=_more_credits(fabric.lanes, int(x[f.RUN_CREDIT_READ]), int(x[f.RUN_CREDITS])),
    )


def _grown(array: Array, n: int) -> Array:
    """`array` with `n` rows, the new ones zero."""
    out = np.zeros((n, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


def _more_credits(lanes: Lanes, first: int, last: int) -> Lanes:
    """Twice the ring of credits `first` .. `last` if it is more than half full."""
    size = len(lanes.credit_due)
    if last - first <= size // 2:
        return lanes
    number = np.arange(first, last)
    due, what = _zeros(2 * size), _zeros(2 * size)
    due[number % (2 * size)], what[number % (2 * size)] = lanes.credit_due[number % size], lanes.credit_what[number % size]
    return lanes._replace(credit_due=due, credit_what=what)
