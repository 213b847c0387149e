"""The trains of every link direction as intervals, from the log of a run.

Where intervals of one link touch, they are cut so that their lengths sum exactly: the wire bytes before a cut, over the rate, rounded down
to a picosecond (docs/design/0014-look-and-studies.md).
"""

import numpy as np

from dysharp.analysis.count import loads_that_went_on, remote_members
from dysharp.analysis.timeline.record import Log, Recording
from dysharp.base import I64, PS_PER_US, SimulationError, frozen
from dysharp.program import PULLS, Program, owners, sides_of

UP, DOWN = 0, 1
DATA, REQUEST, RESPONSE, RESULT, ACKS = range(5)
KINDS = ("data", "requests", "responses", "results", "acknowledgements")
POOL_GROUP = "SMs"
UP_GROUP, DOWN_GROUP = "up link", "down link"
GROUPS = ("operators", POOL_GROUP, UP_GROUP, DOWN_GROUP)
"""The groups of tracks of a GPU, in the order of the viewer."""


@frozen
class Trains:
    """Intervals on the links of one direction, sorted by port and time. Columns `[n]` int64.

    `port`: network * nodes + node. `kind`: index into `KINDS`. `op`, `member`: what is sent, -1 = acknowledgements (`member` -1: an op's
    train to all, or a result).
    """

    port: I64
    start: I64
    end: I64
    kind: I64
    op: I64
    member: I64
    n_bytes: I64


def link_groups(program: Program) -> list[tuple[str, str]]:
    """(group of the links out, group of the links in) of every network; NVLink is the first.

    Links between pairs have groups of their own: "xgmi +3 out" of GPU i leads to the GPU three places on.
    """
    steps = [f" +{net.step}" if net.step else "" for net in program.nets]
    others = [(out.replace(" ", f"{step} "), into.replace(" ", f"{step} ")) for step, (out, into) in zip(steps, sides_of(program)[1:], strict=True)]
    return [(UP_GROUP, DOWN_GROUP), *others]


def link_trains(run: Recording) -> tuple[Trains, Trains]:
    """The trains of the up links and of the down links."""
    return _up(run), _down(run)


def _up(run: Recording) -> Trains:
    """Trains and responses, known by their time: an up link grants at most one thing at an instant."""
    p, t = run.program, run.trace
    remote, owner, pull = remote_members(p), owners(p.members.ptr), np.isin(p.kinds(), PULLS)
    leaves = np.zeros(p.n_ops, np.bool_)
    leaves[owner[remote]] = True
    ops = np.flatnonzero(leaves & (p.ops.wire >= 0))
    answers = np.flatnonzero(remote & pull[owner] & loads_that_went_on(p, t)[owner])
    op = np.concatenate([ops, owner[answers]])
    member = np.concatenate([np.full(len(ops), -1), answers])
    port = np.concatenate([p.ops.node[ops], p.members.node[answers]]) + p.op_net()[op].astype(np.int64) * p.n_nodes
    at = np.concatenate([t.start[ops], t.member[answers]])
    kind = np.where(member >= 0, RESPONSE, np.where(pull[op], REQUEST, DATA))
    wires = p.wires
    n_bytes = np.where(member >= 0, wires.response[p.ops.wire[op]], wires.up[p.ops.wire[op]])
    mine, logged = np.lexsort((at, port)), _by_port(run.up)
    log = _ordered(run.up, logged)
    if not np.array_equal(at[mine], log.at) or not np.array_equal(port[mine], log.where):
        raise SimulationError(f"log of up links: found {len(log.at)} trains, expected the {len(at)} of the Trace")
    return _placed(run, log, t.up_busy, kind[mine], op[mine], member[mine], n_bytes[mine])


def _down(run: Recording) -> Trains:
    """Copies, requests and results, which the log names."""
    p, wires = run.program, run.program.wires
    log = _ordered(run.down, _by_port(run.down))
    result = log.what < 0
    member = np.where(result, -1, log.what)
    op = np.where(result, -2 - log.what, owners(p.members.ptr)[member])
    kind = np.where(result, RESULT, np.where(np.isin(p.kinds(), PULLS)[op], REQUEST, DATA))
    pulled = result & np.isin(p.kinds(), PULLS)[op]  # a sum of pushes is as long as a contribution
    n_bytes = np.where(pulled, wires.result[p.ops.wire[op]], wires.down[p.ops.wire[op]])
    if p.members.ext_bytes is not None:
        n_bytes += np.where(result, 0, p.members.ext_bytes[member])
    return _placed(run, log, run.trace.down_busy, kind, op, member, n_bytes)


def _by_port(log: Log) -> I64:
    """The order by port and time of a log, which is in the order of time."""
    return np.argsort(log.where.astype(np.int16), kind="stable")


def _ordered(log: Log, order: I64) -> Log:
    return Log(log.at[order], log.until[order], log.what[order], log.count[order], log.where[order])


def _placed(run: Recording, log: Log, busy: I64, kind: I64, op: I64, member: I64, n_bytes: I64) -> Trains:
    """Trains with their acknowledgements in front, as intervals of exact total length. `busy`: `[n_ports]` wire bytes."""
    parts = []
    ptr, rates = np.searchsorted(log.where, np.arange(run.program.n_ports + 1)), run.program.port_rate
    for port in range(run.program.n_ports):
        here = slice(int(ptr[port]), int(ptr[port + 1]))
        start, end, sizes = _cut(log.at[here], log.until[here], log.count[here], n_bytes[here], int(busy[port]), int(rates[port]), run.trace.time_ps)
        train = slice(1, None, 2)
        columns = [np.full(len(sizes), value) for value in (port, ACKS, -1, -1)]
        for column, values in zip(columns[1:], (kind, op, member), strict=True):
            column[train] = np.append(values[here], column[-1])
        rows = np.stack([columns[0], start, end, *columns[1:], sizes])
        parts.append(rows[:, sizes > 0])
    return Trains(*np.concatenate(parts, axis=1))


def _cut(at: I64, until: I64, count: I64, wire: I64, busy: int, rate: int, time_ps: int) -> tuple[I64, I64, I64]:
    """(start, end, bytes) of one link, `[2 * n + 2]`: before each train its acknowledgements, at the end the acknowledgements without a train."""
    acks = count - wire
    gap = at - np.concatenate([[0], until[:-1]])
    served = acks - np.minimum(acks, np.maximum(gap, 0) * rate // PS_PER_US)
    left = busy - int(count.sum())
    last = max(int(until[-1]) if len(until) else 0, time_ps) + -(-left * PS_PER_US // rate)
    sizes = np.concatenate([np.stack([acks, wire], axis=1).ravel(), [left, 0]])
    latest = np.concatenate([np.stack([at - (-served * PS_PER_US // rate), until], axis=1).ravel(), [last, last]])
    reach = np.cumsum(sizes) * PS_PER_US // rate
    # Going back from the end, a slice makes way for the slices behind it.
    end = reach + np.minimum.accumulate((latest - reach)[::-1])[::-1]
    return end - np.diff(reach, prepend=0), end, sizes
