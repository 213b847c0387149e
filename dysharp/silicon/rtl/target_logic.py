"""The target logic of a switch: a list of experts to output ports and replicas. A flit of 8 ids per cycle, the copies one cycle after the last."""

from random import Random
from typing import Any, Self

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib.wiring import Out

from dysharp.base import ByName, Tally, frozen
from dysharp.isa.packets import IDS_PER_FLIT
from dysharp.silicon.rtl import Block, BlockModel, Machine, Proof, Values, drive
from dysharp.specs import Cluster

ID_BITS = 16


@frozen
class _TargetParameters:
    """`ports`: GPUs behind the switch; `experts_per_gpu`: a power of two here, since the route is an integer division."""

    ports: int
    experts_per_gpu: int = 8
    ids: int = IDS_PER_FLIT

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """One port per GPU of a domain; 8 experts each, as DeepSeek-V3 has on 32 GPUs."""
        return cls(cluster.n_gpus)


class TargetLogic(Machine):
    """Every target decodes to one bit of a map of experts; the bits of a GPU are its replica, and their OR asks for its port.

    In: `valid`, `ready`, `ids` (first id lowest), `n_ids` (1 .. 8), `last` flit of the list.
    Out, a cycle after the last flit, held until `out_ready`: `out_valid`, `out_ports` (a bit per port), `out_replicas` (`experts_per_gpu` bits
    per port). `error` (with the copies): a target twice or beyond the last port; its packet must not be replicated.
    """

    def pins(self, p: _TargetParameters) -> ByName:
        self.shift = p.experts_per_gpu.bit_length() - 1
        if 1 << self.shift != p.experts_per_gpu:
            raise ValueError(f"experts_per_gpu: found {p.experts_per_gpu}, expected a power of two")
        self.experts = p.ports * p.experts_per_gpu
        self.taken, self.broken = Signal(self.experts), Signal()  # of the flits so far
        return {
            "valid": 1, "ready": Out(1), "ids": ID_BITS * p.ids, "n_ids": p.ids.bit_length(), "last": 1,
            "out_valid": Out(1), "out_ready": 1, "out_ports": Out(p.ports), "out_replicas": Out(self.experts), "error": Out(1),
        }  # fmt: skip

    def build(self, m: Module, p: _TargetParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        taken, broken, listed = self.taken, self.broken, Signal(self.experts)
        bits = max(1, (self.experts - 1).bit_length())
        faults: list[Any] = []
        maps: list[Any] = []
        for i in range(p.ids):
            target = self.ids[ID_BITS * i : ID_BITS * (i + 1)]
            there, fits = Signal(name=f"there_{i}"), Signal(name=f"fits_{i}")
            one = Signal(self.experts, name=f"one_{i}")
            comb += [there.eq(i < self.n_ids), fits.eq(target < self.experts), one.eq(Mux(there & fits, 1 << target[:bits], 0))]
            faults += [there & ~fits, (one & (taken if i == 0 else maps[-1])).any()]
            sofar = Signal(self.experts, name=f"sofar_{i}")
            comb += sofar.eq(one | (taken if i == 0 else maps[-1]))
            maps.append(sofar)
        bad = Signal()
        comb += [listed.eq(maps[-1]), bad.eq(Cat(f for f in faults).any() | broken), self.ready.eq(self.out_free)]
        with m.If(self.ready):
            sync += self.out_valid.eq(self.valid & self.last)
            with m.If(self.valid):
                sync += [taken.eq(Mux(self.last, 0, listed)), broken.eq(bad & ~self.last)]
                sync += drive(self, out_replicas=listed, error=bad)
                sync += self.out_ports.eq(Cat(listed[i * p.experts_per_gpu : (i + 1) * p.experts_per_gpu].any() for i in range(p.ports)))


def _replicas(targets: list[int], per_gpu: int) -> dict[int, set[int]]:
    """{GPU: its targets, counted from its first expert}."""
    found: dict[int, set[int]] = {}
    for target in targets:
        found.setdefault(target // per_gpu, set()).add(target % per_gpu)
    return found


class _TargetModel(BlockModel):
    """Draws lists of one or more flits, some with a target twice or out of range."""

    def __init__(self, parameters: _TargetParameters, random: Random):
        super().__init__(parameters)
        self.experts = parameters.ports * parameters.experts_per_gpu
        self.rest: list[int] = []
        self.listed: list[int] = []
        self.stall = random.choice((0, 0.4))

    def draw(self, random: Random) -> Tally:
        if not self.rest:
            self.rest = random.sample(range(self.experts), random.randint(1, min(self.experts, 2 * self.p.ids)))
            if random.random() < 0.1:
                self.rest.insert(random.randrange(len(self.rest) + 1), random.choice([*self.rest, self.experts, (1 << ID_BITS) - 1]))
        flit = self.rest[: self.p.ids]
        word = sum(t << ID_BITS * i for i, t in enumerate(flit)) | random.getrandbits(ID_BITS * self.p.ids) >> ID_BITS * len(flit) << ID_BITS * len(
            flit
        )
        pins = {"valid": int(random.random() < 0.8), "ids": word, "n_ids": len(flit), "last": int(len(self.rest) <= self.p.ids)}
        return pins | self.takes(random)

    def take(self, pins: Values) -> None:
        flit, self.rest = self.rest[: self.p.ids], self.rest[self.p.ids :]
        self.listed += flit
        self.seen["flit"] += 1
        if not pins["last"]:
            return
        wrong = len(set(self.listed)) < len(self.listed) or max(self.listed) >= self.experts
        self.seen["wrong list" if wrong else "list"] += 1
        copies = _replicas(self.listed, self.p.experts_per_gpu)
        self.out = {"out_valid": 1, "error": int(wrong)}
        if not wrong:
            bits = sum(1 << gpu * self.p.experts_per_gpu + t for gpu, targets in copies.items() for t in targets)
            self.out |= {"out_ports": sum(1 << gpu for gpu in copies), "out_replicas": bits}
        self.listed = []


class _TargetProof(Proof, TargetLogic, of=_TargetParameters(3, 2, 2), target=3):
    """A target is in the copies of a good packet as often as in its list: once, or not at all. No assumption."""

    def watch(self, m: Module, p: _TargetParameters) -> None:
        comb = m.d.comb
        listed, last, twice = Signal(), Signal(), Signal()
        is_it = [(self.ids[ID_BITS * i : ID_BITS * (i + 1)] == self.target) & (i < self.n_ids) for i in range(p.ids)]
        comb += Assume(self.target < self.experts)
        with m.If(self.valid & self.ready):
            m.d.sync += [listed.eq((listed | Cat(is_it).any()) & ~self.last), last.eq(listed | Cat(is_it).any())]
            m.d.sync += twice.eq((twice | (listed & Cat(is_it).any()) | Cat(is_it).all()) & ~self.last)
        chosen = (self.out_replicas >> self.target)[0]
        port = (self.out_ports >> (self.target >> self.shift))[0]
        with m.If(self.out_valid):
            comb += self.promise(chosen == last, port | ~chosen)
        for i in range(p.ports):
            replica = self.out_replicas[i * p.experts_per_gpu : (i + 1) * p.experts_per_gpu]
            comb += Assert(~self.out_valid | (self.out_ports[i] == replica.any()))  # no empty copy
        comb += self.promise((self.taken >> self.target)[0] == listed, ~twice | self.broken)


BLOCK = Block(
    "target-logic", "lists of experts to output ports and replicas", _TargetParameters, TargetLogic, _TargetModel,
    small=(_TargetParameters(4, 2, 3), _TargetParameters(5, 4, 8), _TargetParameters(3, 1, 2)),
    proofs=(_TargetProof,),
)  # fmt: skip
