"""Sizes and costs of the packet fabric's blocks, and a Program as the arrays of its kernels (docs/design/0006)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dysharp.engine.burst.lower import Lowered, lower
from dysharp.errors import ConfigError
from dysharp.program.builder import PULLS
from dysharp.program.tables import Program
from dysharp.specs import Cluster, choice_int
from dysharp.systems.machine import sessions_of_table
from dysharp.uarch import columns as col
from dysharp.uarch import tables
from dysharp.uarch.packet import columns as f
from dysharp.units import PS_PER_US, ns_to_ps

Array = NDArray[Any]
STRIPES = ("rotating", "even", "hash")
CHANNELS = ("two", "class", "one")
NEVER = 1 << 40
B_LEFT = 5  # column of a member's record, as in events/loop.py


@dataclass(frozen=True, slots=True)
class FabricConfig:
    """Blocks of the fabric. Entries 0 = infinite (the block never makes anything wait); times in picoseconds.

    `n_planes` switches; `speedup` crossbar lanes into and out of a port; `stripe`: how packets choose links; `channels`: virtual-channel
    groups ("two": requests and answers, "class": every class its own, "one": all together); `cycle_ps`: what dynamic routing and summing
    add; `reduction_entries` sessions per port, `reduction_timeout_ps` 0 = never; `al_entries` TLB entries per hub, `al_mshrs` its misses
    under way, `al_miss_ps` reading the table, `al_banks` and `al_bank_ps` the banks it is looked up in and how often each takes a lookup
    (their waits are counted, not charged: docs/design/0006); `queue_entries` of the MultimemQ per GPU, `fetch_ps` a target list; `answer_entries`
    requests per link whose answers have not left; `n_vcs`, `vc_flits` -1 = those of the Program's machine.
    """

    n_planes: int = 1
    speedup: int = 2
    stripe: str = "rotating"
    channels: str = "two"
    cycle_ps: int = 640
    reduction_entries: int = 0
    reduction_timeout_ps: int = 0
    al_entries: int = 0
    al_mshrs: int = 0
    al_banks: int = 0
    al_bank_ps: int = 625
    al_miss_ps: int = 500_000
    queue_entries: int = 0
    fetch_ps: int = 30_000
    answer_entries: int = 0
    n_vcs: int = -1
    vc_flits: int = -1

    def __post_init__(self) -> None:
        for name, value, known in (("stripe", self.stripe, STRIPES), ("channels", self.channels, CHANNELS)):
            if value not in known:
                raise ConfigError(f"fabric.{name} is {value!r}, expected one of {', '.join(known)}")
        for name in ("n_planes", "speedup"):
            if getattr(self, name) < 1:
                raise ConfigError(f"fabric.{name} is {getattr(self, name)}, expected at least 1")


def fabric_of(cluster: Cluster) -> FabricConfig:
    """The blocks of `cluster` at their published sizes, the rest from the choices `packet.*`."""
    return FabricConfig(
        n_planes=cluster.n_switches,
        speedup=cluster.internal_speedup,
        cycle_ps=choice_int("packet.switch_cycle_ps"),
        reduction_entries=sessions_of_table(cluster),
        reduction_timeout_ps=choice_int("packet.reduction_timeout_us") * PS_PER_US,
        al_entries=cluster.al_tlb_entries,
        al_mshrs=choice_int("packet.al_mshrs"),
        al_banks=choice_int("packet.al_banks"),
        al_bank_ps=choice_int("packet.al_bank_ps"),
        al_miss_ps=ns_to_ps(choice_int("packet.al_miss_ns")),
        queue_entries=cluster.multimemq_entries * choice_int("packet.multimemq_lsus"),
        fetch_ps=ns_to_ps(choice_int("dysharp.target_fetch_ns")),
        n_vcs=cluster.n_vcs,
        vc_flits=cluster.vc_flits,
    )


class Fabric(NamedTuple):
    """Arguments of `run_events` behind those of the op level, in its order."""

    pk: Array
    pt: Array
    pq: Array
    pool: Array
    sessions: Array
    idle: Array
    waiters: Array
    lk: Array
    plane_links: Array
    eq: Array
    cut: Array
    occ: Array
    vcq: Array
    oq: Array
    om: Array
    oc: Array
    im: Array
    held: Array
    rq: Array
    stalled: Array
    ports: Array
    keys: Array
    hubs: Array
    al: Array
    next_free: Array
    mmq: Array
    node_wake: Array
    stripes: Array
    cr_due: Array
    cr_what: Array
    fr: Array
    du: Array
    do: Array
    pw: Array
    groups: Array
    dur: Array
    accepted: Array
    out: Array
    flits_by_kind: Array
    c: Array
    st: Array


OP_LEVEL = tuple(name for name in Lowered._fields if name not in ("occupied", "channels", "credits", "out_queues", "out_mask", "out_cursor",
                                                                  "dirty_up", "dirty_down"))  # fmt: skip
"""The arrays that the op level keeps, in the order of `run_events`; `dirty_up` follows `dirty_issuers` there."""


def packet_wires(p: Program) -> Array:
    """`[n_wires, 12]` int64: how each train is cut into packets (columns PW_*). The wire table of the Program is its sum, checked here."""
    w, flit = p.wires, p.machine.flit
    out = np.zeros((max(1, len(w.up)), 12), np.int64)
    wired = np.flatnonzero(p.ops.wire >= 0)
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
        pull = template.kind in PULLS
        up = int(w.up[row]) // flit - (0 if pull else data)
        answer = int(w.result[row]) // flit - data if pull else 0
        acks = int(w.ack_up[row]) // flit // n, int(w.ack_down[row]) // flit // n
        out[row] = (n, n_payload, full, last, full, aux_last, up // n, 0, *acks, answer // n, 0)
        out[row, f.PW_DOWN_H] = (int(w.down[row]) // flit - (0 if pull else data)) // n
        out[row, f.PW_DYNAMIC] = framing.targets_per_ext > 0
    return out


def build(p: Program, config: FabricConfig, n_slots: int = 1 << 14) -> tuple[Lowered, Fabric]:
    """All arrays of one run at time zero."""
    a = lower(p)
    m, n_links = p.machine, p.machine.n_links
    pw = packet_wires(p)
    kinds = p.kinds()
    c = constants(p, config, pw)
    total, n_groups, n_ports = int(c[f.C_TOTAL]), int(c[f.C_GROUPS]), int(c[f.C_PORTS])
    n_vcs = n_groups * int(c[f.C_VPG])
    if total > 2048:
        raise ConfigError(f"packet level: found {total} links, expected at most 2048")
    n_rings = f.FR_FIXED + 3 * int(c[f.C_SIZES]) + int(c[f.C_EXT])
    leaf = len(p.pools.node) + col.N_RINGS + p.n_nodes
    c[f.C_LEAF] = leaf
    size = 1 << max(1, (leaf + n_rings - 1).bit_length())
    _widen(p, a, pw, kinds)
    lk = np.zeros((total, 18), np.int64)
    link = np.arange(total) % n_links
    per_plane = int(c[f.C_PER_PLANE])
    lk[:, f.LK_NODE] = np.arange(total) // n_links
    lk[:, f.LK_PLANE] = link // per_plane
    lk[:, f.LK_S] = lk[:, f.LK_NODE] * per_plane + link % per_plane
    lk[:, f.LK_FREE], lk[:, f.LK_LANES], lk[:, f.LK_CURSOR] = 1, config.speedup, -1
    lk[:, [f.LK_BLOCKED, f.LK_FETCH]] = -1
    plane_links = np.full((-(-n_links // per_plane), n_ports), -1, np.int64)
    plane_links[lk[:, f.LK_PLANE], lk[:, f.LK_S]] = np.arange(total)
    oc = np.zeros((2 * total, f.OC_COLUMNS), np.int64)
    oc[:, f.OC_FREE] = config.speedup
    oc[:, [f.OC_GROUP, f.OC_BLOCKED, f.OC_SENDING, f.OC_HEAD]] = -1
    oc[:, f.OC_INPUT0 :] = -1
    n_keys = p.n_rows if config.al_entries else 0
    n_hubs = p.n_nodes
    keys = np.zeros((n_keys + n_hubs, 6), np.int64)
    hubs = np.zeros((n_hubs, tables.H_BANK0 + config.al_banks), np.int64)
    hubs[:, tables.H_ENTRIES] = config.al_entries or NEVER
    hubs[:, tables.H_MSHRS] = config.al_mshrs or NEVER
    c[f.C_ROWS] = n_keys
    tables.al_clear(n_keys, keys, hubs)
    if n_keys:
        keys[:n_keys, tables.K_LAYOUT] = a.rows[:, col.R_SLOT]
    ports = np.zeros((total, 2), np.int64)
    ports[:, tables.P_ENTRIES] = config.reduction_entries or NEVER
    queue = np.full((p.n_nodes, 1 + max(1, config.queue_entries)), -NEVER, np.int64)
    queue[:, 0] = 0
    margin = int(c[f.C_MARGIN])
    credits = 1 << (max(4 * margin, 1 << 14) - 1).bit_length()
    x = np.zeros(f.X_COUNT, np.int64)
    x[col.X_WORK_HEAD] = -1
    a = a._replace(tree=np.full(2 * size, col.INF, np.int64), x=x, m=a.m.copy())
    a.m[col.M_NOTIFY] = 0  # notifications travel as packets
    a.nodes[:, col.UP + col.S_EXTRA] = -1
    st = np.zeros(f.ST_COUNT, np.int64)
    groups = groups_of(p, config)
    w = -(-(n_ports + 1) // 64)
    fabric = Fabric(
        pk=np.zeros((0, 16), np.int32), pt=np.zeros((0, 8), np.int64), pq=np.zeros(0, np.int32), pool=np.zeros(0, np.int64),
        sessions=np.zeros((total, 6), np.int64),
        idle=np.zeros((0, 4), np.int64), waiters=np.zeros((0, 2), np.int64), lk=lk, plane_links=plane_links,
        eq=np.full((total * (len(p.classes) + 2), 2), -1, np.int32), cut=np.full((total * len(p.classes), 2), -1, np.int32),
        occ=np.zeros((total, n_vcs), np.int64), vcq=np.full((total * n_vcs, 2), -1, np.int32),
        oq=np.full((2 * total * n_groups * (n_ports + 1), 2), -1, np.int32), om=np.zeros((2 * total * n_groups, w), np.int64), oc=oc,
        im=np.zeros((total, -(-2 * n_ports // 64)), np.int64), held=np.zeros((total, n_groups), np.int64),
        rq=np.full((total, 2), -1, np.int32), stalled=np.full((p.n_nodes, 2), -1, np.int32), ports=ports, keys=keys, hubs=hubs,
        al=np.zeros((max(1, n_keys), 2), np.int64), next_free=np.zeros(max(1, p.n_regions), np.int64), mmq=queue,
        node_wake=np.full(p.n_nodes, col.INF, np.int64), stripes=np.zeros(p.n_nodes, np.int64),
        cr_due=np.zeros(credits, np.int64), cr_what=np.zeros(credits, np.int64), fr=np.full((n_rings, 2), -1, np.int32),
        du=np.zeros(1 + -(-total // 64), np.int64), do=np.zeros(1 + -(-2 * total // 64), np.int64), pw=pw, groups=groups,
        dur=durations(m.rate, n_links, m.flit, int(c[f.C_SIZES])), accepted=np.full(2, -1, np.int64), out=np.zeros(1, np.int64),
        flits_by_kind=np.zeros((2, 16), np.int64), c=c, st=st,
    )  # fmt: skip
    tables.red_clear(0, fabric.sessions, ports)
    return a, grow(a, fabric, max(n_slots, 4 * margin))


def _widen(p: Program, a: Lowered, pw: Array, kinds: Array) -> None:
    """Members count their packets; extra bytes of a copy become flits."""
    if not p.n_members:
        return
    owner = a.mem[:-1, col.B_OP]
    wire = p.ops.wire[owner]
    a.mem[:-1, B_LEFT] = pw[wire, f.PW_PACKETS]
    a.mem[:-1, col.B_EXT] = a.mem[:-1, col.B_EXT] // p.machine.flit


def durations(rate: int, n_links: int, flit: int, sizes: int) -> Array:
    """`[sizes]` int64 ps that a packet of that many flits takes on one link."""
    return -(-np.arange(sizes, dtype=np.int64) * flit * 1_000_000 * n_links // rate)


def groups_of(p: Program, config: FabricConfig) -> Array:
    """Virtual-channel group of every egress queue: classes, their responses, acknowledgements, notifications."""
    n = len(p.classes)
    if config.channels == "one":
        return np.zeros(2 * n + 2, np.int64)
    if config.channels == "class":
        return np.concatenate([np.arange(n), np.arange(n), [n, n]]).astype(np.int64)
    # requests and stores; responses and acknowledgements
    return np.concatenate([np.zeros(n), np.ones(n), [1, 0]]).astype(np.int64)


def constants(p: Program, config: FabricConfig, pw: Array) -> Array:
    """The constants C_*."""
    m = p.machine
    c = np.zeros(32, np.int64)
    wired = p.ops.wire >= 0
    per_op = np.diff(p.members.ptr)
    most = int(per_op[wired].max(initial=1))
    fills = int(np.diff(p.members.fill_ptr).max(initial=1)) or 1
    n_groups = {"two": 2, "one": 1, "class": len(p.classes) + 1}[config.channels]
    if n_groups > f.MAX_GROUPS:
        raise ConfigError(f"fabric.channels: found {n_groups} groups of virtual channels, expected at most {f.MAX_GROUPS}")
    data = pw[:, [f.PW_FULL, f.PW_LAST, f.PW_AUX, f.PW_AUX_LAST]].max(initial=0)
    ext = 0 if p.members.ext_bytes is None else int(p.members.ext_bytes.max(initial=0)) // m.flit
    note = m.notify_bytes // m.flit
    sizes = int(max(pw[:, f.PW_UP_H : f.PW_RESULT_H + 1].max(initial=0) + data + ext, note)) + 1
    exts = int((pw[:, f.PW_UP_H] - pw[:, f.PW_DOWN_H]).max(initial=0)) + 1
    per_plane = -(-m.n_links // config.n_planes)
    vc_flits = m.vc_bytes // m.flit // m.n_links if config.vc_flits < 0 else config.vc_flits
    if m.vc_bytes and config.vc_flits < 0:
        vc_flits = max(1, vc_flits)
    total = p.n_nodes * m.n_links
    values = {
        f.C_LINKS: m.n_links, f.C_TOTAL: total, f.C_GROUPS: n_groups, f.C_VPG: m.n_vcs if config.n_vcs < 0 else config.n_vcs,
        f.C_PORTS: p.n_nodes * per_plane, f.C_LAT: m.lat, f.C_CYCLE: config.cycle_ps, f.C_VC_FLITS: vc_flits,
        f.C_RESPONDER: m.responder, f.C_AL: config.al_entries, f.C_AL_MISS: config.al_miss_ps, f.C_FETCH: config.fetch_ps,
        f.C_QUEUE: config.queue_entries, f.C_TIMEOUT: config.reduction_timeout_ps, f.C_STRIPE: STRIPES.index(config.stripe),
        f.C_CLASSES: len(p.classes), f.C_ACK_GROUP: {"two": 1, "one": 0, "class": n_groups - 1}[config.channels],
        f.C_NOTE_GROUP: 0, f.C_SIZES: sizes, f.C_EXT: 2 * exts, f.C_PER_PLANE: per_plane, f.C_FILLS: fills,
        f.C_ANSWERS: config.answer_entries, f.C_NOTE_FLITS: note, f.C_BANKS: config.al_banks, f.C_BANK_PS: config.al_bank_ps,
        f.C_MARGIN: total * (most + 3) + int(p.regions.tile_rows.max(initial=0)) + 64,
    }  # fmt: skip
    for column, value in values.items():
        c[column] = value
    c[f.C_INGRESS] = c[f.C_VPG] * vc_flits if vc_flits else NEVER
    return c


def grow(a: Lowered, fabric: Fabric, n_slots: int) -> Fabric:
    """The same state with room for `n_slots` packets, and twice the credits on their way if those are what is full."""
    old = len(fabric.pk)
    pk = np.zeros((n_slots, 16), np.int32)
    pk[:old] = fabric.pk
    pq = np.zeros(n_slots, np.int32)
    pq[:old] = fabric.pq
    pool = np.zeros(n_slots, np.int64)
    free = int(a.x[f.X_FREE])
    pool[: n_slots - old] = np.arange(n_slots - 1, old - 1, -1)
    pool[n_slots - old : n_slots - old + free] = fabric.pool[:free]
    a.x[f.X_FREE] = free + n_slots - old
    n_ports = len(fabric.ports)
    sessions = np.zeros((n_slots + n_ports, 6), np.int64)
    sessions[:old], sessions[n_slots:] = fabric.sessions[:old], fabric.sessions[old:]
    sessions[old:n_slots] = tables.SESSION_EMPTY
    links = sessions[:, [tables.S_PREV, tables.S_NEXT]]
    sessions[:, [tables.S_PREV, tables.S_NEXT]] = np.where(links >= old, links + n_slots - old, links)
    idle = np.zeros((n_slots, 4), np.int64)
    idle[:old] = fabric.idle
    fills = int(fabric.c[f.C_FILLS])
    waiters = np.zeros((n_slots * fills, 2), np.int64)
    waiters[: old * fills] = fabric.waiters
    fabric.c[f.C_SLOTS] = n_slots
    cr_due, cr_what = fabric.cr_due, fabric.cr_what
    first, last, size = int(a.x[f.X_CREDIT_READ]), int(a.x[f.X_CREDITS]), len(cr_due)
    if last - first > size // 2:
        at = np.arange(first, last)
        cr_due, cr_what = np.zeros(2 * size, np.int64), np.zeros(2 * size, np.int64)
        cr_due[at % (2 * size)], cr_what[at % (2 * size)] = fabric.cr_due[at % size], fabric.cr_what[at % size]
    fabric = fabric._replace(cr_due=cr_due, cr_what=cr_what)
    return fabric._replace(pk=pk, pt=pk.view(np.int64), pq=pq, pool=pool, sessions=sessions, idle=idle, waiters=waiters)
