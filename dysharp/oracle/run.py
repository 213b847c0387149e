"""The loop: all releases of an instant, then all grants, until the instant is over (docs/design/0001, Order); and the deadlock report."""

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from dysharp.base import ByName, SimulationError
from dysharp.oracle.depend import Dependencies
from dysharp.oracle.fabric import OracleFabric
from dysharp.oracle.issue import IssueQueues
from dysharp.oracle.load import Op, load
from dysharp.oracle.stores import RunRegions
from dysharp.oracle.transfers import TransferOps
from dysharp.oracle.world import Event, World
from dysharp.program import Head, Kind, Program, Tail, Trace


class OracleRun:
    """One run of a Program: build it, `play`, read `trace`."""

    def __init__(self, program: Program) -> None:
        self.world = world = World(load(program))
        self.fabric = OracleFabric(world)
        self.issuers = IssueQueues(world)
        self.dependencies = Dependencies(world)
        self.stores = RunRegions(world, self.fabric, self.dependencies)
        self.transfers = TransferOps(world, self.fabric, self.stores, self.dependencies)
        world.finished = self.issuers.finished
        world.apply = self.dependencies.apply
        self.issuers.send = self.transfers.issue
        self.fabric.expose = self.transfers.expose
        self.fabric.responded = self.transfers.responded
        self.dependencies.enqueue = self.issuers.enqueue
        self.dependencies.dropped = self.issuers.dropped
        self.dependencies.ended = self.issuers.split
        self.dependencies.respond = self.transfers.may_respond
        self.dependencies.notify = self.stores.notify
        ops = world.ops
        self._handlers: dict[Event, Callable[[int, int], None]] = {
            Event.COMPUTE_END: lambda _, op: self.issuers.compute_end(ops[op]),
            Event.UP_END: lambda node, _: setattr(self.fabric.up[node].server, "idle", True),
            Event.ARRIVE: lambda _, op: self.fabric.arrive(ops[op]),
            Event.DOWN_END: lambda node, _: self.fabric.down_end(node),
            Event.DELIVER: lambda _, member: self.transfers.deliver(member),
            Event.RESPOND: lambda _, member: self.transfers.respond(member),
            Event.RESULT: lambda _, op: self.transfers.result(ops[op]),
            Event.RESULT_DELIVERED: lambda _, op: self.transfers.result_delivered(ops[op]),
            Event.LOCAL: lambda _, member: self.transfers.local(member),
            Event.ACK: lambda _, op: world.complete(ops[op]),
            Event.NOTIFY: lambda _, tile: self.stores.notified(tile),
            Event.RESPOND_LATE: lambda _, member: self.transfers.respond(member),
            Event.KNOWN: lambda node, _: self.transfers.known(self.fabric.places_known(node)),
            Event.CREDIT: lambda _, op: self.fabric.credit(ops[op]),
            Event.DOWN_FREE: lambda node, _: setattr(self.fabric.down[node].server, "idle", True),
            Event.ISSUER: lambda _, __: None,  # the grant pass behind the event does the work
        }

    def play(self) -> None:
        """Run to the end. Raises SimulationError on a deadlock."""
        self.dependencies.begin()
        self._settle()
        while self._apply_next():
            self._settle()
        log = self.world.log
        if any(done < 0 and op not in log.cancelled for op, done in enumerate(log.done)):
            _raise_deadlock(self.world, self.dependencies, self.issuers, self.fabric, self.stores)

    def _apply_next(self) -> bool:
        taken = self.world.agenda.take()
        if taken is None:
            return False
        kind, resource, ident = taken
        self._handlers[kind](resource, ident)
        self.transfers.open_gates()
        self.dependencies.drain()
        return True

    def _settle(self) -> None:
        """Apply the events that are pending at this instant, then grant. Repeat if a grant made an event pending."""
        while True:
            while self.world.agenda.due():
                self._apply_next()
            self._grant()
            if not self.world.fired and not self.world.agenda.due():
                return
            self.dependencies.drain()

    def _grant(self) -> None:
        for issuer in range(len(self.issuers.queues)):
            self.issuers.grant(issuer)
        for port in range(self.fabric.n_ports):
            self.fabric.grant_up(port)
        for port in range(self.fabric.n_ports):
            self.fabric.grant_down(port)

    def trace(self) -> Trace:
        """The record of the run."""
        log, slots = self.world.log, [slot for region in self.stores.states for slot in region.slot]  # -1: never bound
        times = ("ready", "issue", "start", "end", "done", "member", "tile_ready")
        columns: ByName = {name: np.array(getattr(log, name), np.int64) for name in times}
        for side, links in (("up", self.fabric.up), ("down", self.fabric.down)):
            columns[f"{side}_busy"] = np.array([link.server.total for link in links], np.int64)
        return Trace(cause=np.array(log.cause, np.int32), row_slot=np.array(slots, np.int32), n_events=self.world.agenda.n_events, **columns)


def run_oracle(program: Program) -> Trace:
    """The Trace of `program`, in ps and bytes. -1 = did not happen (cancelled ops).

    Raises ProgramError for a COMPUTE or DELAY without a duration, SimulationError for a deadlock.
    Source: docs/design/0001 (times), docs/design/0002 (reserved parts).
    """
    run = OracleRun(program)
    run.play()
    return run.trace()


SHOWN = 3


def _raise_deadlock(world: World, dependencies: Dependencies, issuers: IssueQueues, fabric: OracleFabric, stores: RunRegions) -> NoReturn:
    """Raise SimulationError that names the first stuck ops. Issued ops come first, because they hold up the rest."""
    log, ops = world.log, world.ops
    stuck = [op for op in ops[: len(log.done)] if log.done[op.id] < 0 and op.id not in log.cancelled]
    stuck.sort(key=lambda op: (log.issue[op.id] < 0, log.ready[op.id] < 0, op.id))
    lines = []
    for op in stuck[:SHOWN]:
        if log.issue[op.id] >= 0:
            lines.append(_under_way(world, dependencies, op))
        elif log.ready[op.id] >= 0:
            lines.append(_unissued(world, issuers, op))
        else:
            lines.append(_unready(world, dependencies, stores, op))
    more = f"; and {len(stuck) - SHOWN} more" if len(stuck) > SHOWN else ""
    head = f"deadlock at {world.now} ps: {len(stuck)} of {len(log.done)} ops not done, expected none: "
    raise SimulationError(head + "; ".join(lines) + more)


def _under_way(world: World, dependencies: Dependencies, op: Op) -> str:
    if op.session >= 0:
        return f"{op} waits for the other members of session {op.session}"
    held = [m for m in op.members if dependencies.waits[Head.MEMBER_RESPOND, m] > 0]
    if held:
        node, edges = world.members[held[0]].node, dependencies.waits[Head.MEMBER_RESPOND, held[0]]
        return f"{op} waits for the response of node {node}, which waits for {edges} edges"
    return f"{op} waits for its data (issued at {world.log.issue[op.id]} ps)"


def _unissued(world: World, issuers: IssueQueues, op: Op) -> str:
    name = issuers.names[op.issuer]
    head = issuers.queues[op.issuer].waiting()
    if head is not None and head.id != op.id:
        return f"{op} waits in issuer {name} behind {head}"
    full = world.semaphores.full(op)
    if full:
        s, semaphores = full[0], world.semaphores
        level = f"{semaphores.level[s]} of {semaphores.capacity[s]} held"
        return f"{op} waits for semaphore {semaphores.names[s]} ({level})"
    return f"{op} waits for a slot of issuer {name}"


def _unready(world: World, dependencies: Dependencies, stores: RunRegions, op: Op) -> str:
    log = world.log
    for (tail, ident), edges in dependencies.out.items():
        if not any(e.head is Head.OP_ISSUE and e.ident == op.id for e in edges):
            continue
        if tail in (Tail.OP_DONE, Tail.OP_ISSUED):
            if (log.done if tail is Tail.OP_DONE else log.issue)[ident] < 0:
                return f"{op} waits for {world.ops[ident]}"
        elif tail is Tail.TILE_READY and log.tile_ready[ident] < 0:
            return f"{op} waits for tile {ident} ({stores.rows_by_tile()[ident]} rows complete)"
    if op.kind is Kind.JOIN and op.threshold >= 0:
        return f"{op} waits for announced events"
    return f"{op} waits for {dependencies.waits[Head.OP_ISSUE, op.id]} more events (row notifications, deliveries or rows)"
