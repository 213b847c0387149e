"""One table of one hub: when the places of asked rows are known (docs/design/0001, Tables)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from dysharp.program.tables import HubTable


class TableOfHub:
    """The cache of a table at one hub, and its misses under way. Times in ps."""

    def __init__(self, table: HubTable) -> None:
        self.table = table
        self.cached: OrderedDict[int, int] = OrderedDict()
        """When the place of each cached row is known, least recently asked first."""
        self.ends: deque[int] = deque()
        """Ends of the latest misses, as many as there are registers."""
        self.clock = 0

    def ask(self, rows: Iterable[int], arrival: int) -> int:
        """A copy that arrives at `arrival` asks for `rows`. Returns when all places are known."""
        self.clock = max(self.clock, arrival)
        known = self.clock
        for row in rows:
            known = max(known, self._hit(row) if row in self.cached else self._miss(row))
        return max(known, self.clock)

    def _hit(self, row: int) -> int:
        self.cached.move_to_end(row)
        return self.cached[row]

    def _miss(self, row: int) -> int:
        limit = self.table.misses
        if limit and len(self.ends) == limit:
            self.clock = max(self.clock, self.ends.popleft())
        known = self.clock + self.table.miss_ps
        if limit:
            self.ends.append(known)
        self.cached[row] = known
        if self.table.entries and len(self.cached) > self.table.entries:
            self.cached.popitem(last=False)
        return known
