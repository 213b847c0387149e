"""Output Readiness (OR): notices per token. Model: `protocol.readiness`."""

from random import Random
from typing import Any, Self

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value

from dysharp.base import ByName, Tally, frozen
from dysharp.protocol import readiness
from dysharp.silicon.rtl import Block, OrderProof, Proof, Values, check_slots, live_slots, slot_bits, slots
from dysharp.silicon.rtl.counter_table import CounterModel, CounterTable
from dysharp.specs import Cluster


@frozen
class _ReadinessParameters:
    """`entries` tokens on chip; `token_bits` of a token id; `topk`: most notices of a token."""

    entries: int
    token_bits: int = 32
    topk: int = 8

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        check_slots("output-readiness", cluster, "or_entries")
        return cls(cluster.or_entries)


class OutputReadiness(CounterTable):
    """OR: a notice sets bit `place` (which of the token's experts) of the token's map; a full map (`expected` bits) is ready, kind 1.

    A repeated notice of a token that is not ready counts once. A notice after the last one would begin a new entry: links deliver once.
    """

    def counted(self, p: _ReadinessParameters) -> tuple[int, Tally, Tally, Tally]:
        return p.token_bits, {"notices": p.topk}, {"place": slot_bits(p.topk), "expected": p.topk.bit_length()}, {}

    def update(self, m: Module, entry: Any, held: ByName) -> tuple[Any, Any, Value, Value]:
        notice, after = Signal(self.parameters.topk), Signal(self.shape)
        m.d.comb += [notice.eq(1 << held["place"]), after.notices.eq(entry.notices | notice)]
        full = Signal(self.parameters.topk)
        m.d.comb += full.eq((1 << held["expected"]) - 1)
        same, complete = (entry.notices & notice).any(), after.notices == full
        return after, Mux(complete & ~same, Const(1, 2), Const(0, 2)), complete & ~same, same


TOKENS = 12


class _NoticeModel(CounterModel):
    """Tokens with 1 .. top-k notices, in random order, some repeated before their token is ready."""

    def __init__(self, parameters: _ReadinessParameters, random: Random):
        super().__init__(parameters, random)
        self.expected = tuple(random.randint(1, parameters.topk) for _ in range(TOKENS))
        self.state = readiness.empty(self.expected, parameters.entries)
        self.todo = [(token, place) for token, n in enumerate(self.expected) for place in range(n)]
        random.shuffle(self.todo)
        if random.random() < 0.5:  # tokens nearly in order, as Combine has them
            self.todo.sort(key=lambda notice: notice[0] + 3 * random.random())

    def draw(self, random: Random) -> Tally:
        token, place = self.todo[0] if self.todo else (0, 0)
        announced = [(t, p) for t in range(TOKENS) if t not in self.state.ready for p in readiness._announced(self.state, t)]
        if announced and random.random() < 0.1 and not self.waits:
            token, place = random.choice(announced)
        pins = {"valid": int(bool(self.todo) and random.random() < self.load), "key": token, "place": place, "expected": self.expected[token]}
        return pins | self.answers(random)

    def sent(self, pins: Values) -> None:
        if self.todo and (pins["key"], pins["place"]) == self.todo[0]:
            self.todo.pop(0)

    def step(self, event: Values) -> int:
        self.seen["repeated" if self.same(event) else "notice"] += 1
        self.state, outputs = readiness.step(self.state, (event["key"], event["place"]))
        return int(any(isinstance(output, readiness.TokenReady) for output in outputs))

    def same(self, event: Values) -> bool:
        return event["place"] in readiness._announced(self.state, event["key"])

    def data(self, token: int) -> int:
        return sum(1 << place for place in readiness._announced(self.state, token))


class _NoticeProof(Proof, OutputReadiness, of=_ReadinessParameters(2, 2, 2), token=2):
    """A token is ready once, and exactly when all its notices have come. Assumed: a notice comes once; memory gives back what it was given."""

    def watch(self, m: Module, p: _ReadinessParameters) -> None:
        comb = m.d.comb
        cam, words = m.submodules.cam, slots(m.submodules.rows, m)
        topk, full = p.topk, (1 << p.topk) - 1
        came, waits_for, ready = Signal(topk), Signal(topk), Signal()  # notices that were taken in; the one that waits for memory
        mine = self.valid & self.ready & (self.key == self.token)
        bit = Signal(topk)
        comb += [bit.eq(1 << self.place), Assume(self.expected == topk), Assume(~mine | ((came & bit) == 0)), Assume(self.place < topk)]
        with m.If(mine):
            m.d.sync += came.eq(came | bit)
        in_memory, stored, spilling = self.kept_in_memory(m, self.token)
        with m.If(self.out_valid & self.out_ready & (self.out_key == self.token)):
            m.d.sync += ready.eq(1)
        leaving = self.out_valid & (self.out_key == self.token)
        held = self.waits & (self.late["key"] == self.token)
        comb += waits_for.eq(Mux(held, 1 << self.late["place"], 0))
        live = live_slots(m, cam, words, self.token)
        on_chip = Mux(live[0], words[0].entry.notices, 0) | Mux(live[1], words[1].entry.notices, 0)
        comb += self.promise(
            ~(ready & leaving),  # once
            ~(ready | leaving) | (came == full),  # not too early
            (came != full) | ready | leaving | held,  # and not too late
            ready | leaving | ((on_chip | Mux(in_memory, stored, 0) | Mux(spilling, self.spill_data, 0) | waits_for) == came),
            ~live[0] | ~live[1],
            ~(Cat(live).any() & (in_memory | spilling | held | ready | leaving)),
            ~((ready | leaving) & (in_memory | spilling | held)),
            ~held | ((waits_for & (stored & in_memory.replicate(topk))) == 0) & ((waits_for & self.spill_data & spilling.replicate(topk)) == 0),
            ~held | ((waits_for & came) == waits_for),
            ~held | (self.late["expected"] == topk),
            ~held | (self.late["place"] < topk),
            ~in_memory | (stored != full),
            ~spilling | (self.spill_data != full),
        )
        for i in range(p.entries):
            comb += Assert(~live[i] | (words[i].entry.notices != full))


BLOCK = Block(
    "output-readiness", "notices per token, spill", _ReadinessParameters, OutputReadiness, _NoticeModel,
    small=(_ReadinessParameters(2, 4, 3), _ReadinessParameters(3, 4, 4), _ReadinessParameters(4, 5, 2)),
    proofs=(OrderProof, _NoticeProof),
)  # fmt: skip
