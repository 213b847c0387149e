"""Tables of a destination hub: algebraic layout (with its TLB) and token tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from dysharp.base import Numbers
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.transaction import Transaction
from dysharp.protocol import al_table, tracker
from dysharp.protocol.al_table import Key  # (local expert, block)

Place = tuple[int, int]  # (local expert, layout block)
Served = Callable[[list[Place]], None]


class TablesOwner(Protocol):
    """The owner of the memory behind the tables."""

    def allocated(self, key: Key, layout: int) -> None:
        """The first touch of `key` got block `layout` of its expert. Tell the tracker (`tracker.Bind`)."""

    def unbound(self, t: Any, key: Key) -> None:
        """`t` reads a block that nobody wrote: raise an error."""

    def tile_ready(self, tile: tracker.Tile) -> None:
        """All rows of `tile` have arrived."""

    def output_visible(self, expert: int, block: int) -> None:
        """The last GEMM of a local expert on `block` is done: notify the block's home."""


@dataclass(slots=True, eq=False)
class _Lookups:
    """A copy that waits in the hub until all its targets are translated. `t`: its transaction."""

    t: Transaction
    missing: int
    served: Served
    places: list[Place] = field(default_factory=list)


class HubTables:
    """AL Table, TLB and tracker of `gpu`. `miss(tables, key)` reads the AL Table in memory, and a call of `memory_answers` must follow."""

    def __init__(
        self,
        gpu: int,
        al: al_table.AlState,
        ts: tracker.TrackerState,
        owner: TablesOwner,
        miss: Callable[[HubTables, Key], None],
        statistics: Statistics,
    ) -> None:
        self.gpu, self.al, self.ts = gpu, al, ts
        self._owner, self._miss = owner, miss
        self._al_counts = statistics.table("al_tlb", entries=al.tlb_entries)
        self._ts_counts = statistics.table("ts", entries=ts.entries)

    def look_up(self, t: Transaction, experts: Numbers, block: int, served: Served) -> None:
        """Translate `block` for each local expert; stores allocate. `served` gets the places in ascending order when all of them are translated."""
        lookups = _Lookups(t, len(experts), served)
        for e in experts:
            self._al_counts["lookups"] += 1
            self._al_counts["hits"] += al_table.is_hit(self.al, (e, block))
            joins = (e, block) in self.al.pending
            self._al_step(al_table.Lookup((e, block), lookups, not t.pull))
            self._al_counts["merged"] += joins

    def memory_answers(self, key: Key) -> None:
        """Memory has read the AL Table entry of a miss."""
        self._al_step(al_table.MemoryAnswer(key))

    def track(self, event: tracker.Event) -> None:
        """A row is bound, data is visible, or a GEMM has finished."""
        self.ts, outputs = tracker.step(self.ts, event)
        for out in outputs:
            if isinstance(out, tracker.TileSpilled):
                self._ts_counts["spills"] += 1
            elif isinstance(out, tracker.TileReady):
                self._ts_counts["tiles"] += 1
                self._owner.tile_ready(out.tile)
            elif isinstance(out, tracker.Notify):
                self._owner.output_visible(out.expert, out.token)

    def waiting(self) -> Iterator[str]:
        """One phrase per miss that memory has not answered."""
        for e, block in self.al.pending:
            yield f"GPU {self.gpu} AL miss of expert {e}, token {block}"

    def _al_step(self, event: al_table.Event) -> None:
        self.al, outputs = al_table.step(self.al, event)
        for out in outputs:
            if isinstance(out, al_table.ReadTable):
                self._al_counts["misses"] += 1
                self._miss(self, out.key)
            elif isinstance(out, al_table.BlockBound):
                self._owner.allocated(out.key, out.layout)
            elif isinstance(out, al_table.Found):
                _translated(out.packet, (out.key[0], out.layout))  # type: ignore[arg-type]
            elif isinstance(out, al_table.Unbound):
                self._owner.unbound(out.packet.t, out.key)  # type: ignore[attr-defined]


def _translated(lookups: _Lookups, place: Place) -> None:
    lookups.places.append(place)
    lookups.missing -= 1
    if lookups.missing == 0:
        lookups.served(sorted(lookups.places))
