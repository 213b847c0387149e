"""Bytes on the links: payload is counted from the events of a Trace, wire bytes from the tables of the Program.

Both counts group the ops by (node, template, wire row). A layer with millions of ops has a few dozen groups.
"""

import numpy as np

from dysharp.base import I64, Bools, Tally, frozen
from dysharp.program import PULLS, Kind, Nature, Program, Trace, sides_of

TERMS = ("payload", "headers", "requests", "acks", "notifications")


@frozen
class _Groups:
    """Transfers grouped by (template, wire row).

    | field | int64 | meaning |
    |---|---|---|
    | `sent` | `[n_nodes, n_groups]` | ops of this source node with a member on another node |
    | `copies` | `[n_nodes, n_groups]` | members on this node of ops of other nodes; one of those that merge in the switch |
    | `ext` | `[n_nodes, n_groups]` | extra wire bytes of `copies` (`Members.ext_bytes`) |

    The fields below have shape `[n_groups]`.
    """

    template: I64
    wire: I64
    payload: I64  # [2, n_groups] bytes of one copy up and down, aux excluded; of a pull, of its response and its result
    is_pull: Bools
    sent: I64
    copies: I64
    ext: I64


def remote_members(program: Program) -> Bools:
    """`[n_members]` bool: the member is on another node than the source of its op, so its copy uses links."""
    source = np.repeat(program.ops.node, np.diff(program.members.ptr))
    remote: Bools = source != program.members.node
    return remote


def sums_that_passed(program: Program, trace: Trace) -> Bools:
    """`[n_sessions]` bool: the sum had no place in the switch, so its contributions were delivered one by one.

    Contributions of a sum that was added are delivered at one instant; single ones follow each other on one link.
    """
    ops, session = _far(program, Kind.PUSH_REDUCE)
    n = 0 if program.sessions is None else len(program.sessions.home)
    first, last = np.full(n, np.iinfo(np.int64).max), np.full(n, -1, np.int64)
    delivered = trace.member[program.members.ptr[ops]]
    np.minimum.at(first, session, delivered)
    np.maximum.at(last, session, delivered)
    return first < last


def _far(program: Program, kind: Kind) -> tuple[I64, I64]:
    """(ops, their sessions): ops of a merging kind from other nodes than the home, by session."""
    if program.ops.session is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ops = np.flatnonzero(program.kinds() == kind)
    ops = ops[program.members.node[program.members.ptr[ops]] != program.ops.node[ops]]
    session = program.ops.session[ops].astype(np.int64)
    order = np.argsort(session, kind="stable")
    return ops[order], session[order]


def loads_that_went_on(program: Program, trace: Trace | None) -> Bools:
    """`[n_ops]` bool: False for MERGED_LOADs that the response to an equal load answered. Without a Trace the first of every `expected` goes on.

    The switch answers a merged load at one instant, which is its end; the response to another load ends behind the grant of its first byte.
    """
    on = np.ones(program.n_ops, np.bool_)
    ops, address = _far(program, Kind.MERGED_LOAD)
    if program.sessions is None or not len(ops):
        return on
    if trace is not None:
        on[ops] = trace.end[ops] > trace.member[program.members.ptr[ops]]
    else:
        size = np.bincount(address, minlength=len(program.sessions.home))
        on[ops] = (np.arange(len(ops)) - (np.cumsum(size) - size)[address]) % program.sessions.expected[address] == 0
    return on


def copied_members(program: Program, passed: Bools | None = None, trace: Trace | None = None) -> Bools:
    """`[n_members]` bool: a copy for the member, or a request, uses a link of its node.

    Of a sum in the switch one copy goes on, for its first contribution here. `passed`: as from `sums_that_passed`; None: no sum.
    Of merged loads the request goes on that `loads_that_went_on` names.
    """
    copied = remote_members(program)
    ops, session = _far(program, Kind.PUSH_REDUCE)
    later = session[1:] == session[:-1]
    if passed is not None and len(ops):
        later &= ~passed[session[1:]]
    copied[program.members.ptr[ops[1:][later]]] = False
    copied[program.members.ptr[:-1][~loads_that_went_on(program, trace)]] = False
    return copied


def group_transfers(program: Program, happened: Bools | None = None, passed: Bools | None = None, trace: Trace | None = None) -> _Groups:
    """Group the transfers of `program`. `happened`: `[n_members]` bool, members to count (default: all). Others: see `copied_members`."""
    ops, members, n_nodes = program.ops, program.members, program.n_nodes
    n_wires = max(1, len(program.wires.up))
    code = ops.template * np.int32(n_wires) + ops.wire
    wired = ops.wire >= 0
    present = np.flatnonzero(np.bincount(code[wired], minlength=1))
    index = np.zeros(len(program.templates) * n_wires + 1, np.int32)
    index[present] = np.arange(len(present), dtype=np.int32)
    group = index[np.where(wired, code, -1)]  # ops without a wire have no members and are never counted
    n = max(1, len(present))

    remote = remote_members(program)
    if happened is not None:
        remote &= happened
    per_op = np.diff(members.ptr)
    cell = np.repeat(group, per_op) + members.node * np.int32(n)
    copied = remote & copied_members(program, passed, trace) if program.sessions is not None else remote
    copies = np.bincount(cell[copied], minlength=n_nodes * n)
    running = np.zeros(len(remote) + 1, np.int32)
    np.cumsum(remote, out=running[1:])
    leaves = (running[members.ptr[1:]] > running[members.ptr[:-1]]) & wired
    sent = np.bincount((group + ops.node * np.int32(n))[leaves], minlength=n_nodes * n)
    ext = np.zeros(n_nodes * n, np.int64)
    if members.ext_bytes is not None:
        ext += np.bincount(cell[remote], weights=members.ext_bytes[remote], minlength=n_nodes * n).astype(np.int64)

    payload = np.zeros((2, n), np.int64)
    payload[:, group[wired]] = ops.bytes[wired]  # one size per wire row (the verifier checks this)
    template, wire = np.divmod(present, n_wires)
    for g, t in enumerate(template):
        framing = program.framings[program.templates[t].framing]
        payload[:, g] = [framing.cast_bytes(int(size), cast) for size, cast in zip(payload[:, g], (framing.answer, framing.total), strict=True)]
    pulls = np.array([program.templates[t].kind in PULLS for t in template], np.bool_)
    k = len(present)
    shape = (n_nodes, n)
    return _Groups(
        template.astype(np.int64), wire.astype(np.int64), payload[:, :k], pulls, sent.reshape(shape)[:, :k].astype(np.int64),
        copies.reshape(shape)[:, :k].astype(np.int64), ext.reshape(shape)[:, :k],
    )  # fmt: skip


def traffic_bytes(program: Program, trace: Trace, groups: _Groups | None = None) -> dict[str, Tally]:
    """Payload bytes that crossed links: `{"up": {operator: bytes}, "down": {...}}`, summed over nodes.

    "up" and "down" are NVLink. Another network NAME has the sides "NAME out" and "NAME in".

    Only members that happened in `trace` count. A push counts once up, and once down per copy. A pull counts once up per response, and once down.
    Members on the source's own node use no link. Bytes of gate weights or of their gradients behind a row (`Wires.aux`) count as the host operator.
    Operators of nature communication and host are always there, others where they move bytes. `groups`: the groups of all members, if the caller has
    them.
    """
    partial = trace.member.min(initial=0) < 0
    if groups is None or partial:
        groups = group_transfers(program, trace.member >= 0 if partial else None, sums_that_passed(program, trace), trace)
    return _traffic(program, groups)


def _traffic(program: Program, groups: _Groups) -> dict[str, Tally]:
    sides = sides_of(program)
    always = program.with_nature(Nature.COMMUNICATION, Nature.HOST)
    out = {side: dict.fromkeys(always, 0) for pair in sides for side in pair}
    for g in range(len(groups.template)):
        template = program.templates[groups.template[g]]
        out_side, in_side = sides[template.net]
        name = template.operator
        once, each = int(groups.sent[:, g].sum()), int(groups.copies[:, g].sum())
        up, down = (each, once) if groups.is_pull[g] else (once, each)
        aux = int(program.wires.aux[groups.wire[g]])
        for side, times, size in ((out_side, up, groups.payload[0, g]), (in_side, down, groups.payload[1, g])):
            out[side][name] = out[side].get(name, 0) + times * int(size)
            out[side][program.host_beside(name)] += times * aux
    return out


@frozen
class WireTable:
    """Wire bytes of a complete run, `[n_ports, len(TERMS)]` int64 per direction, columns in the order of `TERMS`.

    Payload includes gate weights behind rows. Headers include extension flits and the padding of the last flit. The sum
    over terms equals `Trace.up_busy` and `Trace.down_busy`.
    """

    up: I64
    down: I64
    n_nodes: int

    def flits(self, flit_bytes: int) -> Tally:
        """All flits on NVLink: `{"up", "down"}`, summed over nodes."""
        n = self.n_nodes
        return {"up": int(self.up[:n].sum()) // flit_bytes, "down": int(self.down[:n].sum()) // flit_bytes}


def wire_table(program: Program, groups: _Groups | None = None) -> WireTable:
    """The wire bytes that `program` puts on every link direction, by term, without running it."""
    g = group_transfers(program) if groups is None else groups
    w, pull = program.wires, g.is_pull
    trains = w.trains[g.wire]
    body, total = g.payload + w.aux[g.wire]
    n = program.n_nodes
    up, down = np.zeros((2, program.n_ports, len(TERMS)), np.int64)
    group_net = np.array([program.templates[t].net for t in g.template], np.int64)
    of_net = [np.flatnonzero(group_net == net) for net in range(program.n_nets)]

    def add(table: I64, term: str, counts: I64, size: I64) -> None:
        for net, mine in enumerate(of_net):
            table[net * n : (net + 1) * n, TERMS.index(term)] += counts[:, mine] @ size[mine]

    add(up, "payload", g.sent, np.where(pull, 0, body))
    add(up, "headers", g.sent, np.where(pull, 0, trains * w.up[g.wire] - body))
    add(up, "requests", g.sent, np.where(pull, w.up[g.wire], 0))
    add(up, "payload", g.copies, np.where(pull, body, 0))
    add(up, "headers", g.copies, np.where(pull, w.response[g.wire] - body, 0))
    add(up, "acks", g.copies, np.where(pull, 0, trains * w.ack_up[g.wire]))
    add(down, "payload", g.copies, np.where(pull, 0, total))
    add(down, "headers", g.copies, np.where(pull, 0, trains * w.down[g.wire] - total))
    add(down, "headers", g.ext, np.where(pull, 0, 1))
    add(down, "requests", g.copies, np.where(pull, w.down[g.wire], 0))
    add(down, "requests", g.ext, np.where(pull, 1, 0))
    add(down, "payload", g.sent, np.where(pull, total, 0))
    add(down, "headers", g.sent, np.where(pull, w.result[g.wire] - total, 0))
    add(down, "acks", g.sent, np.where(pull, 0, trains * w.ack_down[g.wire]))
    _add_notifications(program, up, down)
    return WireTable(up, down, n)


def _add_notifications(program: Program, up: I64, down: I64) -> None:
    """Add one packet on both ends per row that notifies an op on another node."""
    regions, column = program.regions, TERMS.index("notifications")
    if not (regions.row_notify >= 0).any():
        return
    here = np.repeat(regions.node, np.diff(regions.row_ptr))
    owner = np.where(regions.row_notify >= 0, program.ops.node[regions.row_notify], here)
    remote = owner != here
    for table, node in ((up, here), (down, owner)):
        table[: program.n_nodes, column] += np.bincount(node[remote], minlength=program.n_nodes) * program.hardware.notify_bytes
