"""`protocol.al_table` behind the pins of the AL TLB, with the table in memory."""

from random import Random

from dysharp.protocol import al_table
from dysharp.silicon.rtl.al_tlb import AlTlb, TlbParameters
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Model, Values


class TlbModel(Model):
    """Lookups of few rows, so that misses join; memory answers in any order."""

    def __init__(self, parameters: TlbParameters, random: Random):
        self.p = p = parameters
        super().__init__(max(p.entries, p.waiters, p.experts))
        self.state = al_table.empty(p.experts, p.entries, p.misses)
        self.read: dict[str, int] = {"read_valid": 0}
        self.write: dict[str, int] = {"write_valid": 0}
        self.register: dict[al_table.Key, int] = {}
        self.known: list[al_table.Key] = []  # reads that memory has seen
        self.leaving: list[dict[str, int]] = []
        self.n_wait = 0
        self.stall, self.slow, self.rows = random.choice((0, 0.3)), random.choice((0.1, 0.5)), random.choice((2, 6))
        self.held: dict[str, int] = {}

    def draw(self, random: Random) -> dict[str, int]:
        if not self.held:
            e, i = random.randrange(self.p.experts), random.randrange(min(self.rows, 1 << self.p.index_bits))
            packet = random.getrandbits(self.p.packet_bits)
            self.held = {"valid": int(random.random() < 0.9), "expert": e, "index": i, "packet": packet, "allocate": int(random.random() < 0.6)}
        pins = self.held | {"out_ready": int(random.random() >= self.stall), "read_ready": int(random.random() >= self.stall), "answer_valid": 0}
        if self.known and random.random() < self.slow:
            key = random.choice(self.known)
            layout = al_table.layout_of(self.state, key)
            pins |= {"answer_valid": 1, "answer_miss": self.register[key], "answer_bound": int(layout >= 0), "answer_layout": max(layout, 0)}
        return pins

    def cycle(self, pins: Values) -> Values:
        key = (pins["expert"], pins["index"])
        start = self.busy == 0
        out_free, read_free = not self.out["out_valid"] or pins["out_ready"], not self.read["read_valid"] or pins["read_ready"]
        cached, joins = al_table.is_hit(self.state, key), key in self.state.pending
        room = self.n_wait < self.p.waiters and (joins or len(self.state.pending) < self.p.misses)
        ready = int(start and not self.leaving and not pins["answer_valid"] and out_free and read_free and (cached or room))
        answer_ready = int(start and not self.leaving)
        now = self.out | self.read | self.write | {"ready": ready, "answer_ready": answer_ready}
        if self.read["read_valid"] and pins["read_ready"]:
            self.known.append((self.read["read_expert"], self.read["read_index"]))
        if out_free:
            self.out = {"out_valid": 0}
            if self.leaving:
                self.out = self.leaving.pop(0)
                self.n_wait -= 1
        if read_free:
            self.read = {"read_valid": 0}
        self.write = {"write_valid": 0}
        self.busy = max(0, self.busy - 1)
        if answer_ready and pins["answer_valid"]:
            self._answer(next(k for k in self.known if self.register[k] == pins["answer_miss"]))
        elif ready and pins["valid"]:
            self._look_up(al_table.Lookup(key, pins["packet"], bool(pins["allocate"])))
        elif start and pins["valid"] and not (cached or room):
            self.seen["at the door"] += 1
        if ready or not pins["valid"]:
            self.held = {}
        return now

    def _look_up(self, event: al_table.Lookup) -> None:
        self.state, outputs = al_table.step(self.state, event)
        if outputs and isinstance(outputs[0], al_table.Found):
            self.seen["hit"] += 1
            self.out = self._found(outputs[0])
            return
        self.n_wait += 1
        self.seen["miss" if outputs else "joined"] += 1
        if outputs:
            expert, index = event.key
            self.register[event.key] = min(set(range(self.p.misses)) - {self.register[k] for k in self.state.pending if k != event.key})
            self.read = {"read_valid": 1, "read_expert": expert, "read_index": index, "read_miss": self.register[event.key]}

    def _answer(self, key: al_table.Key) -> None:
        self.known.remove(key)
        self.state, outputs = al_table.step(self.state, al_table.MemoryAnswer(key))
        for output in outputs:
            if isinstance(output, al_table.Allocated):
                self.seen["bound"] += 1
                self.write = {"write_valid": 1, "write_expert": key[0], "write_index": key[1], "write_layout": output.layout}
            elif isinstance(output, al_table.Unbound):
                self.seen["unbound"] += 1
                self.leaving.append({"out_valid": 1, "out_packet": int(str(output.packet)), "out_unbound": 1})
            elif isinstance(output, al_table.Found):
                self.leaving.append(self._found(output))

    def _found(self, output: al_table.Found) -> dict[str, int]:
        return {"out_valid": 1, "out_packet": int(str(output.packet)), "out_layout": output.layout, "out_unbound": 0}


BLOCK = Block(
    "al-tlb", "algebraic to layout index, miss registers, waiting packets", TlbParameters, AlTlb, TlbModel,
    small=(TlbParameters(2, 2, 4, 2, 3, 4, 5), TlbParameters(3, 1, 3, 1, 3, 4, 5), TlbParameters(4, 3, 4, 2, 3, 4, 5)),
)  # fmt: skip
