"""The choice among replicas of an expert: the GPU with the smallest counter, one choice per cycle. Rule: `workload.balance`, choose=switch."""

from random import Random
from typing import Self

from amaranth.hdl import Array, Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib.wiring import Out

from dysharp.base import ByName, Tally, frozen
from dysharp.silicon.rtl import Block, BlockModel, Machine, Proof, Values, drive, slot_bits
from dysharp.specs import Cluster, choice_int


@frozen
class ChoiceParameters:
    """`gpus`: counters; `bits` of each; `places`: replicas of an entry."""

    gpus: int
    bits: int = 16
    places: int = 8

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        return cls(cluster.n_gpus, choice_int("switch_choice.bits"), choice_int("switch_choice.replicas"))


class ReplicaChoice(Machine):
    """A counter per GPU. When one is full, all are halved; `clear` (a new micro-batch) sets all to 0.

    In: `valid`, `ready`, `gpus` (of the entry's replicas, lowest first), `n` of them (1 .. places), `first`: the place that is asked first, so that
    equal counters take turns; `clear`, with which no request is taken. Out, a cycle later, held until `out_ready`: `out_valid`, `out_gpu`.
    """

    def pins(self, p: ChoiceParameters) -> ByName:
        self.width = slot_bits(p.gpus)
        self.counts = [Signal(p.bits, name=f"count_{i}") for i in range(p.gpus)]
        self.chosen, self.best = Signal(self.width), Signal(p.bits)
        return {
            "valid": 1, "ready": Out(1), "clear": 1, "gpus": self.width * p.places, "n": p.places.bit_length(),
            "first": slot_bits(p.places), "out_valid": Out(1), "out_ready": 1, "out_gpu": Out(self.width),
        }  # fmt: skip

    def build(self, m: Module, p: ChoiceParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        rows = []
        for i in range(p.places):
            gpu, there = self.gpus[self.width * i : self.width * (i + 1)], i < self.n
            count, turn = Signal(p.bits, name=f"of_{i}"), Signal(self.n.shape(), name=f"turn_{i}")
            comb += [count.eq(Array(self.counts)[gpu]), turn.eq(Mux(self.first <= i, i - self.first, i + self.n - self.first))]
            rows.append((Cat(turn, count, ~there), gpu))
        while len(rows) > 1:
            pairs = [(Mux(a[0] <= b[0], a[0], b[0]), Mux(a[0] <= b[0], a[1], b[1])) for a, b in zip(rows[::2], rows[1::2], strict=False)]
            rows = pairs + rows[len(pairs) * 2 :]
        full = Signal()
        comb += [self.chosen.eq(rows[0][1]), self.best.eq(Array(self.counts)[self.chosen]), full.eq(self.best == (1 << p.bits) - 1)]
        comb += self.ready.eq(self.out_free & ~self.clear)
        with m.If(self.out_ready):
            sync += self.out_valid.eq(0)
        with m.If(self.valid & self.ready):
            sync += drive(self, out_valid=1, out_gpu=self.chosen)
        for i, count in enumerate(self.counts):
            mine = self.valid & self.ready & (self.chosen == i)
            halved = Mux(mine, 1 << p.bits - 1, count >> 1)
            with m.If(self.clear):
                sync += count.eq(0)
            with m.Elif(self.valid & self.ready):
                sync += count.eq(Mux(full, halved, count + mine))


class _ChoiceModel(BlockModel):
    """Entries of distinct GPUs, some asked again and again."""

    def __init__(self, parameters: ChoiceParameters, random: Random):
        super().__init__(parameters)
        self.counts = [0] * parameters.gpus
        most = min(parameters.places, parameters.gpus)
        self.entries = [random.sample(range(parameters.gpus), random.randint(1, most)) for _ in range(3)]
        self.stall = random.choice((0, 0.4))

    def draw(self, random: Random) -> Tally:
        listed, width = random.choice(self.entries), slot_bits(self.p.gpus)
        pins = {"valid": int(random.random() < 0.9), "gpus": sum(gpu << width * i for i, gpu in enumerate(listed)), "n": len(listed)}
        return pins | {"first": random.randrange(len(listed)), "clear": int(random.random() < 0.02)} | self.takes(random)

    def cycle(self, pins: Values) -> Values:
        if not pins["clear"]:
            return super().cycle(pins)
        now = self.out | {"ready": 0}
        self.out = {"out_valid": 0} if pins["out_ready"] else self.out
        self.counts = [0] * self.p.gpus
        self.seen["clear"] += 1
        return now

    def take(self, pins: Values) -> None:
        width, n = slot_bits(self.p.gpus), pins["n"]
        listed = [pins["gpus"] >> width * i & (1 << width) - 1 for i in range(n)]
        turns = listed[pins["first"] :] + listed[: pins["first"]]
        best = min(turns, key=lambda gpu: self.counts[gpu])
        self.counts[best] += 1
        full = self.counts[best] == 1 << self.p.bits
        self.counts = [count >> full for count in self.counts]
        self.seen["halved" if full else "choice"] += 1
        self.out = {"out_valid": 1, "out_gpu": best}


class _ChoiceProof(Proof, ReplicaChoice, of=ChoiceParameters(3, 3, 2), target=2):
    """The chosen GPU is listed, no listed GPU has a smaller counter, and a counter that was not halved is the number of its choices.

    Assumed: an entry has 1 to `places` GPUs.
    """

    def watch(self, m: Module, p: ChoiceParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        taken, counted = self.valid & self.ready, Signal(p.bits + 1)
        listed = [self.gpus[self.width * i : self.width * (i + 1)] for i in range(p.places)]
        comb += [Assume(self.target < p.gpus), Assume((self.n > 0) & (self.n <= p.places) & (self.first < self.n))]
        comb += [Assume(gpu < p.gpus) for gpu in listed]
        there = [i < self.n for i in range(p.places)]
        comb += Assert(Cat(of & (self.chosen == gpu) for of, gpu in zip(there, listed, strict=True)).any())
        comb += [Assert(~of | (Array(self.counts)[gpu] >= self.best)) for of, gpu in zip(there, listed, strict=True)]
        last, was = Signal(self.width), Signal()
        with m.If(self.clear):
            sync += counted.eq(0)
        with m.Elif(taken & (self.best == (1 << p.bits) - 1)):
            sync += counted.eq((counted + (self.chosen == self.target)) >> 1)
        with m.Elif(taken & (self.chosen == self.target)):
            sync += counted.eq(counted + 1)
        comb += Assert(Array(self.counts)[self.target] == counted)
        with m.If(taken):
            sync += [last.eq(self.chosen), was.eq(1)]
        with m.Elif(self.out_ready):
            sync += was.eq(0)
        comb += self.promise(self.out_valid == was, ~was | (self.out_gpu == last))  # each choice leaves once


BLOCK = Block(
    "replica-choice", "the GPU with the smallest counter", ChoiceParameters, ReplicaChoice, _ChoiceModel,
    small=(ChoiceParameters(4, 2, 3), ChoiceParameters(5, 3, 4), ChoiceParameters(2, 2, 2)),
    proofs=(_ChoiceProof,),
)  # fmt: skip
