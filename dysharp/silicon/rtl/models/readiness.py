"""`protocol.dam` behind the pins of the readiness counters."""

from random import Random

from dysharp.protocol import dam
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Model, Values
from dysharp.silicon.rtl.readiness import DamParameters, Readiness


class ReadinessModel(Model):
    """A region with fewer rows than its grid; bytes, records and announcements in mixed order."""

    def __init__(self, parameters: DamParameters, random: Random):
        self.p = p = parameters
        super().__init__(p.tiles)
        self.row_bytes = random.randint(1, 2)
        n_rows = random.randint(0, p.tiles * p.tile_rows)
        self.state = dam.empty(p.tiles * p.tile_rows, self.row_bytes, p.tile_rows, p.producers)
        cuts = sorted(random.randint(0, n_rows) for _ in range(p.producers - 1))
        rows = [b - a for a, b in zip([0, *cuts], [*cuts, n_rows], strict=True)]
        self.todo = [(0, place, 1) for place in range(n_rows) for _ in range(self.row_bytes)] + [(1, place, 1) for place in range(n_rows)]
        self.todo += [(2, producer, n) for producer, n in enumerate(rows)]
        random.shuffle(self.todo)
        self.adds, self.walk, self.all_ready = 0, -1, 0
        self.outputs: dict[int, list[dam.Output]] = {}  # of the walk, by tile
        self.stall, self.load = random.choice((0, 0.3)), random.choice((0.5, 1))

    def draw(self, random: Random) -> dict[str, int]:
        kind, what, n = self.todo[0] if self.todo else (0, 0, 0)
        pins = {"valid": int(bool(self.todo) and random.random() < self.load), "op": kind, "row_bytes": self.row_bytes}
        pins |= {"place": what if kind < 2 else 0, "n_bytes": n if kind == 0 else 7, "producer": what if kind == 2 else 0}
        pins |= {"rows": n if kind == 2 else 3, "tile_bytes": self.row_bytes * self.p.tile_rows}
        return pins | {"out_ready": int(random.random() >= self.stall)}

    def cycle(self, pins: Values) -> Values:
        free = not self.out["out_valid"] or pins["out_ready"]
        begins = not self.all_ready and self.state.all_ready and not self.adds
        ready = int(not self.busy and free and not self.adds and not begins and self.walk < 0)
        now = self.out | {"ready": ready, "all_ready": self.all_ready, "error": 0}
        if free:
            self.out = {"out_valid": 0}
        if self.busy:
            self.busy -= 1
        if self.adds:
            self.adds -= 1
        elif self.walk >= 0:
            if free:
                self._out(self.outputs.pop(self.walk, []))
                self.walk = self.walk + 1 if self.walk < self.p.tiles - 1 else -1
        elif begins and free and not self.busy:
            self.walk, self.all_ready = 0, 1
        elif ready and pins["valid"]:
            self._step(*self.todo.pop(0))
        return now

    def _step(self, kind: int, what: int, n: int) -> None:
        was = self.state.all_ready
        event: dam.Event = dam.Ack(what, n) if kind == 0 else dam.Record(what) if kind == 1 else dam.Announce(what, n)
        self.adds = n.bit_length() if kind == 2 else 0
        self.state, outputs = dam.step(self.state, event)
        for output in outputs:
            self.seen[type(output).__name__.lower()] += 1
        if self.state.all_ready and not was:  # what the event itself caused comes at once, the rest in the walk
            for output in outputs:
                self.outputs.setdefault(output.tile, []).append(output)
            tile, rows = what // self.p.tile_rows, self.p.tile_rows
            mine = self.outputs.get(tile, []) if kind < 2 else []
            if mine and not isinstance(mine[0], dam.Reclaim) and dam.rows_of(self.state, tile) == rows:
                self._out(self.outputs.pop(tile))
            return
        self._out(list(outputs))

    def _out(self, outputs: list[dam.Output]) -> None:
        if outputs:
            kinds = {type(output) for output in outputs}
            self.out = {"out_valid": 1, "out_tile": outputs[0].tile, "is_ready": int(dam.Ready in kinds)}
            self.out |= {"is_returnable": int(dam.Returnable in kinds), "is_reclaim": int(dam.Reclaim in kinds)}
            if not isinstance(outputs[0], dam.Reclaim):
                self.out["out_rows"] = outputs[0].rows


BLOCK = Block(
    "readiness", "bytes and records per tile, announced totals, reclaim", DamParameters, Readiness, ReadinessModel,
    small=(DamParameters(3, 2, 2, 5, 4, 3), DamParameters(2, 4, 3, 5, 4, 3), DamParameters(4, 1, 2, 5, 4, 3)),
)  # fmt: skip
