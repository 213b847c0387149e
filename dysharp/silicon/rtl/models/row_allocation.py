"""`protocol.aau` behind the pins of a RAT bank."""

from random import Random

from dysharp.protocol import aau
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Model, Values
from dysharp.silicon.rtl.row_allocation import RowAllocation, RowParameters


class RowModel(Model):
    """Rows of a few regions in packets, in mixed order; some regions are too small."""

    def __init__(self, parameters: RowParameters, random: Random):
        self.p = p = parameters
        super().__init__(p.sets)
        self.regions = tuple(aau.Region(0, random.randint(1, 3), random.randint(2, 5)) for _ in range(p.regions))
        self.state = aau.empty(self.regions, entries=p.ways, banks=p.sets)
        self.spill: dict[str, int] = {"spill_valid": 0}
        self.waits: aau.Store | None = None
        self.registers = list(range(p.regions))
        rows = [(g, row) for g, region in enumerate(self.regions) for row in random.sample(range(1 << p.row_bits), min(region.capacity + 1, 6))]
        self.todo = [(key, 1) for key in rows for _ in range(self.regions[key[0]].row_bytes)]
        random.shuffle(self.todo)
        if random.random() < 0.5:
            self.todo.sort(key=lambda packet: packet[0][1] + 4 * random.random())
        self.stall, self.load = random.choice((0, 0.3)), random.choice((0.5, 1))
        self.dead: set[aau.Key] = set()

    def draw(self, random: Random) -> dict[str, int]:
        stalls = {name: int(random.random() >= self.stall) for name in ("out_ready", "spill_ready")}
        pins = {"valid": 0, "region": 0, "row": 0, "n_bytes": 1, "packet": 0, "set": 0} | stalls
        if self.registers:
            g = self.registers.pop()
            pins |= {"set": 1, "set_region": g, "set_row_bytes": self.regions[g].row_bytes, "set_capacity": self.regions[g].capacity}
        elif self.todo and random.random() < self.load:
            (g, row), n = self.todo[0]
            pins |= {"valid": 1, "region": g, "row": row, "n_bytes": n, "packet": random.getrandbits(self.p.packet_bits)}
        found = self.state.memory.get(self.waits.key) if self.waits else None
        place, n_bytes = found or (random.getrandbits(self.p.place_bits), 1)
        return pins | {"answer": int(random.random() < 0.6), "found": int(found is not None), "answer_place": place, "answer_bytes": n_bytes}

    def cycle(self, pins: Values) -> Values:
        free = not self.busy and (not self.out["out_valid"] or pins["out_ready"]) and (not self.spill["spill_valid"] or pins["spill_ready"])
        ready, fetch = int(free and not self.waits and not pins["set"]), int(bool(free and self.waits))
        now = self.out | self.spill | {"ready": ready, "fetch": fetch}
        if fetch and self.waits:
            now |= {"fetch_region": self.waits.key[0], "fetch_row": self.waits.key[1]}
        if not free:
            self.out = {"out_valid": 0} if pins["out_ready"] else self.out
            self.spill = {"spill_valid": 0} if pins["spill_ready"] else self.spill
        if self.busy:
            self.busy -= 1
        elif free:
            self.out, self.spill = {"out_valid": 0}, {"spill_valid": 0}
            if self.waits and pins["answer"] and not pins["set"]:
                store, self.waits = self.waits, None
                self._step(aau.MapAnswer(store.key), store)
            elif ready and pins["valid"]:
                store = aau.Store((pins["region"], pins["row"]), 0, pins["n_bytes"], pins["packet"])
                self.todo.pop(0)
                self._step(store, store)
        return now

    def _step(self, event: aau.Event, store: aau.Store) -> None:
        rows = {key: entry for bank in self.state.banks for key, entry in bank.items()}
        self.state, outputs = aau.step(self.state, event)
        first = 0
        for output in outputs:
            self.seen[type(output).__name__.lower()] += 1
            if isinstance(output, aau.ReadMap):
                self.waits = store
            elif isinstance(output, aau.Allocated):
                first = 1
            elif isinstance(output, aau.Overflow):
                self.out = {"out_valid": 1, "trap": 1, "out_region": output.region, "out_row": output.row}
            elif isinstance(output, aau.Spilled):
                (place, n_bytes), (region, row) = rows[output.key], output.key
                self.spill = {"spill_valid": 1, "spill_region": region, "spill_row": row, "spill_place": place, "spill_bytes": n_bytes}
            elif isinstance(output, aau.Placed):
                self.out = {"out_valid": 1, "trap": 0, "out_packet": store.packet, "out_place": output.place, "out_first": first}  # type: ignore[dict-item]


BLOCK = Block(
    "row-allocation", "a RAT bank and the APT: place of a row, capacity", RowParameters, RowAllocation, RowModel,
    small=(RowParameters(1, 2, 2, 3, 4, 4, 5), RowParameters(2, 2, 3, 3, 4, 4, 5), RowParameters(2, 3, 2, 3, 4, 4, 5)),
)  # fmt: skip
