"""Rules for systems that run a collective: right vectors in every order, two interpreters, both levels, bounds, and faults that are noticed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dysharp.analysis.attribution import attribute
from dysharp.analysis.bound import collective_bound_us
from dysharp.analysis.count import TERMS, group_transfers, traffic_bytes, wire_table
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.errors import DysharpError
from dysharp.functional.collective import emulate_collective
from dysharp.functional.orders import ORDERS
from dysharp.oracle import run_oracle
from dysharp.program import Program, Trace
from dysharp.program.payload import moved_bytes
from dysharp.program.schema import LATE
from dysharp.program.skew import START
from dysharp.program.verify import verify
from dysharp.specs import Cluster, load_cluster
from dysharp.systems.building.collectives.chunks import FUNCTIONS
from dysharp.systems.collectives import CollectiveSystem
from dysharp.testing.conformance.rule import Lines, rule
from dysharp.workload.collective import Collective, even

SAMPLED = 12
"""Ops of each case whose data are taken away, one at a time."""
LEVELS_APART = 0.25
"""Largest relative difference of burst and packet level; small collectives are mostly latencies, which both have."""


@dataclass(frozen=True)
class CollectiveCase:
    """One small collective under one system."""

    system: CollectiveSystem
    work: Collective
    cluster: Cluster
    options: Any

    @property
    def name(self) -> str:
        """Words for reports."""
        return f"{self.work.description}, {self.cluster.n_gpus} GPUs" + (" on two nodes" if self.cluster.domains > 1 else "")

    @cached_property
    def program(self) -> Program:
        """The verified Program."""
        program = self.system.plan(self.work, self.cluster, self.options)
        verify(program)
        return program

    @cached_property
    def trace(self) -> Trace:
        """Its run at burst level."""
        return run_burst(self.program)[0]


def cases_of(system: CollectiveSystem, options: Any) -> Iterator[CollectiveCase]:
    """Small collectives: every operation, even and uneven shares, one GPU, and two nodes where the system runs there."""
    node = load_cluster("hw-dgx-h100")
    two = load_cluster("hw-dgx-h100-x2")
    assert two.scale_out is not None
    two = replace(two, n_gpus=4, scale_out=replace(two.scale_out, domain_gpus=2))
    for operation in system.operations:
        asked = [(even(operation, 160_000, 4), node), (even(operation, 2, 2), node), (even(operation, 600, 1), node)]
        asked += [(Collective(operation, (40_000, 0, 16_386, 2)), node), (even(operation, 160_000, 4), two)]
        for work, machine in asked:
            cluster = machine if machine is two else machine.with_gpus(work.gpus)
            if not system.why_not(work, cluster):
                yield CollectiveCase(system, work, cluster, options)


@rule("collective")
def vectors_are_right(case: CollectiveCase) -> Lines:
    """Every GPU has the vector of NumPy's reference, in every order of events."""
    for order in ORDERS:
        try:
            done = emulate_collective(case.system.name, case.program, case.work, order=order, trace=case.trace if order == "trace" else None)
        except DysharpError as error:
            yield f"order {order}: {error}"
            continue
        if not done.holds:
            yield f"order {order}: found wrong vectors on GPUs {', '.join(map(str, done.wrong_gpus))}, expected the reference"


@rule("collective")
def interpreters_agree(case: CollectiveCase) -> Lines:
    """Two runs of the engine and one of the oracle have one digest."""
    digests = {case.trace.digest(), run_burst(case.program)[0].digest(), run_oracle(case.program).digest()}
    if len(digests) > 1:
        yield f"digest: found {len(digests)} different ones, expected one of engine and oracle"


@rule("collective")
def not_below_the_least_bytes(case: CollectiveCase) -> Lines:
    """The time is not below the time of the bytes that no system avoids."""
    least = collective_bound_us(case.work, case.cluster) * 1e6
    if case.trace.time_ps < least:
        yield f"time: found {case.trace.time_ps} ps, expected at least the {least:.0f} ps of the least bytes"


@rule("collective")
def causes_are_named(case: CollectiveCase) -> Lines:
    """The critical path adds up to the time, and no op counts as a late rank's start."""
    causes = attribute(case.program, case.trace)
    if sum(causes.values()) != case.trace.time_ps:
        yield f"attribution: found {sum(causes.values())} ps, expected {case.trace.time_ps} ps"
    if START in causes:
        yield f'templates: found the function "{LATE}", expected another one (it means the late start of a rank)'


@rule("collective")
def bytes_are_moved(case: CollectiveCase) -> Lines:
    """The payload in the Trace equals the payload of the tables, and the busiest GPU carries no less than `least_bytes`."""
    counted, moved = traffic_bytes(case.program, case.trace), moved_bytes(case.program)
    table, n = wire_table(case.program, group_transfers(case.program)), case.program.n_nodes
    carried = [int(side[:, TERMS.index("payload")].reshape(-1, n).sum(axis=0).max()) for side in (table.up, table.down)]
    for side, found, least in zip(("out of", "into"), carried, case.work.least_bytes(in_switch=bool(case.system.switch)), strict=True):
        if found < least:
            yield f"payload {side} the busiest GPU: found {found} B, expected at least {least} B"
    for side, by_operator in moved.items():
        for operator, n_bytes in by_operator.items():
            if counted[side].get(operator) != n_bytes:
                yield f"payload {side} of {operator}: found {counted[side].get(operator)} B in the Trace, expected {n_bytes} B"


@rule("collective")
def levels_agree(case: CollectiveCase) -> Lines:
    """Packet level takes about as long as burst level."""
    packet = run_packet(case.program, fabric_of(case.cluster)).trace.time_ps
    if abs(packet - case.trace.time_ps) > LEVELS_APART * case.trace.time_ps:
        yield f"time: found {packet} ps at packet level, expected within {LEVELS_APART:.0%} of {case.trace.time_ps} ps"


@rule("collective")
def lost_data_are_noticed(case: CollectiveCase) -> Lines:
    """Without the data of one op the vectors are wrong, or the machine says which chunk is missing."""
    p = case.program
    moves = np.flatnonzero(np.array([t.fn in FUNCTIONS for t in p.templates], bool)[p.ops.template])
    silent = {i: len(p.templates) + i for i in range(len(p.templates))}
    templates = (*p.templates, *(replace(t, fn="control", src="", dst="") for t in p.templates))
    for op in moves[:: max(1, len(moves) // SAMPLED)].tolist():
        template = p.ops.template.copy()
        template[op] = silent[int(template[op])]
        try:
            done = emulate_collective(case.system.name, replace(p, templates=templates, ops=replace(p.ops, template=template)), case.work)
        except DysharpError:
            continue
        if done.holds:
            yield f"op {op}: found right vectors without its data, expected wrong ones"
