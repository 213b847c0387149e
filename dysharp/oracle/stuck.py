"""The deadlock report: the waits of stuck ops when no event is pending."""

from typing import NoReturn

from dysharp.errors import SimulationError
from dysharp.oracle.depend import Dependencies
from dysharp.oracle.fabric import Fabric
from dysharp.oracle.issue import Issuers
from dysharp.oracle.load import Op
from dysharp.oracle.stores import Stores
from dysharp.oracle.world import World
from dysharp.program.tables import Head, Kind, Tail

SHOWN = 3


def raise_deadlock(world: World, dependencies: Dependencies, issuers: Issuers, fabric: Fabric, stores: Stores) -> NoReturn:
    """Raise SimulationError that names the first stuck ops. Issued ops come first, because they hold up the rest."""
    log, ops = world.log, world.tables.ops
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
    held = [m for m in op.members if dependencies.respond_waits.get(m, 0) > 0]
    if held:
        node, edges = world.tables.members[held[0]].node, dependencies.respond_waits[held[0]]
        return f"{op} waits for the response of node {node}, which waits for {edges} edges"
    return f"{op} waits for its data (issued at {world.log.issue[op.id]} ps)"


def _unissued(world: World, issuers: Issuers, op: Op) -> str:
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


def _unready(world: World, dependencies: Dependencies, stores: Stores, op: Op) -> str:
    log = world.log
    for (tail, ident), edges in dependencies.out.items():
        if not any(e.head is Head.OP_ISSUE and e.ident == op.id for e in edges):
            continue
        if tail in (Tail.OP_DONE, Tail.OP_ISSUED):
            if (log.done if tail is Tail.OP_DONE else log.issue)[ident] < 0:
                return f"{op} waits for {world.tables.ops[ident]}"
        elif tail is Tail.TILE_READY and log.tile_ready[ident] < 0:
            return f"{op} waits for tile {ident} ({stores.rows_by_tile()[ident]} rows complete)"
    if op.kind is Kind.JOIN and op.threshold >= 0:
        return f"{op} waits for announced events"
    return f"{op} waits for {dependencies.waits[op.id]} more events (row notifications, deliveries or rows)"
