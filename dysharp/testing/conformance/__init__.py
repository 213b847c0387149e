"""One suite for every system, ours or not: a legal, complete, honest Program whose run keeps to bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.bound import program_bound
from dysharp.engine.burst.run import run_burst
from dysharp.errors import ConfigError, EmulationMismatch, ProgramError, SimulationError
from dysharp.functional.experts import IntegerExperts
from dysharp.functional.layer import Tensors
from dysharp.functional.numbers import number
from dysharp.functional.reference import dense_forward
from dysharp.functional.rows import run_rows
from dysharp.oracle import run_oracle
from dysharp.program import Kind, Program, Trace
from dysharp.program.builder import PULLS, PUSHES
from dysharp.program.verify import verify
from dysharp.specs import Cluster, Model
from dysharp.systems import System, get_system
from dysharp.units import PS_PER_US
from dysharp.workload import Routing, traffic

Array = NDArray[Any]
SAMPLES = 10  # ops that are broken on purpose
ORACLE_OPS = 20_000  # above this the oracle takes minutes
OPERATORS = ("dispatch", "combine")
GEMMS = {"fwd": ("gemm1", "gemm2"), "bwd": ("gemm2_dgrad", "gemm2_wgrad", "gemm1_dgrad", "gemm1_wgrad")}


def conformance(system_name: str, model: Model, cluster: Cluster, routing: Routing, direction: str = "fwd") -> list[str]:
    """What `system_name` does wrong in this pass of a layer (default Options), one line each; [] = nothing.

    `direction`: "fwd" or "bwd". Checked: the Program verifies; payload counted from the Trace equals the
    closed form of the system's traffic scheme per operator, direction and GPU, and nothing else moves but
    control words; every useful row exists once and is computed once by each GEMM of the pass on its GPU; the
    run takes no less than the busiest link or pool; two runs give one digest; engine and oracle return the
    same Trace (up to 20 000 ops); the forward pass gives the dense layer's tensor, with integer experts and in
    a random order (up to 20 000 ops); and 10 ops with a member or row deleted, doubled or redirected are caught
    by the verifier or by the watchdog of the run. Raises ConfigError for an unknown system.
    """
    system = get_system(system_name)
    program = system.plan(model, cluster, routing, direction, system.options())
    try:
        verify(program)
        trace, _ = run_burst(program)
    except (ProgramError, SimulationError) as error:
        return [f"{system_name}: {error}"]
    failed = _wrong_traffic(system, program, trace, routing, model.row_bytes)
    failed += _wrong_rows(program, trace, routing)
    failed += _wrong_gemms(program, trace, routing, direction)
    failed += _below_bound(program, trace)
    failed += _not_repeatable(program, trace)
    failed += _wrong_tensor(program, routing) if direction == "fwd" else []
    failed += [text for seed in range(SAMPLES) if (text := _unnoticed(program, seed))]
    return [f"{system_name}: {text}" for text in failed]


def _wrong_tensor(program: Program, routing: Routing) -> list[str]:
    """The Program on real tensors, a few integers wide: rows are bound, computed and summed as it says."""
    if program.n_ops > ORACLE_OPS:
        return []
    experts = IntegerExperts(routing.n_experts, 8, 4)
    rng = np.random.default_rng(0)
    tokens = rng.integers(-3, 4, (routing.n_tokens, experts.hidden)).astype(np.int32)
    weight = np.where(routing.slot >= 0, rng.integers(1, 4, routing.slot.shape), 0)
    tensors = Tensors(routing, number("int32"), experts, tokens, weight)
    try:
        out = run_rows(program, tensors, "random").out
    except (ConfigError, EmulationMismatch) as error:
        return [f"emulation: {error}"]
    wrong = np.flatnonzero((out != dense_forward(tensors)).any(axis=1))
    return [f"emulation: found a wrong output of token {wrong[0]}, expected the dense layer's"] if len(wrong) else []


# ---- bytes and rows --------------------------------------------------------------------------------------


def counted_traffic(program: Program, trace: Trace) -> dict[str, dict[str, Array]]:
    """Payload bytes that crossed links: {operator: {"up": `[n_nodes]`, "down": `[n_nodes]`}} int64."""
    p, n = program, program.n_nodes
    owner = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    crossed = (p.members.node != p.ops.node[owner]) & (trace.member >= 0)
    sent = np.bincount(owner[crossed], minlength=p.n_ops) > 0
    out: dict[str, dict[str, Array]] = {}
    for i, t in enumerate(p.templates):
        if t.kind not in PUSHES + PULLS:
            continue
        ops = np.flatnonzero((p.ops.template == i) & sent & (trace.done >= 0))
        members = np.flatnonzero(crossed & (p.ops.template[owner] == i))
        at_source = np.bincount(p.ops.node[ops], weights=p.ops.bytes[ops], minlength=n).astype(np.int64)
        far = p.members.node[members], p.ops.bytes[owner[members]]
        at_members = np.bincount(far[0], weights=far[1], minlength=n).astype(np.int64)
        up, down = (at_members, at_source) if t.kind in PULLS else (at_source, at_members)
        total = out.setdefault(t.operator, {"up": np.zeros(n, np.int64), "down": np.zeros(n, np.int64)})
        total["up"] += up
        total["down"] += down
    return out


def _wrong_traffic(system: System, program: Program, trace: Trace, routing: Routing, row_bytes: int) -> list[str]:
    closed = traffic(routing, system.traffic, row_bytes)
    counted = counted_traffic(program, trace)
    zero = np.zeros(program.n_nodes, np.int64)
    failed = []
    for operator in OPERATORS:
        expected = closed["dispatch"] if operator == "dispatch" else closed["combine"]
        for side, per_gpu in (("up", expected["up_per_gpu"]), ("down", expected["down_per_gpu"])):
            found = counted.get(operator, {}).get(side, zero)
            if (found != per_gpu).any():
                g = int((found != per_gpu).argmax())
                failed.append(f"traffic {side} of {operator} at GPU {g}: found {found[g]} B, expected {per_gpu[g]} B")
    for operator in sorted(counted.keys() - {*OPERATORS, "other"}):
        for side, found in counted[operator].items():
            if found.any():
                failed.append(f"traffic {side} of {operator}: found {found.sum()} B, expected none (dispatch, combine and other move bytes)")
    return failed + _no_control(program)


def _no_control(program: Program) -> list[str]:
    """Transfers of operator "other" are control words: whatever carries rows belongs to Dispatch or Combine and is counted there."""
    odd = [t for t in program.templates if t.operator == "other" and t.kind in PUSHES + PULLS and t.fn != "control"]
    return [f'template {t.name}: found fn "{t.fn}" moved as operator "other", expected "control"' for t in odd]


def _wrong_rows(program: Program, trace: Trace, routing: Routing) -> list[str]:
    """Useful (token, expert) rows: those of the Routing, each in one slot, each computed once per GEMM."""
    r, failed = program.regions, []
    region = np.repeat(np.arange(program.n_regions), np.diff(r.row_ptr))
    expert = np.array([name == "expert" for name in r.name], bool)[region]
    kept = routing.slot >= 0
    token = np.broadcast_to(np.arange(routing.n_tokens)[:, None], routing.slot.shape)[kept]
    gpu = routing.slot[kept] // routing.placement.slots_per_gpu
    pairs = [np.stack((r.node[region[expert]], r.row_key[expert])), np.stack((gpu, token))]
    found, expected = (a[:, np.lexsort(a)] for a in pairs)
    if found.shape != expected.shape or (found != expected).any():
        failed.append(f"useful rows: found {found.shape[1]}, expected the Routing's {expected.shape[1]} (GPU, token) rows")
    slots = np.sort(trace.row_slot + r.row_ptr[region])
    if (slots != np.arange(program.n_rows)).any():
        failed.append("slots: found a slot taken twice or never, expected one per row")
    if (trace.tile_ready < 0).any():
        failed.append(f"tiles: found {int((trace.tile_ready < 0).sum())} never ready, expected none")
    return failed


def _wrong_gemms(program: Program, trace: Trace, routing: Routing, direction: str) -> list[str]:
    """Every GEMM of the pass computes every tile of the experts once, with all its rows, on the GPU that holds it."""
    p, r, failed = program, program.regions, []
    region = np.repeat(np.arange(p.n_regions), np.diff(r.tile_ptr))
    tiles = np.flatnonzero(np.array([name == "expert" for name in r.name], bool)[region])
    first = (tiles - r.tile_ptr[region[tiles]]) * r.tile_rows[region[tiles]]
    size = np.minimum(r.tile_rows[region[tiles]], np.diff(r.row_ptr)[region[tiles]] - first)
    expected = np.stack((tiles, r.node[region[tiles]], size))
    per_gpu = np.bincount(routing.slot[routing.slot >= 0] // routing.placement.slots_per_gpu, minlength=p.n_nodes)
    for fn in GEMMS[direction]:
        mine = [i for i, t in enumerate(p.templates) if t.fn == fn and t.kind is Kind.COMPUTE]
        ops = np.flatnonzero(np.isin(p.ops.template, mine) & (trace.done >= 0))
        rows = np.bincount(p.ops.node[ops], weights=p.ops.rows[ops], minlength=p.n_nodes)
        found = np.stack((p.ops.key[ops], p.ops.node[ops], p.ops.rows[ops]))
        found = found[:, np.argsort(found[0], kind="stable")]
        if (rows != per_gpu).any():
            g = int((rows != per_gpu).argmax())
            failed.append(f"{fn} on GPU {g}: found {int(rows[g])} rows computed, expected {per_gpu[g]}")
        elif found.shape != expected.shape or (found != expected).any():
            failed.append(f"{fn}: found tiles left out, repeated or moved, expected each once on its GPU with its rows")
    return failed


# ---- times -----------------------------------------------------------------------------------------------


def busy_floor_ps(program: Program) -> int:
    """Time (ps) of the busiest link direction or pool with its trains or tasks alone, without latencies."""
    p, w, n = program, program.wires, program.n_nodes
    owner = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    remote = p.members.node != p.ops.node[owner]
    wire = p.ops.wire[owner[remote]]
    at_member = p.members.node[remote]
    sources = np.unique(owner[remote])
    at_source, of_source = p.ops.node[sources], p.ops.wire[sources]
    up = np.bincount(at_source, weights=w.up[of_source], minlength=n)
    up += np.bincount(at_member, weights=w.response[wire], minlength=n)
    down = np.bincount(at_member, weights=w.down[wire], minlength=n)
    down += np.bincount(at_source, weights=w.result[of_source], minlength=n)
    busiest = int(max(up.max(initial=0), down.max(initial=0)))
    floor = busiest * 1_000_000 // p.machine.rate
    tasks = np.array([t.tasks for t in p.templates], np.int64)
    duration = np.array([t.duration for t in p.templates], np.int64)
    computing = np.flatnonzero(np.isin(p.kinds(), (Kind.COMPUTE, Kind.DELAY)))
    t = p.ops.template[computing]
    if len(computing):
        work = tasks[t] * p.durations[duration[t], p.ops.rows[computing]]
        pool = p.issuers.pool[p.ops.issuer[computing]]
        per_pool = np.bincount(pool, weights=work, minlength=len(p.pools.slots))
        floor = max(floor, int((per_pool // p.pools.slots).max()))
    return floor


def _below_bound(program: Program, trace: Trace) -> list[str]:
    """The time against the floor above and against the bound that reports print (floats: rounded down to ps)."""
    bounds = {"busiest link or pool": busy_floor_ps(program)}
    bounds["bound of the analysis"] = int(program_bound(program).us * PS_PER_US)
    return [f"time: found {trace.time_ps} ps, expected at least {ps} ps, the {name}" for name, ps in bounds.items() if trace.time_ps < ps]


def _not_repeatable(program: Program, trace: Trace) -> list[str]:
    failed = []
    if run_burst(program)[0].digest() != trace.digest():
        failed.append("digest: found two, expected one from two runs")
    if program.n_ops > ORACLE_OPS:
        return failed
    try:
        second = run_oracle(program)
    except SimulationError as error:
        return [*failed, f"oracle: {error}"]
    for f in fields(Trace):
        if f.name != "n_events" and not np.array_equal(getattr(trace, f.name), getattr(second, f.name)):
            failed.append(f"oracle: found another column {f.name}, expected the engine's")
    return failed


# ---- broken on purpose -----------------------------------------------------------------------------------


def _unnoticed(program: Program, seed: int) -> str | None:
    """Break one op; None when the verifier or the watchdog notices (or there is nothing to break)."""
    rng = np.random.default_rng(seed)
    change = CHANGES[seed % len(CHANGES)]
    member = _sample_member(program, rng, needs_rows=change in (delete_fill, double_fill, redirect_fill))
    if member is None or (change is redirect_member and program.n_nodes == 1):
        return None
    broken = change(program, member)
    if broken is None:
        return None
    try:
        verify(broken)
        run_burst(broken)
    except (ProgramError, SimulationError):
        return None
    op = int(np.searchsorted(program.members.ptr, member, side="right")) - 1
    name = program.templates[program.ops.template[op]].name
    return f"{change.__name__} of op {op} ({name}), member {member}: found nothing wrong, expected an error"


def _sample_member(program: Program, rng: np.random.Generator, needs_rows: bool) -> int | None:
    """A member that is remote or has rows, of a template drawn first: rare templates count too."""
    m = program.members
    owner = np.repeat(np.arange(program.n_ops), np.diff(m.ptr))
    has_rows = np.diff(m.fill_ptr) > 0
    candidates = np.flatnonzero(has_rows if needs_rows else has_rows | (m.node != program.ops.node[owner]))
    if len(candidates) == 0:
        return None
    template = program.ops.template[owner[candidates]]
    return int(rng.choice(candidates[template == rng.choice(np.unique(template))]))


def _with_members(program: Program, order: Array, node: Array | None = None) -> Program:
    """Members `order` (indices into the old ones, ascending, repeats allowed) with their rows."""
    m = program.members
    owner = np.repeat(np.arange(program.n_ops), np.diff(m.ptr))[order]
    fills = np.diff(m.fill_ptr)[order]
    ptr = np.append(0, np.cumsum(np.bincount(owner, minlength=program.n_ops)))
    rows = [m.fill_row[m.fill_ptr[i] : m.fill_ptr[i + 1]] for i in order]
    changed = replace(
        m,
        ptr=ptr.astype(np.int32),
        node=(m.node if node is None else node)[order],
        fill_ptr=np.append(0, np.cumsum(fills)).astype(np.int32),
        fill_row=np.concatenate(rows) if rows else m.fill_row[:0],
        ext_bytes=None if m.ext_bytes is None else m.ext_bytes[order],
    )
    return replace(program, members=changed)


def _with_fills(program: Program, member: int, rows: Array) -> Program:
    """`member` fills (or reads) `rows` instead."""
    m = program.members
    first, last = int(m.fill_ptr[member]), int(m.fill_ptr[member + 1])
    fill_ptr = m.fill_ptr.copy()
    fill_ptr[member + 1 :] += np.int32(len(rows) - (last - first))
    fill_row = np.concatenate((m.fill_row[:first], rows, m.fill_row[last:])).astype(np.int32)
    return replace(program, members=replace(m, fill_ptr=fill_ptr, fill_row=fill_row))


def _rows_of(program: Program, member: int) -> Array:
    m = program.members
    return m.fill_row[m.fill_ptr[member] : m.fill_ptr[member + 1]]


def delete_member(program: Program, member: int) -> Program:
    """Without one member."""
    return _with_members(program, np.delete(np.arange(program.n_members), member))


def double_member(program: Program, member: int) -> Program:
    """One member twice."""
    return _with_members(program, np.insert(np.arange(program.n_members), member, member))


def redirect_member(program: Program, member: int) -> Program:
    """One member on the next node."""
    node = program.members.node.copy()
    node[member] = (node[member] + 1) % program.n_nodes
    return _with_members(program, np.arange(program.n_members), node)


def delete_fill(program: Program, member: int) -> Program:
    """Without the first row of a member."""
    return _with_fills(program, member, _rows_of(program, member)[1:])


def double_fill(program: Program, member: int) -> Program:
    """The first row of a member twice."""
    rows = _rows_of(program, member)
    return _with_fills(program, member, np.append(rows, rows[0]))


def redirect_fill(program: Program, member: int) -> Program | None:
    """The first row of a member becomes the next row; None when there is only one."""
    rows = _rows_of(program, member).copy()
    if program.n_rows < 2:
        return None
    rows[0] = (rows[0] + 1) % program.n_rows
    return _with_fills(program, member, rows)


CHANGES: tuple[Callable[[Program, int], Program | None], ...] = (
    delete_member,
    double_member,
    redirect_member,
    delete_fill,
    double_fill,
    redirect_fill,
)
