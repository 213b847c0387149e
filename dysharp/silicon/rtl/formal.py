"""Proofs: what a block promises, for all inputs at all times, by induction over cycles (Yosys `sat -tempinduct`) on small parameters.

A proof is the block with ghost registers beside it. It follows one key, row, target, tile or line that the solver chooses (`constants`).
Assumptions are what links and memory promise; the docstring of each proof lists them. Invariants are proven together with the promise.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from dysharp.base import ByName, SimulationError, frozen, read_text
from dysharp.silicon.rtl.blocks import load_block
from dysharp.silicon.rtl.parts import Machine, OrderList
from dysharp.silicon.rtl.yosys import rtlil_of, run_yosys


class _Wrapped(wiring.Component):
    """A block with proof inside; the solver chooses its constants once."""

    def __init__(self, dut: Any):
        self.dut = dut
        pins = {name: In(member.shape) for name, member in dut.signature.members.items() if member.flow == wiring.In}
        super().__init__(pins | {name: In(len(signal)) for name, signal in dut.constants.items()})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.dut = self.dut
        m.d.comb += [getattr(self.dut, n).eq(getattr(self, n)) for n, member in self.dut.signature.members.items() if member.flow == wiring.In]
        later = Signal()
        m.d.sync += later.eq(1)
        for name, signal in self.dut.constants.items():
            chosen, before = getattr(self, name), Signal.like(signal, name=f"before_{name}")
            m.d.sync += before.eq(chosen)
            m.d.comb += [signal.eq(chosen), Assume(~later | (chosen == before))]
        return m


def slots(memory: Any, m: Module) -> list[Any]:
    """Every word of a small memory, for invariants."""
    words = []
    for i in range(memory.depth):
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(i)
        words.append(port.data)
    return words


class Proof(Machine):
    """A block of parameters `of` with ghost registers and promises (`watch`). The other keywords are its constants with their widths: attributes."""

    def __init_subclass__(cls, of: Any, **bits: int):
        cls.of, cls.bits = of, bits

    def __init__(self) -> None:
        super().__init__(self.of)
        self.constants = {name: Signal(width, name=name) for name, width in self.bits.items()}
        self.__dict__.update(self.constants)

    def build(self, m: Module, p: Any) -> None:
        super().build(m, p)
        self.watch(m, p)

    def promise(self, *always: Any) -> list[Any]:
        """Assertions that these conditions hold."""
        return [Assert(condition) for condition in always]

    def watch(self, m: Module, p: Any) -> None:
        """Adds registers, assumptions and assertions to `m`."""
        raise NotImplementedError


def live_slots(m: Module, cam: Any, words: Any, key: Any) -> list[Any]:
    """Which live slots have `key`. Words and keys agree."""
    for i, kept in enumerate(cam.keys):
        m.d.comb += Assert(~cam.live[i] | (words[i].key == kept))
    return [cam.live[i] & (kept == key) for i, kept in enumerate(cam.keys)]


def proves(dut: Any) -> bool:
    """Whether all assertions of a proof hold always: from reset, and from any state in which they held for up to 4 cycles.

    A proof with `bound` is checked for that many cycles from reset only.
    """
    bound = getattr(dut, "bound", 0)
    script = read_text(Path(__file__).with_suffix(".ys")).format(kind="-tempinduct-baseonly" if bound else "-tempinduct", steps=bound or 4)
    text = run_yosys(script, rtlil_of(_Wrapped(dut), "top"), "out.txt")
    if "Import proof for assert" not in text:
        raise SimulationError(f"{type(dut).__name__}: found no assertion, expected at least one")
    return "SUCCESS!" in text


class OrderProof(Proof, OrderList, of=3):
    """The links are a list of all slots, in the order of a plain queue. No assumption."""

    def watch(self, m: Module, n: int) -> None:
        comb = m.d.comb
        after, before = slots(m.submodules.following, m), slots(m.submodules.previous, m)
        queue = [Signal(self.width, name=f"queue_{i}", init=i) for i in range(n)]  # slots in order; one leaves and goes to an end
        at = [queue[i] == self.slot for i in range(n)]
        with m.If(self.ready & self.move & (self.slot < n)):
            for i in range(n):
                passed = Cat(at[: i + 1]).any()
                m.d.sync += queue[i].eq(
                    Mux(self.to_front, self.slot if i == 0 else Mux(Cat(at[i:]).any(), queue[i - 1], queue[i]),
                        self.slot if i == n - 1 else Mux(passed, queue[i + 1], queue[i]))
                )  # fmt: skip
        comb += Assume(self.slot < n)
        for i in range(n):
            comb += Assert(Cat(q == i for q in queue).any())  # each slot once
        with m.If(self.ready):
            comb += self.promise(self.head == queue[0], self.tail == queue[-1])
            for a, b in pairwise(queue):
                for i in range(n):
                    with m.If(a == i):
                        comb += Assert(after[i] == b)
                    with m.If(b == i):
                        comb += Assert(before[i] == a)
        with m.Else():
            comb += [Assert(self.head == 0), Assert(self.tail == n - 1), *(Assert(queue[i] == i) for i in range(n))]
            for i in range(n):
                comb += Assert(~(self.fill > i) | (after[i][: self.width] == (i + 1) % (1 << self.width)))
                comb += Assert(~(self.fill > i) | (before[i] == (i - 1) % (1 << self.width)))
        comb += Assert(self.fill <= n)


class WatchedList(OrderList):
    """An order list whose links an invariant of a larger block may read: `links` = (following, previous) by slot."""

    def pins(self, n: int) -> ByName:
        found = super().pins(n)
        self.links = tuple([Signal(self.width, name=f"{name}_{i}") for i in range(n)] for name in ("after", "before"))
        return found

    def build(self, m: Module, n: int) -> None:
        super().build(m, n)
        for memory, seen in zip((m.submodules.following, m.submodules.previous), self.links, strict=True):
            m.d.comb += [signal.eq(word) for signal, word in zip(seen, slots(memory, m), strict=True)]


@frozen
class Proven:
    """A proof that was run. `cycles`: 0 = by induction, for all times; otherwise that many cycles from reset."""

    block: str
    promise: str
    assumed: str
    cycles: int
    holds: bool


def prove(block: str) -> list[Proven]:
    """Run the proofs of a block. The docstring of a proof says what it promises and what it assumes."""
    done = []
    for proof in load_block(block).proofs:
        promise, _, assumed = " ".join((proof.__doc__ or "").replace("No assumption", "Assumed: nothing").split()).partition(" Assumed: ")
        done.append(Proven(block, promise.rstrip("."), assumed.rstrip("."), getattr(proof, "bound", 0), proves(proof())))
    return done
