"""Tables: of a hub, when the places of asked rows are known (docs/design/0001, Tables); of the switch, `Places`."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from dysharp.oracle.load import Op
from dysharp.oracle.world import World
from dysharp.program import HubTable, Program
from dysharp.protocol import aau, merging

NEVER = 1 << 40


class _TableOfHub:
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
            known = max(known, self._known(row))
        return max(known, self.clock)

    def _known(self, row: int) -> int:
        if row in self.cached:
            self.cached.move_to_end(row)
            return self.cached[row]
        known = self.cached[row] = self._read()
        if self.table.entries and len(self.cached) > self.table.entries:
            self.cached.popitem(last=False)
        return known

    def _read(self) -> int:
        """A miss, when it has a register. Returns when memory has answered."""
        limit = self.table.misses
        if limit and len(self.ends) == limit:
            self.clock = max(self.clock, self.ends.popleft())
        known = self.clock + self.table.miss_ps
        if limit:
            self.ends.append(known)
        return known


class _RowTableOfHub(_TableOfHub):
    """A row table at one hub: the unit of `protocol/aau.py`, for which only the last train of a row has a byte.

    `pieces`: trains of each row that ask.
    """

    def __init__(self, table: HubTable, program: Program, pieces: Counter[int]) -> None:
        super().__init__(table)
        entries = table.entries // table.banks or NEVER
        self.unit = aau.empty((aau.Region(0, 1, NEVER),) * program.n_regions, entries=entries, banks=table.banks)
        self.region = {row: r for r in range(program.n_regions) for row in range(*program.regions.row_ptr[r : r + 2].tolist())}
        self.left, self.place_known = pieces.copy(), dict[int, int]()

    def _known(self, row: int) -> int:
        self.left[row] -= 1
        key = self.region[row], row
        self.unit, outputs = aau.step(self.unit, aau.RowPacket(key, 0, int(self.left[row] == 0), row))
        if any(isinstance(output, aau.ReadMap) for output in outputs):
            self.place_known[row] = self._read()
            self.unit, _ = aau.step(self.unit, aau.MapAnswer(key))
        return self.place_known.setdefault(row, self.clock)


def tables_of(program: Program, pieces: Counter[int]) -> list[list[_TableOfHub]]:
    """The tables of all hubs, by table and node. `pieces`: trains of each row that ask the row table."""

    def one(table: HubTable) -> _TableOfHub:
        return _RowTableOfHub(table, program, pieces) if table.allocates else _TableOfHub(table)

    return [[one(table) for _ in range(program.n_nodes)] for table in program.tables]


class Places:
    """The merge table of every home, at the switch ports that face it: loads that merge, and sums (docs/design/0002), on `protocol/merging.py`."""

    def __init__(self, world: World) -> None:
        self.world = world
        program, sessions = world.tables.program, world.tables.program.sessions
        self._expected: list[int] = [] if sessions is None else sessions.expected.tolist()
        self._timeout = 0 if sessions is None else sessions.timeout_ps
        places = 0 if sessions is None else sessions.places
        self._tables = [merging.empty(places or NEVER) for _ in range(program.n_nodes)]
        self._used: dict[int, int] = {}  # when the entry of an address was used last
        self.merging: set[int] = set()
        """Loads that went on and whose response comes to the table."""

    def take(self, home: int) -> bool:
        """Whether a sum that begins has a place of `home`."""
        return any(isinstance(out, merging.Taken) and out.has_place for out in self._step(home, merging.Take()))

    def give(self, home: int) -> None:
        """A sum is visible at `home`."""
        self._step(home, merging.Give())

    def load(self, op: Op, home: int) -> merging.Output | None:
        """What becomes of the load `op`: it goes on, is answered, or waits for a response (None)."""
        now, address = self.world.now, op.session
        if 0 < self._timeout < now - self._used.get(address, now):
            self.world.counts["load that timed out"] += len(self._step(home, merging.Expire(address)))
        told = self._step(home, merging.Load(address, op.id, self._expected[address]))
        out = told[-1] if told else None
        if isinstance(out, merging.Forward) and not out.merges:
            self.world.counts["load that passes"] += 1
            return out
        self._used[address] = now
        if isinstance(out, merging.Forward):
            self.merging.add(op.id)
        self.world.counts["load that goes on" if out and op.id in self.merging else "load answered at once" if out else "load that waits"] += 1
        return out

    def response(self, op: Op, home: int) -> list[int]:
        """The ops that the response to `op` answers, in order."""
        if op.id not in self.merging:
            return [op.id]
        self._used[op.session] = self.world.now
        outputs = self._step(home, merging.Response(op.session))
        return [out.asker for out in outputs if isinstance(out, merging.LoadResponse) and isinstance(out.asker, int)]

    def _step(self, home: int, event: merging.Event) -> tuple[merging.Output, ...]:
        self._tables[home], outputs = merging.step(self._tables[home], event)
        self.world.counts["cached response dropped"] += any(isinstance(out, merging.Dropped) for out in outputs)
        return outputs
