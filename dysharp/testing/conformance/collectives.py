"""Rules for systems of collectives and sub-layers: right results in every order, two interpreters, both levels, bounds, faults that are noticed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dysharp.analysis.attribution import attribute
from dysharp.analysis.bound import collective_bound_us
from dysharp.analysis.count import TERMS, group_transfers, traffic_bytes, wire_table
from dysharp.base import DysharpError
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.functional.collective import CollectiveEmulation, emulate_collective
from dysharp.functional.orders import ORDERS
from dysharp.functional.sub_layers import emulate_sub_layer
from dysharp.oracle import run_oracle
from dysharp.program import LATE, PUSHES, START, Kind, Program, Tail, Trace, moved_bytes, op_name
from dysharp.program.verify import verify
from dysharp.specs import Cluster, load_cluster
from dysharp.systems.collectives import CollectiveSystem
from dysharp.testing.conformance.rows import given_too_early, not_of_the_cluster
from dysharp.testing.conformance.rule import Lines, rule
from dysharp.workload import SUB_LAYER, Collective, SubLayer, Work, even

SAMPLED = 12
"""Ops of each case whose data are taken away, one at a time."""
SUB_LAYERS = (SubLayer("small", 4, 512, 256, 32, 256), SubLayer("narrow", 3, 768, 200, 16, 100), SubLayer("pair", 2, 256, 256, 32, 256))
LEVELS_APART = 0.25
"""Largest relative difference of burst and packet level; small collectives are mostly latencies, which both have."""


@dataclass(frozen=True)
class _SmallCollective:
    """One small collective or sub-layer under one system."""

    system: CollectiveSystem
    work: Work
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

    def emulate(self, program: Program, order: str = "random") -> CollectiveEmulation:
        """The data of `program`, moved in `order`."""
        trace = self.trace if order == "trace" else None
        if isinstance(self.work, SubLayer):
            return emulate_sub_layer(self.system.name, program, self.work, order=order, trace=trace)
        return emulate_collective(self.system.name, program, self.work, order=order, trace=trace)


def cases_of(system: CollectiveSystem, options: Any) -> Iterator[_SmallCollective]:
    """Small collectives: every operation, even and uneven shares, one GPU, and two nodes where the system runs there. Small sub-layers."""
    if SUB_LAYER in system.operations:
        yield from (_SmallCollective(system, work, load_cluster("paper-cais-h100").with_gpus(work.gpus), options) for work in SUB_LAYERS)
    node = load_cluster("hw-dgx-h100")
    two = load_cluster("hw-dgx-h100-x2")
    assert two.scale_out is not None
    two = replace(two, n_gpus=4, scale_out=replace(two.scale_out, domain_gpus=2))
    for operation in {*system.operations} - {SUB_LAYER}:
        asked = [(even(operation, 160_000, 4), node), (even(operation, 2, 2), node), (even(operation, 600, 1), node)]
        asked += [(Collective(operation, (40_000, 0, 16_386, 2)), node), (even(operation, 160_000, 4), two)]
        for work, machine in asked:
            cluster = machine if machine is two else machine.with_gpus(work.gpus)
            if not system.why_not(work, cluster):
                yield _SmallCollective(system, work, cluster, options)


@rule("collective")
def _vectors_are_right(case: _SmallCollective) -> Lines:
    """Every GPU has the vector, or the product, of NumPy's reference, in every order of events."""
    for order in ORDERS:
        try:
            done = case.emulate(case.program, order)
        except DysharpError as error:
            yield f"order {order}: {error}"
            continue
        if not done.holds:
            yield f"order {order}: found wrong vectors on GPUs {', '.join(map(str, done.wrong_gpus))}, expected the reference"


@rule("collective")
def _interpreters_agree(case: _SmallCollective) -> Lines:
    """Two runs of the engine and one of the oracle have one digest."""
    digests = {case.trace.digest(), run_burst(case.program)[0].digest(), run_oracle(case.program).digest()}
    if len(digests) > 1:
        yield f"digest: found {len(digests)} different ones, expected one of engine and oracle"


@rule("collective")
def _not_below_the_least_bytes(case: _SmallCollective) -> Lines:
    """The time is not below the time of the bytes that no system avoids."""
    least = collective_bound_us(case.work, case.cluster) * 1e6
    if case.trace.time_ps < least:
        yield f"time: found {case.trace.time_ps} ps, expected at least the {least:.0f} ps of the least bytes"


@rule("collective")
def _semaphores_of_collectives_are_taken_first(case: _SmallCollective) -> Lines:
    """No op gives back a semaphore before it is taken."""
    yield from given_too_early(case.program, case.trace)


@rule("collective")
def _arrivals_are_awaited(case: _SmallCollective) -> Lines:
    """Some op waits for every tile that data arrive in: no GPU ends before them."""
    p, r = case.program, case.program.regions
    awaited = np.zeros(p.n_tiles, bool)
    awaited[p.edges.tail[p.edges.tail_kind == Tail.TILE_READY]] = True
    for tile in np.flatnonzero(~awaited)[:1].tolist():
        region = int(np.searchsorted(r.tile_ptr, tile, side="right")) - 1
        yield f"tile {tile} of {r.name[region]} on GPU {r.node[region]}: found no op that waits for it, expected one before the collective ends"


@rule("collective")
def _nothing_is_sent_twice(case: _SmallCollective) -> Lines:
    """No two ops of one template push the same bytes of the same chunk to the same place."""
    p, m, seen = case.program, case.program.members, dict[tuple[Any, ...], int]()
    pushes = np.array([t.kind in PUSHES and bool(t.src) for t in p.templates], bool)[p.ops.template]
    offset = np.zeros(p.n_ops, np.int64) if p.ops.offset is None else p.ops.offset
    for op in np.flatnonzero(pushes).tolist():
        first, last = int(m.ptr[op]), int(m.ptr[op + 1])
        rows = m.fill_row[m.fill_ptr[first] : m.fill_ptr[last]].tobytes()
        does = (*(int(one[op]) for one in (p.ops.template, p.ops.node, p.ops.key, offset)), m.node[first:last].tobytes(), rows)
        if (other := seen.setdefault(does, op)) != op:
            yield f"{op_name(p, op)}: found what op {other} sends, expected every chunk once"


@rule("collective")
def _causes_are_named(case: _SmallCollective) -> Lines:
    """The critical path adds up to the time, and no op counts as a late rank's start."""
    causes = attribute(case.program, case.trace)
    if sum(causes.values()) != case.trace.time_ps:
        yield f"attribution: found {sum(causes.values())} ps, expected {case.trace.time_ps} ps"
    if START in causes:
        yield f'templates: found the function "{LATE}", expected another one (it means the late start of a rank)'


@rule("collective")
def _bytes_are_moved(case: _SmallCollective) -> Lines:
    """Payload in the Trace equals the tables, hardware is the cluster's, bytes on links are explained, and the busiest GPU carries `least_bytes`."""
    yield from not_of_the_cluster(case.program, case.trace, case.cluster)
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
def _levels_agree(case: _SmallCollective) -> Lines:
    """Packet level takes about as long as burst level."""
    packet = run_packet(case.program, fabric_of(case.cluster)).trace.time_ps
    if abs(packet - case.trace.time_ps) > LEVELS_APART * case.trace.time_ps:
        yield f"time: found {packet} ps at packet level, expected within {LEVELS_APART:.0%} of {case.trace.time_ps} ps"


@rule("collective")
def _lost_data_are_noticed(case: _SmallCollective) -> Lines:
    """Without the data of one op, and of those that repeat it, the vectors are wrong, or the machine says which chunk is missing."""
    p = case.program
    moves = np.flatnonzero(np.array([bool(t.src) and t.kind is not Kind.COMPUTE for t in p.templates], bool)[p.ops.template])
    silent = {i: len(p.templates) + i for i in range(len(p.templates))}
    last = np.append(p.members.node, -1)[p.members.ptr[1:] - 1]
    does = np.stack([p.ops.template, p.ops.node, p.ops.key, last], axis=1)
    templates = (*p.templates, *(replace(t, fn="control", src="", dst="") for t in p.templates))
    for op in moves[:: max(1, len(moves) // SAMPLED)].tolist():
        template = p.ops.template.copy()
        template[np.all(does == does[op], axis=1)] = silent[int(template[op])]
        try:
            done = case.emulate(replace(p, templates=templates, ops=replace(p.ops, template=template)))
        except DysharpError:
            continue
        if done.holds:
            yield f"op {op}: found right vectors without its data, expected wrong ones"
