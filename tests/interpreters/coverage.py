"""Counts of visits: how often a Program and its run visited each branch of docs/design/0001."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dysharp.oracle.run import OracleRun
from dysharp.program.tables import Alloc, Chaining, Discipline, Head, Kind, Point, Program, Tail
from dysharp.program.trace import Trace


def coverage(program: Program, run: OracleRun) -> dict[str, int]:
    """Counts by name, additive over Programs: kinds, edge points, disciplines, holds, full tables, ties.

    `run`: that of `program` on the oracle, played to its end.
    """
    counts: Counter[str] = Counter({"programs": 1, "ops": program.n_ops})
    _count_tables(program, counts)
    _count_members(program, counts)
    _count_times(program, run.trace(), counts)
    for name, n in run.world.counts.items():
        counts[f"run: {name}"] += n
    return dict(sorted(counts.items()))


def _by_name(counts: Counter[str], prefix: str, enum: type, column: NDArray[np.int32]) -> None:
    for value, n in zip(*np.unique(column, return_counts=True), strict=True):
        counts[f"{prefix}.{enum(int(value)).name}"] += int(n)


def _count_tables(program: Program, counts: Counter[str]) -> None:
    edges, holds, issuers = program.edges, program.holds, program.issuers
    _by_name(counts, "kind", Kind, program.kinds())
    _by_name(counts, "tail", Tail, edges.tail_kind)
    _by_name(counts, "head", Head, edges.head_kind)
    _by_name(counts, "alloc", Alloc, program.regions.alloc)
    _by_name(counts, "acquire", Point, holds.acquire_kind)
    _by_name(counts, "release", Point, holds.release_kind)
    ops = program.ops
    if program.chains is not None and ops.chain is not None:
        _by_name(counts, "chain", Chaining, program.chains.mode)
        counts["op of a chain"] += int((ops.chain >= 0).sum())
    if ops.threshold is not None:
        counts["JOIN with a threshold"] += int((ops.threshold >= 0).sum())
    if ops.value is not None:
        counts["announcement"] += int((ops.value > 0).sum())
    if program.sessions is not None and ops.session is not None:
        counts["places of a home" if program.sessions.places else "any number of places"] += 1
        for kind, one, several, near in (
            (Kind.PUSH_REDUCE, "sum of one contribution", "sum of several contributions", "contribution of the home"),
            (Kind.MERGED_LOAD, "load expected alone", "loads expected together", "load of the home"),
        ):
            mine = program.kinds() == kind
            merged = program.sessions.expected[ops.session[mine]]
            counts[one] += int((merged == 1).sum())
            counts[several] += int((merged > 1).sum())
            counts[near] += int((program.members.node[program.members.ptr[:-1][mine]] == ops.node[mine]).sum())
    counts["paced issuer"] += int((issuers.interval_ps > 0).sum())
    issued = program.ops.issuer[program.ops.issuer >= 0]
    _by_name(counts, "issued by", Discipline, issuers.discipline[issued])
    own = holds.acquire == holds.release
    counts["hold given back by itself"] += int(own.sum())
    counts["hold given back by another op"] += int((~own).sum())
    counts["issuers that share a pool"] += len(issuers.pool) - len(np.unique(issuers.pool))
    counts["single node"] += program.n_nodes == 1
    counts["several networks"] += len(program.nets) > 0
    counts["slow node in a network"] += any(len(set(net.rates)) > 1 for net in program.nets)
    counts["cost of messages"] += any(net.message_ps > 0 for net in program.nets)
    counts["several trains of a row"] += int(program.ops.offset is not None and (program.ops.offset > 0).sum())
    counts["row table"] += program.row_table >= 0
    counts["row table of several banks"] += any(table.banks > 1 for table in program.tables)
    counts["infinite buffers"] += program.hardware.vc_bytes == 0


def _count_members(program: Program, counts: Counter[str]) -> None:
    per_op = np.diff(program.members.ptr)
    owner = np.repeat(np.arange(program.n_ops), per_op)
    local = program.members.node == program.ops.node[owner]
    wired = program.ops.wire >= 0
    remote_of = np.bincount(owner, weights=~local, minlength=program.n_ops)
    counts["member.local"] += int(local.sum())
    counts["member.remote"] += int((~local).sum())
    counts["member fills several rows"] += int((np.diff(program.members.fill_ptr) > 1).sum())
    counts["op without members"] += int((wired & (per_op == 0)).sum())
    counts["op with local members only"] += int((wired & (per_op > 0) & (remote_of == 0)).sum())
    counts["op with local and remote members"] += int((wired & (remote_of > 0) & (remote_of < per_op)).sum())
    if program.members.ext_bytes is not None:
        counts["copy with extra bytes"] += int((program.members.ext_bytes > 0).sum())
    regions = program.regions
    tells = regions.row_notify >= 0
    home = np.repeat(regions.node, np.diff(regions.row_ptr))
    same = program.ops.node[regions.row_notify[tells]] == home[tells]
    counts["notify.local"] += int(same.sum())
    counts["notify.remote"] += int((~same).sum())
    counts["region without rows"] += int((np.diff(regions.row_ptr) == 0).sum())
    counts["short last tile"] += int((np.diff(regions.row_ptr) % regions.tile_rows != 0).sum())
    by_class = {(t.cls, t.response_cls) for t in program.templates if t.kind in (Kind.GET, Kind.PULL_REDUCE)}
    counts["pull answered in its own class"] += sum(a == b for a, b in by_class)


def _count_times(program: Program, trace: Trace, counts: Counter[str]) -> None:
    waited = trace.issue > trace.ready
    counts["cancelled op"] += int((trace.done < 0).sum())
    holding = np.isin(np.arange(program.n_ops), program.holds.acquire)
    counts["issued later than ready"] += int(waited.sum())
    counts["issued later than ready, needs a semaphore"] += int((waited & holding).sum())
    counts["started later than issued"] += int((trace.start > trace.issue).sum())
    for name in ("ready", "start", "done", "member", "tile_ready"):
        times = getattr(trace, name)
        times = times[times > 0]
        counts[f"tie.{name}"] += len(times) - len(np.unique(times))
    everything = [np.unique(getattr(trace, n)) for n in ("start", "end", "done", "member", "tile_ready")]
    shared = np.concatenate(everything)
    counts["tie across columns"] += len(shared) - len(np.unique(shared))
