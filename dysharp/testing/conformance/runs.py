"""Rules about the run of a pass: bounds, repeatability, the oracle, the packet level, and the analysis."""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from dysharp.analysis import CAUSES, attribute, program_bound, traffic_bytes, wire_table
from dysharp.analysis.attribution import OWN_CAUSES, critical_path
from dysharp.analysis.count import TERMS, group_transfers, sums_that_passed
from dysharp.base import PS_PER_US, SimulationError
from dysharp.engine.burst.run import run_burst
from dysharp.oracle import run_oracle
from dysharp.program import Kind, Nature, Program, Trace, owners, sides_of
from dysharp.program.startable import Peel, starts_by_kind
from dysharp.specs import load_model
from dysharp.testing.conformance.case import CheckedPass, SmallLayer, SystemCase, paper_cluster
from dysharp.testing.conformance.rows import not_of_the_cluster, passed_bytes
from dysharp.testing.conformance.rule import Lines, NotRun, rule
from dysharp.workload import make_routing

ORACLE_OPS = 20_000
"""Largest number of ops for the oracle, which takes minutes above."""
ROUNDING_US = 1e-9


@rule("pass")
def _starts_at_a_glance(case: CheckedPass) -> Lines:
    """The verifier sees from templates alone that every op can start, and checking op by op agrees."""
    if not starts_by_kind(case.program):
        if case.system.peels:
            raise NotRun(f"the verifier peels the Program: {case.system.peels}")
        if case.program.nets:
            raise NotRun("the verifier peels the Program: over several domains an issuer has ops of two networks, or one hop waits for another")
        yield 'waits: found a circle of templates, expected none (or Facts(peels="why"), which makes the verifier slow on large layers)'
        return
    peel = Peel(case.program)
    peel.run()
    if not peel.reached.all() or peel.too_early.any():
        yield "waits: found ops that never start but no circle of templates, expected both or neither"


# ---- times -----------------------------------------------------------------------------------------------


def busy_floor_ps(program: Program) -> int:
    """Busy time (ps) of the busiest link direction or pool, without latencies."""
    p, w, n = program, program.wires, program.n_ports
    net = p.op_net() * np.int32(p.n_nodes)
    owner = owners(p.members.ptr)
    remote = p.members.node != p.ops.node[owner]
    wire = p.ops.wire[owner[remote]]
    at_member = p.members.node[remote] + net[owner[remote]]
    sources = np.unique(owner[remote])
    at_source, of_source = p.ops.node[sources] + net[sources], p.ops.wire[sources]
    up = np.bincount(at_source, weights=(w.trains * w.up)[of_source], minlength=n)
    up += np.bincount(at_member, weights=w.response[wire], minlength=n)
    down = np.bincount(at_member, weights=(w.trains * w.down)[wire], minlength=n)
    down += np.bincount(at_source, weights=w.result[of_source], minlength=n)
    floor = int((np.maximum(up, down).astype(np.int64) * 1_000_000 // p.port_rate).max(initial=0))
    computing = np.flatnonzero(np.isin(p.kinds(), (Kind.COMPUTE, Kind.DELAY)))
    if len(computing):
        pool = p.issuers.pool[p.ops.issuer[computing]]
        per_pool = np.bincount(pool, weights=p.work_ps(computing), minlength=len(p.pools.slots))
        floor = max(floor, int((per_pool // p.pools.slots).max()))
    return floor


@rule("pass")
def _time_above_bounds(case: CheckedPass) -> Lines:
    """The time is at least the busy time of every link and pool, the Program's bound and the workload's bound."""
    bounds = {"busiest link or pool": busy_floor_ps(case.program), "bound of the Program": int(program_bound(case.program).us * PS_PER_US)}
    for name, ps in bounds.items():
        if case.trace.time_ps < ps:
            yield f"time: found {case.trace.time_ps} ps, expected at least {ps} ps, the {name}"
    measured, computes = case.measured, bool((case.program.kinds() == Kind.COMPUTE).any())
    for name, us in (("bound_us", measured.bound_us), ("workload_bound_us", measured.workload_bound_us)):
        if not 0 <= us <= measured.time_us or (us == 0 and computes):
            yield f"{name}: found {us}, expected more than 0 and at most the time, {measured.time_us}"


@rule("pass")
def _bound_adds_up(case: CheckedPass) -> Lines:
    """The terms of the Program's bound are positive and sum to the bound."""
    bound = program_bound(case.program)
    if not np.isclose(sum(bound.terms.values()), bound.us, rtol=1e-6, atol=1e-12):
        yield f"bound: found terms that add up to {sum(bound.terms.values())} us, expected {bound.us} us"
    yield from (f"bound: found {us} us of {name}, expected more than 0" for name, us in bound.terms.items() if us <= 0)


@rule("pass")
def _one_digest(case: CheckedPass) -> Lines:
    """Two runs of the Program have equal digests."""
    if run_burst(case.program)[0].digest() != case.trace.digest():
        yield "digest: found different digests of two runs, expected equal digests"


@rule("pass")
def _engine_equals_oracle(case: CheckedPass) -> Lines:
    """The oracle returns the engine's Trace, column by column."""
    yield from differing_columns(case.program, case.trace)


def differing_columns(program: Program, trace: Trace) -> Lines:
    """One line per column of `trace` in which the oracle differs."""
    if program.n_ops > ORACLE_OPS:
        raise NotRun(f"the oracle takes minutes above {ORACLE_OPS} ops")
    try:
        second = run_oracle(program)
    except SimulationError as error:
        yield f"oracle: {error}"
        return
    for f in fields(Trace):
        if f.name != "n_events" and not np.array_equal(getattr(trace, f.name), getattr(second, f.name)):
            yield f"oracle: found a different column {f.name}, expected the engine's values"


# ---- the packet level ------------------------------------------------------------------------------------


@rule("pass")
def _packets_carry_the_same_bytes(case: CheckedPass) -> Lines:
    """The packet level runs the Program and puts on every link the bytes of the burst level."""
    if not case.layer.cluster.n_switches:
        raise NotRun("without a switch there is no packet level")
    for side, packets, burst in (("up", case.packets.up_busy, case.trace.up_busy), ("down", case.packets.down_busy, case.trace.down_busy)):
        if (packets != burst).any():
            g = int((packets != burst).argmax())
            yield f"link {side} of GPU {g}: found {packets[g]} B in packets, expected the burst level's {burst[g]} B"


def _full_layer(tokens: int, model_name: str = "S-8", n_gpus: int = 32) -> SmallLayer:
    """A packaged model with its default routing on the paper's cluster."""
    model, cluster = load_model(model_name), paper_cluster(n_gpus)
    routing = make_routing(model.routing, model, n_gpus, tokens, seed=0, layer=None, placement="auto")
    return SmallLayer(f"{model_name}, {tokens} tokens", model, cluster, routing)


def _packet_differences(case: CheckedPass) -> tuple[float, float]:
    """Relative difference of time between packet level and burst level, and difference of mean up-link utilization."""
    wire_ps = case.trace.up_busy.mean() * PS_PER_US / case.layer.cluster.link_bytes_per_us
    return case.packets.time_ps / case.trace.time_ps - 1, abs(wire_ps / case.packets.time_ps - wire_ps / case.trace.time_ps)


@rule("system", slow=True)
def _packet_time_agrees(case: SystemCase, time_bar: float = 0.03, use_bar: float = 0.02) -> Lines:
    """On S-8 with 32 GPUs and 256 tokens, packet level and burst level differ by less than 3 %."""
    forward = CheckedPass(case.system, _full_layer(256), "fwd", case.given)
    yield from _packets_carry_the_same_bytes(forward)
    time, use = _packet_differences(forward)
    if abs(time) >= time_bar:
        yield f"packet level: found {time:+.2%} of time, expected less than {time_bar:.0%} (causes: docs/deviations.md)"
    if use >= use_bar:
        yield f"packet level: found a difference of {use:.2%} in link use, expected less than {use_bar:.0%}"


# ---- the analysis ----------------------------------------------------------------------------------------


@rule("pass")
def _wire_bytes_are_explained(case: CheckedPass) -> Lines:
    """Hardware is the cluster's; bytes on links equal the bytes that the analysis counts: payload, headers, requests, acknowledgements."""
    yield from not_of_the_cluster(case.program, case.trace, case.layer.cluster)


@rule("pass")
def _payload_is_declared(case: CheckedPass) -> Lines:
    """The payload in the Trace equals the declared payload of each operator and the payload on the wire."""
    counted = traffic_bytes(case.program, case.trace)
    table = wire_table(case.program, group_transfers(case.program, passed=sums_that_passed(case.program, case.trace), trace=case.trace))
    declared, names = case.program.declared.traffic, sides_of(case.program)
    every = {side for both in names for side in both}
    lone = case.program.domain_nodes == 1 and bool(case.program.nets)  # several NVLink domains of one GPU: nothing goes by switch
    joins = every - set(names[0] if lone else ())
    for what, sides, expected in (("declared", declared, joins), ("counted", counted, every)):
        if set(sides) != expected:
            yield f"{what} traffic: found sides {sorted(sides)}, expected {' and '.join(sorted(expected))}"
    for side, by_operator in counted.items():
        moving = case.program.with_nature(Nature.COMMUNICATION, Nature.HOST)
        if tuple(by_operator) != moving:
            yield f"counted traffic {side}: found operators {', '.join(by_operator)}, expected {', '.join(moving)}"
    for side, by_operator in declared.items():
        operators: Mapping[str, int] = counted[side]
        for name, promised in by_operator.items():
            n_bytes = promised + (int(passed_bytes(case).sum()) if (side, name) == ("down", "combine") else 0)
            if operators.get(name) != n_bytes:
                yield f"payload {side} of {name}: found {operators.get(name)} B, expected the declared {n_bytes} B"
    n = case.program.n_nodes
    on_wire = dict.fromkeys(every, 0)
    for net, both in enumerate(names):  # links between pairs have equal names
        for side, terms in zip(both, (table.up, table.down), strict=True):
            on_wire[side] += int(terms[net * n : (net + 1) * n, TERMS.index("payload")].sum())
    for side, n_bytes in on_wire.items():
        if n_bytes != sum(counted[side].values()):
            yield f"payload {side}: found {n_bytes} B on the wire, expected the {sum(counted[side].values())} B counted"


@rule("pass")
def _causes_add_up(case: CheckedPass) -> Lines:
    """The attribution by cause and the attribution by operator are complete, and each sums to the time."""
    between = dict.fromkeys(f"{net.name}_{part}" for net in case.program.nets for part in ("out", "in", "latency"))
    functions = {t.fn for t in case.program.templates}
    own = [cause for fn, cause in OWN_CAUSES.items() if fn in functions]
    for what, parts, names in (
        ("attribution", attribute(case.program, case.trace), (*CAUSES, *own, *between)),
        ("critical path", critical_path(case.program, case.trace)[1], case.program.operator_names),
    ):
        if tuple(parts) != tuple(names):
            yield f"{what}: found parts {', '.join(parts)}, expected {', '.join(names)}"
        if min(parts.values()) < 0 or sum(parts.values()) != case.trace.time_ps:
            yield f"{what}: found {sum(parts.values())} ps, least part {min(parts.values())} ps, expected {case.trace.time_ps} ps and none below 0"


@rule("pass")
def _shares_lie_within_the_run(case: CheckedPass) -> Lines:
    """Utilization lies between 0 and 1. Phases, exposed communication and stalls lie within the time."""
    measured = case.measured
    yield from (f"utilization: found {share} of {name}, expected 0 .. 1" for name, share in measured.utilization.items() if not 0 <= share <= 1)
    for name, phase in measured.phases_us.items():
        if not 0 <= phase["busy"] <= phase["end"] - phase["start"] + ROUNDING_US or phase["end"] > measured.time_us:
            yield f"phase {name}: found {phase}, expected busy time within its length and an end within {measured.time_us} us"
    parts = {"exposed_comm_us": measured.exposed_comm_us, **measured.stalls}
    yield from (f"{name}: found {us} us, expected 0 .. {measured.time_us}" for name, us in parts.items() if not 0 <= us <= measured.time_us)
    last = max(phase["end"] for phase in measured.phases_us.values())
    if last != measured.time_us:
        yield f"phases: found the last end at {last} us, expected {measured.time_us} us"
