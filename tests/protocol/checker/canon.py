"""States of an actor that behave alike count as one state. This file drops history that no step reads again.

| actor | dropped | reason |
|---|---|---|
| hub | order of blocks within a tile | a tile is computed and announced as a whole; packets carry no layout index |
| hub | order of pending misses and of packets that wait for one | one answer serves all packets of a miss |
| hub | order of entries in memory | no step reads it |
| OR table | order of ready tokens and of notices | no step reads it |
| operation | all fields but the result, when it is done | no step reads them |

Least-recently-used orders stay.
"""

from collections.abc import Hashable

from dysharp.protocol import readiness
from tests.protocol.checker.actors import Hub, Operation, Port


def canonical(state: Hub | Port | readiness.ReadinessState | Operation) -> Hashable:
    """A value that is equal for states that send equal messages for ever."""
    if isinstance(state, Hub):
        return _hub(state)
    if isinstance(state, readiness.ReadinessState):
        on_chip = tuple((t, tuple(sorted(es))) for t, es in state.on_chip.items())
        return on_chip, tuple(sorted((t, tuple(sorted(es))) for t, es in state.memory.items())), tuple(sorted(state.ready))
    if isinstance(state, Operation) and state.done:
        return state.result
    return state


def _hub(hub: Hub) -> Hashable:
    rows = sorted(
        (expert, layout // hub.tiles.shape.tile_rows, token, hub.rows.get((expert, layout)) or (), hub.outputs.get((expert, layout)) or 0)
        for expert, table in enumerate(hub.al.tables)
        for token, layout in table.items()
    )
    return (
        tuple(rows),
        tuple(hub.al.tlb),
        tuple(sorted((key, tuple(sorted(waiting))) for key, waiting in hub.al.pending.items())),
        tuple(hub.tiles.on_chip.items()),
        tuple(sorted((tile, entry.bytes, entry.gemm1, entry.gemm2) for tile, entry in hub.tiles.memory.items())),
        tuple(sorted((tile, tuple(sorted(row))) for tile, row in hub.tiles.tokens.items())),
        tuple(sorted(hub.open.items())),
        tuple(sorted((tile, () if rows is None else tuple(sorted(rows))) for tile, rows in hub.work.items())),
    )
