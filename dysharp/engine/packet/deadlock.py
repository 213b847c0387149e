"""Who waits for whom in a packet fabric where nothing moves."""

import numpy as np

from dysharp.engine.cycles import first_cycle
from dysharp.program.tables import Program
from dysharp.uarch.packet import columns as f
from dysharp.uarch.packet.state import Fabric

Resource = tuple[str, int, int]  # ("up", link, 0), ("vc", link, vc), ("down", link, group), ("hub", link, 0)


def cycle_text(p: Program, fabric: Fabric) -> str:
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
