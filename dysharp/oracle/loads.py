"""Places of the switch ports that face a home: loads that merge, and sums (docs/design/0002), on `protocol/merging.py`."""

from dysharp.oracle.load import Op
from dysharp.oracle.world import World
from dysharp.protocol import merging

ANY = 1 << 40


class Places:
    """The merge table of every home."""

    def __init__(self, world: World) -> None:
        self.world = world
        program, sessions = world.tables.program, world.tables.program.sessions
        self._expected: list[int] = [] if sessions is None else sessions.expected.tolist()
        self._timeout = 0 if sessions is None else sessions.timeout_ps
        places = 0 if sessions is None else sessions.places
        self._tables = [merging.empty(places or ANY) for _ in range(program.n_nodes)]
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
        return [out.asker for out in self._step(home, merging.Response(op.session)) if isinstance(out, merging.Answer) and isinstance(out.asker, int)]

    def _step(self, home: int, event: merging.Event) -> tuple[merging.Output, ...]:
        self._tables[home], outputs = merging.step(self._tables[home], event)
        self.world.counts["cached response dropped"] += any(isinstance(out, merging.Dropped) for out in outputs)
        return outputs
