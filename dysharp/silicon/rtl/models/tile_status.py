"""`protocol.tracker` behind the pins of the TS table. A packet counts one byte of the model."""

from random import Random

from dysharp.protocol import tracker
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Values
from dysharp.silicon.rtl.counter_table import TileParameters, TileStatus
from dysharp.silicon.rtl.models.counter_table import CounterModel


class TileModel(CounterModel):
    """Experts with whole tiles and a partial last one; packets in random order, then the blocks of both GEMMs."""

    def __init__(self, parameters: TileParameters, random: Random):
        super().__init__(parameters.entries, random)
        self.p, rows = parameters, tuple(random.randint(1, 6) for _ in range(parameters.experts))
        self.shape = tracker.Shape(2, random.randint(1, 2), rows, random.randint(1, 2), random.randint(1, 2))
        tokens = tuple(tuple(range(n)) for n in rows)
        self.state = tracker.bound(self.shape, parameters.entries, tokens)
        self.todo = [(e, row, chunk) for e, n in enumerate(rows) for row in range(n) for chunk in range(self.shape.row_bytes)]
        random.shuffle(self.todo)
        self.blocks: list[tuple[int, int]] = []  # (event, key) of blocks that may finish
        self.registers = list(range(parameters.experts))

    def key(self, tile: tracker.Tile) -> int:
        return tile[0] << self.p.tile_bits | tile[1]

    def tile(self, key: int) -> tracker.Tile:
        return key >> self.p.tile_bits, key & ((1 << self.p.tile_bits) - 1)

    def draw(self, random: Random) -> dict[str, int]:
        pins = {"tile_packets": self.shape.tile_rows * self.shape.row_bytes, "blocks1": self.shape.gemm1_blocks, "blocks2": self.shape.gemm2_blocks}
        pins |= {"valid": 0, "set": 0, "key": 0, "op": 0, "chosen": -1} | self.answers(random)
        if self.registers:  # before the first packet
            e = self.registers.pop()
            last = (self.shape.n_active[e] - 1) // self.shape.tile_rows
            pins |= {"set": 1, "set_expert": e, "set_last": last, "set_packets": self.shape.threshold_bytes((e, last))}
        elif random.random() < self.load and (self.blocks or self.todo):
            if self.blocks and (not self.todo or random.random() < 0.5):
                pins["chosen"] = random.randrange(len(self.blocks))
                pins["op"], pins["key"] = self.blocks[pins["chosen"]]
            else:
                expert, row, _ = self.todo[0]
                pins["key"] = self.key((expert, row // self.shape.tile_rows))
            pins["valid"] = 1
        self.chosen = pins.pop("chosen")
        return pins

    def sent(self, pins: Values) -> None:
        if self.chosen >= 0:
            self.blocks.pop(self.chosen)
        else:
            self.todo.pop(0)

    def cycle(self, pins: Values) -> Values:
        self.first = self.todo[0] if self.todo else (0, 0, 0)
        return super().cycle(dict(pins) | {"row": self.first[1], "chunk": self.first[2]})

    def step(self, event: Values) -> int:
        tile = self.tile(event["key"])
        name = ("packet", "GEMM-1 block", "GEMM-2 block")[event["op"]]
        self.seen[name] += 1
        step: tracker.Event = tracker.Store(tile[0], event["row"], event["chunk"], 1)
        if event["op"]:
            step = (tracker.Gemm1Block if event["op"] == 1 else tracker.Gemm2Block)(tile)
        self.state, outputs = tracker.step(self.state, step)
        kinds = {tracker.TileReady: 1, tracker.RowReady: 2, tracker.Notify: 3}
        kind = max((kinds.get(type(output), 0) for output in outputs), default=0)
        if kind in (1, 2):
            self.blocks += [(kind, event["key"])] * (self.shape.gemm1_blocks if kind == 1 else self.shape.gemm2_blocks)
        return kind

    def chip(self) -> list[int]:
        return [self.key(tile) for tile in self.state.on_chip]

    def spilt(self) -> list[int]:
        return [self.key(tile) for tile in self.state.memory]

    def data(self, key: int) -> int:
        e = tracker.entry_of(self.state, self.tile(key))
        return e.bytes | e.gemm1 << self.p.packet_bits | e.gemm2 << self.p.packet_bits + self.p.block_bits


BLOCK = Block(
    "tile-status", "packets and thread blocks per tile, spill", TileParameters, TileStatus, TileModel,
    small=(TileParameters(2, 2, 2, 4, 2), TileParameters(3, 2, 3, 4, 2), TileParameters(4, 2, 4, 4, 2)),
)  # fmt: skip
