"""Who waits for whom in a packet fabric where nothing moves."""

from __future__ import annotations

import numpy as np

from dysharp.engine.burst.lower import Lowered
from dysharp.engine.packet.fabric import Fabric
from dysharp.program.tables import Program
from dysharp.uarch.packet import columns as f

Resource = tuple[str, int, int]  # ("up", link, 0), ("vc", link, vc), ("down", link, group), ("hub", link, 0)


def cycle_text(p: Program, a: Lowered, fabric: Fabric) -> str:
    """"; A waits for B waits for A" of the first cycle of resources found, or nothing: then no packet is stuck, only ops are."""
    graph = _graph(p, a, fabric)
    for start in sorted(graph):
        chain: list[Resource] = []
        at: Resource | None = start
        while at is not None and at not in chain:
            chain.append(at)
            at = graph.get(at)
        if at is not None:
            ring = chain[chain.index(at) :]
            return "; " + " waits for ".join(_name(p, r) for r in [*ring, ring[0]])
    return ""


def _name(p: Program, r: Resource) -> str:
    kind, link, number = r
    where = f"gpu[{link // p.machine.n_links}].link[{link % p.machine.n_links}]"
    return {
        "up": f"{where}.up",
        "vc": f"{where} switch buffer VC {number}",
        "down": f"{where}.down",
        "hub": f"{where} hub buffer",
    }[kind]


def _graph(p: Program, a: Lowered, fabric: Fabric) -> dict[Resource, Resource]:
    """What each stuck resource waits for: an up link for the buffer it would fill, a VC for the output of its head, an output for room in
    the hub behind it, a hub for its answers to leave by the up link."""
    c = fabric.c
    graph: dict[Resource, Resource] = {}
    vpg, n_groups = int(c[f.C_VPG]), int(c[f.C_GROUPS])
    for i in np.flatnonzero(fabric.lk[:, f.LK_MASK] != 0):
        queue = (int(fabric.lk[i, f.LK_MASK]) & -int(fabric.lk[i, f.LK_MASK])).bit_length() - 1
        first = int(fabric.groups[queue]) * vpg
        graph["up", int(i), 0] = ("vc", int(i), first + int(fabric.occ[i, first : first + vpg].argmin()))
    n_vcs = fabric.occ.shape[1]
    waiting = {}  # head of a VC -> output
    n_ports = int(c[f.C_PORTS])
    for row in np.flatnonzero(fabric.oq[:, 0] >= 0):
        o, group = divmod(int(row) // (n_ports + 1), n_groups)
        packet = int(fabric.oq[row, 0])
        if int(row) % (n_ports + 1) < n_ports:
            link, vc = int(fabric.pk[packet, f.PK_LINK]), int(fabric.pk[packet, f.PK_VC])
            waiting[link * n_vcs + vc] = (o % len(fabric.lk), group)
    for at, (down, group) in waiting.items():
        graph["vc", at // n_vcs, at % n_vcs] = ("down", down, group)
        if fabric.held[down, group]:
            graph["down", down, group] = ("hub", down, 0)
    for stuck in np.flatnonzero(fabric.rq[:, 0] >= 0):
        graph["hub", int(stuck), 0] = ("up", int(stuck), 0)
    return graph
