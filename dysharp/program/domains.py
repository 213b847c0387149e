"""Checks of Programs of several NVLink domains: networks, and who may send to whom (docs/design/0012-several-domains.md)."""

import numpy as np

from dysharp.base import Array, ProgramError
from dysharp.program.builder import WIRED
from dysharp.program.names import fail_where, row_name
from dysharp.program.payload import Columns
from dysharp.program.tables import Kind, Program


def _domain_of(program: Program) -> Array:
    """`[n_nodes]` int32: the NVLink domain of every node."""
    nodes = np.arange(program.n_nodes, dtype=np.int32)
    return nodes // np.int32(program.domain_nodes or program.n_nodes)


def train_bytes_of(program: Program) -> Array:
    """`[n_templates]` int64: payload bytes of a full train on the network of each template."""
    most = (program.hardware.train_bytes, *(net.train_bytes for net in program.nets))
    return np.array([most[t.net] for t in program.templates], np.int64)


def check_nets(p: Program) -> None:
    """Constants of networks are in range. Tables of hubs and sessions of the switch belong to NVLink."""
    if p.domain_nodes < 0 or (p.domain_nodes and p.n_nodes % p.domain_nodes):
        raise ProgramError(f"program: found {p.n_nodes} nodes in domains of {p.domain_nodes}, expected a multiple")
    for net in p.nets:
        least = {"rate": 1, "lat": 0, "ack": 0, "message_ps": 0, "train_bytes": 1}
        for name, value in least.items():
            if getattr(net, name) < value:
                raise ProgramError(f"network {net.name!r}: found {name} {getattr(net, name)}, expected {value} or more")
        if net.rates and (len(net.rates) != p.n_nodes or min(net.rates) < 1):
            raise ProgramError(f"network {net.name!r}: found {len(net.rates)} rates of nodes, expected {p.n_nodes} of 1 or more")
        if (net.step or net.ring) and (not 1 <= net.step < net.ring or p.n_nodes % net.ring):
            expected = f"a step of 1 .. ring - 1, in rings that divide {p.n_nodes} nodes"
            raise ProgramError(f"network {net.name!r}: found step {net.step} in rings of {net.ring}, expected {expected}")
    for i, t in enumerate(p.templates):
        where = f"template {i} ({t.name})"
        if not 0 <= t.net < p.n_nets:
            raise ProgramError(f"{where}: found network {t.net}, expected 0 .. {p.n_nets - 1}")
        if not t.net:
            continue
        if t.kind not in WIRED or t.kind in (Kind.PUSH_REDUCE, Kind.MERGED_LOAD):
            raise ProgramError(f"{where}: found {t.kind.name} in network {t.net}, expected a transfer without a session")
        if p.nets[t.net - 1].step and t.kind not in (Kind.PUT, Kind.SIGNAL):
            raise ProgramError(f"{where}: found {t.kind.name} on links between pairs, expected PUT or SIGNAL (no switch, no way back)")
        if t.table >= 0:
            raise ProgramError(f"{where}: found table {t.table} in network {t.net}, expected none (hubs have tables)")


def check_domains(c: Columns) -> None:
    """Transfers by NVLink and notifications of tiles stay inside one domain. A link between a pair leads to its peer alone."""
    p = c.p
    _check_pairs(c)
    if not p.domain_nodes or p.domain_nodes == p.n_nodes:
        return
    domain = _domain_of(p)
    by_nvlink = c.by_template(np.array([t.net == 0 for t in p.templates], bool))
    crosses = by_nvlink[c.owner] & (domain[p.members.node] != domain[p.ops.node[c.owner]])

    def text(m: int) -> str:
        op, node = int(c.owner[m]), int(p.members.node[m])
        home = f"domain {domain[p.ops.node[op]]} of node {p.ops.node[op]}"
        return f"{c.name(op)}: found member {node} of domain {domain[node]} by NVLink, expected one of {home}"

    fail_where(crosses, text)
    told = np.flatnonzero(p.regions.row_notify >= 0)
    here = np.repeat(p.regions.node, np.diff(p.regions.row_ptr))[told]
    owner = p.ops.node[p.regions.row_notify[told]]

    def told_text(i: int) -> str:
        return f"{row_name(p, int(told[i]))}: found a notification to node {owner[i]}, expected one inside domain {domain[here[i]]}"

    fail_where(domain[here] != domain[owner], told_text)


def _check_pairs(c: Columns) -> None:
    """Members of ops on links between pairs are the peers of their nodes (or the node itself, which uses no link)."""
    for number, net in enumerate(c.p.nets, start=1):
        if not net.step:
            continue
        here = c.by_template(np.array([t.net == number for t in c.p.templates], bool))[c.owner]
        node, to = c.p.ops.node[c.owner], c.p.members.node
        peer = net.peer(node)

        def text(m: int, peer: Array = peer) -> str:
            return f"{c.name(int(c.owner[m]))}: found member {c.p.members.node[m]} on the link to node {peer[m]}, expected that node"

        fail_where(here & (to != node) & (to != peer), text)
