"""Rules about bytes, rows and GEMMs of a pass: closed-form bytes, each useful row once, each GEMM tile once."""

from dataclasses import asdict

import numpy as np

from dysharp.analysis.count import group_transfers, sums_that_passed, wire_table
from dysharp.base import Array
from dysharp.program import PULLS, PUSHES, Kind, Point, Program, Trace, hardware_of, op_name, owners
from dysharp.program.tables import ALL_COLUMNS, ColumnRange
from dysharp.specs import Cluster
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.testing.conformance.case import CheckedPass, row_format
from dysharp.testing.conformance.rule import Lines, NotRun, rule
from dysharp.workload import traffic

OPERATORS = ("dispatch", "combine")
GEMMS = {"fwd": ("gemm1", "gemm2"), "bwd": ("gemm2_dgrad", "gemm2_wgrad", "gemm1_dgrad", "gemm1_wgrad")}


def _counted_traffic(program: Program, trace: Trace) -> dict[str, dict[str, Array]]:
    """Payload bytes that crossed links: {operator: {"up": `[n_nodes]`, "down": `[n_nodes]`}} int64."""
    p, n = program, program.n_nodes
    owner = owners(p.members.ptr)
    crossed = (p.members.node != p.ops.node[owner]) & (trace.member >= 0)
    sent = np.bincount(owner[crossed], minlength=p.n_ops) > 0
    out: dict[str, dict[str, Array]] = {}
    for i, t in enumerate(p.templates):
        if t.kind not in PUSHES + PULLS:
            continue
        ops = np.flatnonzero((p.ops.template == i) & sent & (trace.done >= 0))
        members = np.flatnonzero(crossed & (p.ops.template[owner] == i))
        if t.kind is Kind.PUSH_REDUCE and p.ops.session is not None:  # one copy for the contributions that come at one time
            _, first = np.unique(np.stack((p.ops.session[owner[members]], trace.member[members])), axis=1, return_index=True)
            members = members[first]
        framing, size = p.framings[t.framing], p.ops.bytes.astype(np.int64)
        sums, answers = (framing.cast_bytes(size, cast) for cast in (framing.total, framing.answer)) if t.kind in PULLS else (size, size)
        at_source = np.bincount(p.ops.node[ops], weights=sums[ops], minlength=n).astype(np.int64)
        at_members = np.bincount(p.members.node[members], weights=answers[owner[members]], minlength=n).astype(np.int64)
        up, down = (at_members, at_source) if t.kind in PULLS else (at_source, at_members)
        total = out.setdefault(t.operator, {"up": np.zeros(n, np.int64), "down": np.zeros(n, np.int64)})
        total["up"] += up
        total["down"] += down
    return out


def passed_bytes(case: CheckedPass) -> Array:
    """`[n_nodes]` bytes that come down besides the closed form: contributions but one of each sum of rows without a place in the switch."""
    sessions, n, ops = case.program.sessions, case.program.n_nodes, case.program.ops
    if sessions is None or ops.session is None:
        return np.zeros(n, np.int64)
    combine = np.array([t.operator == "combine" for t in case.program.templates])[ops.template] & (ops.session >= 0)
    size = np.zeros(len(sessions.home), np.int64)  # 0 for sums of control words
    size[ops.session[combine]] = ops.bytes[combine]
    passed = sums_that_passed(case.program, case.trace)
    return np.bincount(sessions.home[passed], weights=((sessions.expected - 1) * size)[passed], minlength=n).astype(np.int64)


@rule("pass")
def _payload_by_gpu(case: CheckedPass) -> Lines:
    """Payload bytes of Dispatch and Combine on every link equal the system's traffic scheme."""
    if case.program.nets:
        raise NotRun("schemes of several NVLink domains count networks, not links (payload_is_declared)")
    counted = _counted_traffic(case.program, case.trace)
    zero = np.zeros(case.program.n_nodes, np.int64)
    for operator in OPERATORS:
        moves = case.system.moves
        scheme = moves.sent if operator == "dispatch" else moves.back or moves.sent
        expected = traffic(case.layer.routing, scheme, 1, case.options)[operator]  # type: ignore[literal-required]
        summed = "sums" if operator == "combine" and hasattr(case.options, "sums") else operator
        for side, rows, word in (("up", expected["up_per_gpu"], operator), ("down", expected["down_per_gpu"], summed)):
            per_gpu = rows * ROW_BYTES[row_format(case.options, word)](case.layer.model)
            crossed = counted.get(operator, {}).get(side, zero)
            due = per_gpu + passed_bytes(case) if (operator, side) == ("combine", "down") else per_gpu
            for g in np.flatnonzero(crossed != due)[:1].tolist():
                yield f"traffic {side} of {operator} at GPU {g}: found {crossed[g]} B, expected {due[g]} B"


@rule("pass")
def _only_operators_move_rows(case: CheckedPass) -> Lines:
    """Only Dispatch, Combine and control words move bytes."""
    counted = _counted_traffic(case.program, case.trace)
    for operator in sorted(counted.keys() - {*OPERATORS, "other"}):
        for side, crossed in counted[operator].items():
            if crossed.any():
                yield f"traffic {side} of {operator}: found {crossed.sum()} B, expected none (dispatch, combine and other move bytes)"
    for t in case.program.templates:
        if t.operator == "other" and t.kind in PUSHES + PULLS and t.fn != "control":
            yield f'template {t.name}: found fn "{t.fn}" moved as operator "other", expected "control"'


def given_too_early(program: Program, trace: Trace) -> Lines:
    """One line where an op gives back what no op has taken yet."""
    h, points = program.holds, (Point.OP_ISSUED, Point.OP_DONE)
    ops = np.isin(h.acquire_kind, points) & np.isin(h.release_kind, points)
    taken, given = (
        np.where(kind[ops] == Point.OP_ISSUED, trace.issue[op[ops]], trace.done[op[ops]])
        for kind, op in ((h.acquire_kind, h.acquire), (h.release_kind, h.release))
    )
    for i in np.flatnonzero(given < taken)[:1].tolist():
        hold = int(np.flatnonzero(ops)[i])
        ends = op_name(program, int(h.release[hold])), op_name(program, int(h.acquire[hold]))
        yield f"semaphore {program.semaphores.name[h.sem[hold]]}: found it given by {ends[0]} at {given[i]} ps, expected after {ends[1]} takes it"


def not_of_the_cluster(program: Program, trace: Trace, cluster: Cluster) -> Lines:
    """Lines where constants are not those of `cluster` (a class may have a part of `n_vcs`), or bytes on links not those that the analysis counts:
    payload, headers, requests, acknowledgements."""
    for name, due in asdict(hardware_of(cluster)).items():
        if name != "n_vcs" and (found := getattr(program.hardware, name)) != due:
            yield f"hardware.{name}: found {found}, expected {due}, the cluster's"
    table = wire_table(program, group_transfers(program, passed=sums_that_passed(program, trace), trace=trace))
    for side, terms, busy in (("up", table.up, trace.up_busy), ("down", table.down, trace.down_busy)):
        for g in np.flatnonzero(terms.sum(axis=1) != busy)[:1].tolist():
            yield f"wire {side} of GPU {g}: found {terms[g].sum()} B counted, expected the {busy[g]} B sent"
        if (terms < 0).any():
            yield f"wire {side}: found a count of {int(terms.min())} B, expected 0 B or more"
        flits, sent = table.flits(program.hardware.flit)[side] * program.hardware.flit, int(busy[: program.n_nodes].sum())
        if flits != sent:
            yield f"wire {side}: found {flits} B in flits, expected the {sent} B sent"


@rule("pass")
def _semaphores_are_taken_first(case: CheckedPass) -> Lines:
    """No op gives back a semaphore before it is taken."""
    yield from given_too_early(case.program, case.trace)


@rule("pass")
def _useful_rows(case: CheckedPass) -> Lines:
    """Every (token, expert) row of the Routing exists once and has a slot, and its tile becomes ready."""
    r, routing, trace = case.program.regions, case.layer.routing, case.trace
    region = owners(r.row_ptr)
    expert = case.program.tiled_regions()[region]
    kept = routing.slot >= 0
    token = np.broadcast_to(np.arange(routing.n_tokens)[:, None], routing.slot.shape)[kept]
    gpu = routing.slot[kept] // routing.placement.slots_per_gpu
    pairs = [np.stack((r.node[region[expert]], r.row_key[expert])), np.stack((gpu, token))]
    planned, expected = (a[:, np.lexsort(a)] for a in pairs)
    if planned.shape != expected.shape or (planned != expected).any():
        yield f"useful rows: found {planned.shape[1]}, expected the Routing's {expected.shape[1]} (GPU, token) rows"
    slots = np.sort(trace.row_slot + r.row_ptr[region])
    if (slots != np.arange(case.program.n_rows)).any():
        yield "slots: found slots with no row or several rows, expected one row per slot"
    if (trace.tile_ready < 0).any():
        yield f"tiles: found {int((trace.tile_ready < 0).sum())} never ready, expected none"


@rule("pass")
def _gemm_tiles(case: CheckedPass) -> Lines:
    """Every GEMM computes every tile once, with all rows, on the GPU and SMs that hold it, in no less than its FLOPs' time at the peak."""
    case.needs_gemms()
    for fn in GEMMS[case.direction]:
        for columns in sorted({t.columns for t in case.program.templates if t.fn == fn and t.kind is Kind.COMPUTE}) or [ALL_COLUMNS]:
            yield from _wrong_tiles(case, fn, columns)


def _too_fast(case: CheckedPass, fn: str, ops: Array, part: float) -> Lines:
    """`part` of a GEMM, in less SM time than its FLOPs take at the peak (FP4, twice FP8, on an hw cluster), or on more slots than a GPU has SMs."""
    p, model, cluster = case.program, case.layer.model, case.layer.cluster
    pools = np.unique(p.issuers.pool[p.ops.issuer[ops]])
    slots = np.bincount(p.pools.node[pools], weights=p.pools.slots[pools]).max(initial=0)
    took = int(p.work_ps(ops).sum())
    peak = cluster.peak_flops_per_us("fp8") * (1 + bool(cluster.gpu))
    weights = model.hidden * model.expert_hidden * (model.n_matrices - 1 if fn.startswith("gemm1") else 1)
    least = 2e6 * int(p.ops.rows[ops].sum()) * weights * part * cluster.n_sms / peak
    if took < least or slots > cluster.n_sms:
        at_most = f"at least {least:.0f} ps, the time of its FLOPs at the peak, on its {cluster.n_sms} SMs"
        yield f"{fn}: found {took} ps of SM time on {slots:.0f} slots of a GPU, expected {at_most}"


def _wrong_tiles(case: CheckedPass, fn: str, columns: ColumnRange) -> Lines:
    p, r, routing = case.program, case.program.regions, case.layer.routing
    region = owners(r.tile_ptr)
    tiles = np.flatnonzero(p.tiled_regions()[region])
    first = (tiles - r.tile_ptr[region[tiles]]) * r.tile_rows[region[tiles]]
    size = np.minimum(r.tile_rows[region[tiles]], np.diff(r.row_ptr)[region[tiles]] - first)
    expected = np.stack((tiles, r.node[region[tiles]], size))
    per_gpu = np.bincount(routing.slot[routing.slot >= 0] // routing.placement.slots_per_gpu, minlength=p.n_nodes)
    templates = [i for i, t in enumerate(p.templates) if t.fn == fn and t.kind is Kind.COMPUTE and t.columns == columns]
    ops = np.flatnonzero(np.isin(p.ops.template, templates) & (case.trace.done >= 0))
    yield from _too_fast(case, fn, ops, (columns[1] - columns[0]) / columns[2])
    rows = np.bincount(p.ops.node[ops], weights=p.ops.rows[ops], minlength=p.n_nodes)
    computed = np.stack((p.ops.key[ops], p.ops.node[ops], p.ops.rows[ops]))
    computed = computed[:, np.argsort(computed[0], kind="stable")]
    if (rows != per_gpu).any():
        g = int((rows != per_gpu).argmax())
        yield f"{fn} on GPU {g}: found {int(rows[g])} rows computed, expected {per_gpu[g]}"
    elif computed.shape != expected.shape or (computed != expected).any():
        yield f"{fn}: found missing, repeated or moved tiles, expected each tile once on its GPU with its rows"
