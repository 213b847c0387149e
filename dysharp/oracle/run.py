"""The loop: all releases of an instant, then all grants, until the instant is over (docs/design/0001, Order)."""

from collections.abc import Callable

import numpy as np

from dysharp.oracle.agenda import Event
from dysharp.oracle.depend import Dependencies
from dysharp.oracle.fabric import Fabric
from dysharp.oracle.issue import Issuers
from dysharp.oracle.load import load
from dysharp.oracle.stores import Stores
from dysharp.oracle.stuck import raise_deadlock
from dysharp.oracle.transfers import Transfers
from dysharp.oracle.world import World
from dysharp.program.tables import Program
from dysharp.program.trace import Trace


class Run:
    """One run of a Program: build it, `play`, read `trace`."""

    def __init__(self, program: Program) -> None:
        self.world = world = World(load(program))
        self.fabric = Fabric(world)
        self.issuers = Issuers(world)
        self.dependencies = Dependencies(world)
        self.stores = Stores(world, self.fabric, self.dependencies)
        self.transfers = Transfers(world, self.fabric, self.stores, self.dependencies)
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
        ops = world.tables.ops
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
            raise_deadlock(self.world, self.dependencies, self.issuers, self.fabric, self.stores)

    def _apply_next(self) -> bool:
        taken = self.world.agenda.take()
        if taken is None:
            return False
        kind, resource, ident = taken
        self._handlers[kind](resource, ident)
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
        log = self.world.log

        def times(column: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
            return np.array(column, np.int64)

        return Trace(
            ready=times(log.ready),
            issue=times(log.issue),
            start=times(log.start),
            end=times(log.end),
            done=times(log.done),
            cause=np.array(log.cause, np.int32),
            member=times(log.member),
            row_slot=np.array(self.stores.row_slots(), np.int32),
            tile_ready=times(log.tile_ready),
            up_busy=times([link.server.total for link in self.fabric.up]),
            down_busy=times([link.server.total for link in self.fabric.down]),
            n_events=self.world.agenda.n_events,
        )


def run_oracle(program: Program) -> Trace:
    """The Trace of `program`, in ps and bytes. -1 = did not happen (cancelled ops).

    Raises ProgramError for a COMPUTE or DELAY without a duration, SimulationError for a deadlock.
    Source: docs/design/0001 (times), docs/design/0002 (reserved parts).
    """
    run = Run(program)
    run.play()
    return run.trace()
