"""Rules about both passes of a layer: the backward pass mirrors the forward pass and runs on its row layout."""

from dataclasses import replace

import numpy as np

from dysharp.analysis import traffic_bytes
from dysharp.base import Array, Numbers, Tally
from dysharp.engine.burst.run import run_burst
from dysharp.program import Head, Kind, Program, Tail, Template, moved_bytes, owners, sides_of
from dysharp.program.schema import CARRIES_NOTHING, LATE
from dysharp.systems.building.formats import ROW_BYTES
from dysharp.systems.building.moved import GRADIENTS
from dysharp.testing.conformance.case import WIDE, CheckedPass, Passes, SystemCase, row_format, small_layers
from dysharp.testing.conformance.rule import Lines, rule
from dysharp.testing.conformance.runs import differing_columns

WEIGHTS = ("gemm2_wgrad", "gemm1_wgrad")
DATA = ("gemm2_dgrad", "gemm1_dgrad")
STAGES = {"gemm1": ("gemm2_dgrad", "gemm2_wgrad"), "gemm2": ("gemm1_dgrad", "gemm1_wgrad")}
"""Forward GEMM -> its data gradient and weight gradient."""
WITHOUT_DATA = set(CARRIES_NOTHING) - {"", LATE}  # an op of a system has a function, and no rank starts late here


def _ops_of(program: Program, *fns: str) -> Array:
    """Ops of the templates with one of these functions."""
    templates = [i for i, t in enumerate(program.templates) if t.fn in fns]
    return np.flatnonzero(np.isin(program.ops.template, templates))


# ---- bytes -----------------------------------------------------------------------------------------------


@rule("layer")
def _backward_mirrors_bytes(case: Passes) -> Lines:
    """The backward pass moves the payload of the forward pass, and gate gradients mirror gate weights.

    Gate weights go out behind the rows of Dispatch, gate gradients come back behind the rows of Combine. Pushes mirror exactly. The gate weights of a
    multicast go up once and down to every GPU; the gate gradients of a pull come up from every GPU and go down once. Where Combine has other rows
    (`Moves.back`), they may ride those instead, as many bytes with each row.
    """
    moved = [moved_bytes(one.program) for one in (case.forward, case.backward)]
    for side in moved[0]:
        for operator in ("dispatch", "combine"):
            forward, backward = (one[side].get(operator, 0) for one in moved)
            if forward != backward:
                yield f"{operator} {side}: found {backward} B backward, expected the forward pass's {forward} B"
    out, back = _riding_bytes(case.forward), _riding_bytes(case.backward)
    own, model = case.system.moves.back is not None, case.forward.layer.model
    sent, summed = (ROW_BYTES[row_format(case.forward.options, operator)](model) for operator in ("dispatch", "combine"))
    for up, down in dict.fromkeys(sides_of(case.forward.program)):
        rides = own and all(out[s] * moved[1][s]["combine"] * sent == back[s] * moved[0][s]["dispatch"] * summed for s in (up, down))
        if (out[up], out[down]) != (back[down], back[up]) and not rides:
            yield f"gate gradients: found {back} B backward, expected the mirror of {out} B of gate weights forward"
        if (out[up] > 0) != (moved[0][up].get("dispatch", 0) > 0):
            yield f"gate weights: found {out[up]} B {up}, expected more than 0 B if and only if Dispatch uses these links"


def _riding_bytes(case: CheckedPass) -> Tally:
    """Bytes on every side of operator "other", control words excluded."""
    control = moved_bytes(case.program)
    counted = traffic_bytes(case.program, case.trace)
    return {side: counted[side]["other"] - control[side].get("other", 0) for side in control}


# ---- work ------------------------------------------------------------------------------------------------


@rule("system", over=("plain", "gated"))
def _gradients_are_twice_the_work(case: SystemCase, experts: str) -> Lines:
    """Data gradients and weight gradients each take the forward pass's SM time, if memory is no limit."""
    case.needs_gemms()
    layer = small_layers()["uniform" if experts == "plain" else "lognormal"]
    model = layer.model if experts == "plain" else replace(WIDE, hidden=1024)
    layer = replace(layer, model=model, cluster=replace(layer.cluster, hbm_bytes_per_us=1 << 50))
    passes = Passes(case.system, layer, case.given)
    once = _slot_ps(passes.forward.program, *STAGES)
    for what, fns in (("weights", WEIGHTS), ("data", DATA)):
        took = _slot_ps(passes.backward.program, *fns)
        if not np.isclose(took, once, rtol=1e-5, atol=0):  # tasks are rounded up to a ps
            yield f"gradients of {what}: found {took} ps of SM time, expected the forward pass's {once} ps"


def _slot_ps(program: Program, *fns: str) -> int:
    """Slot-picoseconds: tasks times their duration."""
    return int(program.work_ps(_ops_of(program, *fns)).sum())


@rule("layer")
def _nothing_waits_for_weight_gradients(case: Passes) -> Lines:
    """Weight gradients have the lowest priority, no op but their sum over GPUs waits for them, and all of them finish."""
    case.backward.needs_gemms()
    program = case.backward.program
    fillers, others = _ops_of(program, *WEIGHTS), _ops_of(program, *DATA)
    e = program.edges
    sums = np.array([t.name == GRADIENTS for t in program.templates])
    of_ops = e.tail_kind <= Tail.OP_ISSUED
    summed = (e.head_kind == Head.OP_ISSUE) & sums[program.ops.template[np.where(e.head_kind == Head.OP_ISSUE, e.head, 0)]]
    tails = e.tail[of_ops & ~summed]
    waited = np.isin(tails, fillers)
    if waited.any():
        yield f"op {tails[waited][0]}: found an op that waits for this weight gradient, expected none"
    prio, least = program.ops.prio[fillers].min(), program.ops.prio[others].max()
    if prio <= least:
        yield f"prio: found {prio} for weight gradients, expected more than {least}, the prio of data gradients"
    if (case.backward.trace.done[fillers] <= 0).any():
        yield "weight gradients: found ops that are never done, expected all done"


# ---- waits and buffers -----------------------------------------------------------------------------------


def _waits_of(program: Program, fn: str) -> set[str]:
    """The tails of a function's ops: functions of ops, or "tile"."""
    ops = _ops_of(program, fn)
    e = program.edges
    into = (e.head_kind == Head.OP_ISSUE) & np.isin(e.head, ops)
    tiles = {"tile"} if (e.tail_kind[into] == Tail.TILE_READY).any() else set()
    return tiles | {program.templates[t].fn for t in np.unique(program.ops.template[e.tail[into & (e.tail_kind <= Tail.OP_ISSUED)]])}


@rule("layer")
def _backward_waits_as_forward(case: Passes) -> Lines:
    """Data gradient and weight gradient of a GEMM wait for the tails that the forward GEMM waits for."""
    case.forward.needs_gemms()
    for fn, gradients in STAGES.items():
        expected = {STAGES[name][0] if name in STAGES else name for name in _waits_of(case.forward.program, fn)}
        for gradient in gradients:
            waits = _waits_of(case.backward.program, gradient)
            if waits != expected:
                yield f"{gradient}: found waits for {_listed(waits)}, expected waits for {_listed(expected)}, as {fn} has"


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


@rule("pass")
def _buffers_follow_each_other(case: CheckedPass) -> Lines:
    """Every function reads the buffer that the function before it writes, and only row functions name buffers."""
    case.needs_gemms()
    sent, summed = ("x", "y") if case.direction == "fwd" else ("dy", "dx")
    templates = case.program.templates
    by_fn = {t.fn: t for t in templates if t.src or t.dst}
    results = by_fn.get("row") or by_fn.get("sum")
    if "copy" not in by_fn or results is None:
        yield f"functions: found {_listed(set(by_fn))}, expected copy, and row or sum"
        return
    first, second = ("gemm1", "gemm2") if case.direction == "fwd" else DATA
    between = by_fn[first].dst
    ways = {
        "copy": (sent, f"expert.{sent}"),
        first: (f"expert.{sent}", between),
        second: (between, f"expert.{summed}"),
        results.fn: (f"expert.{summed}", "partial" if results.kind is Kind.PUT else summed),
    }
    for fn, way in ways.items():
        for found in sorted(_ways(templates, fn) - {way}):
            yield f"{fn}: found buffers {found[0]} to {found[1]}, expected {way[0]} to {way[1]}"
    odd = {t.fn for t in templates if not t.src and not t.dst} - WITHOUT_DATA
    if odd:
        yield f"functions without buffers: found {_listed(odd)}, expected {_listed(WITHOUT_DATA)} only"


def _ways(templates: tuple[Template, ...], fn: str) -> set[tuple[str, str]]:
    """(buffer read, buffer written) by `fn`, from end to end where rows wait in a relay between NVLink domains."""
    into, out_of = ({(b, a) for a, b in hops} for hops in ([(t.src, t.dst) for t in templates], [(t.dst, t.src) for t in templates]))
    mine = [t for t in templates if t.fn == fn]
    return {(src, dst) for t in mine for src in _ends(t.src, into) for dst in _ends(t.dst, out_of)}


def _ends(buffer: str, hops: set[tuple[str, str]]) -> set[str]:
    """The buffers at the other end of all `hops` (here, there) from `buffer`, itself where it is no relay."""
    seen: set[str] = set()
    reached = {buffer}
    while relays := {b for b in reached if b.startswith("relay")} - seen:
        seen |= relays
        reached |= {there for here, there in hops if here in relays and there}
    return {b for b in reached if not b.startswith("relay")}


# ---- the row layout of the forward run -------------------------------------------------------------------


@rule("layer")
def _backward_takes_the_forward_rows(case: Passes) -> Lines:
    """On the forward run's layout, every slot of the backward pass holds the token that the forward run put there."""
    forward, moved = case.forward.program, case.relayed
    n = int(np.diff(forward.regions.row_ptr)[forward.tiled_regions()].sum())
    region = owners(forward.regions.row_ptr)[:n]
    first = forward.regions.row_ptr[region]
    token = np.empty(n, np.int64)
    token[first + case.forward.trace.row_slot[:n]] = forward.regions.row_key[:n]
    wrong = moved.regions.row_key[:n] != token
    if wrong.any():
        i = int(wrong.argmax())
        yield f"row {i}: found token {moved.regions.row_key[i]} backward, expected token {token[i]} as forward; {int(wrong.sum())} of {n} rows differ"
    if moved_bytes(moved) != moved_bytes(case.backward.program):
        yield f"bytes: found {moved_bytes(moved)} after relayout, expected {moved_bytes(case.backward.program)} as before"
    if (run_burst(moved)[0].row_slot[:n] != np.arange(n) - first).any():
        yield "slots: found rows moved by the backward run, expected the slots of the forward run"


@rule("layer")
def _rows_keep_what_they_are_for(case: Passes) -> Lines:
    """Relayout keeps, for every row (by region and key), the ops that fill the row, read it, or are notified."""
    if _meaning(case.relayed) != _meaning(case.backward.program):
        yield "rows: found rows with other ops after relayout, expected the ops as before by region and key"


def _meaning(program: Program) -> list[Numbers]:
    m, r = program.members, program.regions
    member = owners(m.fill_ptr)
    region = owners(r.row_ptr)
    filled = zip(member, region[m.fill_row], r.row_key[m.fill_row], r.row_notify[m.fill_row], strict=True)
    return sorted(tuple(map(int, row)) for row in filled)


@rule("layer")
def _oracle_agrees_on_the_forward_rows(case: Passes) -> Lines:
    """The oracle returns the engine's Trace of the backward pass on the layout of the forward run."""
    yield from differing_columns(case.relayed, run_burst(case.relayed)[0])
