"""Parts that several blocks share: an order list and a content-addressed table. Each does one step per cycle."""

from typing import Any

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from dysharp.base import ByName, ConfigError
from dysharp.specs import Cluster, file_values

MACRO = "macro"
"""The platform with which a CAM elaborates to a black box `cam`, for counting what is around it."""


def slot_bits(n: int) -> int:
    """Bits of a number of one of `n` slots, at least 1."""
    return int(max(1, ceil_log2(n)))


def lowest(bits: Any) -> Any:
    """The number of the lowest bit that is 1, as a tree: its depth is the logarithm of the width."""
    n = len(bits)
    if n == 1:
        return Const(0, 1)
    half = 1 << (n - 1).bit_length() - 1
    low = bits[:half]
    return Mux(low.any(), lowest(low), half | lowest(bits[half:]))


def drive(of: Any, /, **values: Any) -> list[Any]:
    """Statements that give each named pin, register or field of `of` its value."""
    return [getattr(of, name).eq(value) for name, value in values.items()]


def wire(m: Module, value: Any, shape: Any = 1, name: str = "$signal") -> Any:
    """A signal that has this value at all times."""
    made = Signal(shape, name=name)
    m.d.comb += made.eq(value)
    return made


def memory(m: Module, name: str, shape: Any, depth: int) -> tuple[Any, Any, Any]:
    """A register file as the submodule `name`: the file, a port to read at once, a port to write."""
    made = m.submodules[name] = Memory(shape=shape, depth=depth, init=[])
    return made, made.read_port(domain="comb"), made.write_port()


def check_slots(block: str, cluster: Cluster, key: str, least: float = 2) -> None:
    """Raises ConfigError where `key` of the cluster file gives the table of `block` fewer than the 2 slots of an order list.

    `least`: the value that gives 2 slots.
    """
    value = file_values(cluster)[key]
    if value < least:
        raise ConfigError(f'rtl {block}: {key} of cluster "{cluster.name}": found {value:g}, expected {least:g} or more (an order list of 2 slots)')


class Machine(wiring.Component):
    """A block or a part of one: `pins(parameters)` declares its interface and registers, `build(m, parameters)` states its logic."""

    def __init__(self, parameters: Any):
        self.parameters = parameters
        super().__init__({name: In(pin) if isinstance(pin, int) else pin for name, pin in self.pins(parameters).items()})

    def pins(self, p: Any) -> ByName:
        """The pins by name, in the order of the Verilog. A number is the width of an input."""
        raise NotImplementedError

    @property
    def out_free(self) -> Any:
        """Whether what comes out may change: nothing is held, or it leaves in this cycle."""
        return ~self.out_valid | self.out_ready

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self.build(m, self.parameters)
        return m

    def build(self, m: Module, p: Any) -> None:
        """Adds the logic to `m`."""
        raise NotImplementedError


class OrderList(Machine):
    """Slots in an order, as a doubly linked list in two register files. A move takes one slot to an end; `front` is the first slot.

    Free slots stand at the front, live ones behind them from the least recently used on. So `front` is a free slot while there is
    one, and the victim otherwise: one move allocates, touches, frees or evicts. After reset `n` cycles write the links (`ready` is 0).
    Each register file has 1 read and 2 write ports.
    """

    def pins(self, n: int) -> ByName:
        if n < 2:
            raise ValueError(f"an order list has {n} slots, expected at least 2")
        self.n, self.width = n, slot_bits(n)
        self.head, self.tail = Signal(self.width), Signal(self.width, init=n - 1)
        self.fill = Signal(bits_for(n))  # links that are written after reset
        w = self.width
        return {"move": 1, "slot": w, "to_front": 1, "front": Out(w), "following": Out(w), "ready": Out(1)}

    def build(self, m: Module, n: int) -> None:
        comb, sync = m.d.comb, m.d.sync
        width, head, tail, fill = self.width, self.head, self.tail, self.fill
        (following, after, gap_next), (previous, before, gap_prev) = (memory(m, name, width, n) for name in ("following", "previous"))
        end_next, end_prev = following.write_port(), previous.write_port()
        s, x, p = self.slot, after.data, before.data
        comb += [self.ready.eq(fill == n), self.front.eq(head), self.following.eq(x), after.addr.eq(s), before.addr.eq(s)]
        stays = Mux(self.to_front, s == head, s == tail)
        with m.If(~self.ready):
            comb += drive(gap_next, addr=fill, data=fill + 1, en=1)
            comb += drive(gap_prev, addr=fill, data=fill - 1, en=1)
            sync += fill.eq(fill + 1)
        with m.Elif(self.move & ~stays):
            comb += drive(gap_next, addr=p, data=x, en=s != head)
            comb += drive(gap_prev, addr=x, data=p, en=s != tail)
            comb += drive(end_next, addr=Mux(self.to_front, s, tail), data=Mux(self.to_front, head, s), en=1)
            comb += drive(end_prev, addr=Mux(self.to_front, head, s), data=Mux(self.to_front, s, tail), en=1)
            with m.If(self.to_front):
                sync += head.eq(s)
                with m.If(s == tail):
                    sync += tail.eq(p)
            with m.Else():
                sync += tail.eq(s)
                with m.If(s == head):
                    sync += head.eq(x)


class Cam(wiring.Component):
    """Which live slot has a key: one comparator per slot. Keys are flip-flops here; a chip would take a CAM macro of `n` x `key_bits`.

    `hit`, `slot`: of the live slot with `key`. `at_live`: whether slot `at` is live. `set`: slot `at` gets `key`; `clear`: it is free. `drop`: slots
    that are free from the next cycle on, beside what happens to `at`.
    """

    def __init__(self, n: int, key_bits: int):
        self.n, self.key_bits, self.width = n, key_bits, slot_bits(n)
        self.keys = [Signal(key_bits, name=f"key_{i}") for i in range(n)]
        super().__init__(
            {
                "key": In(key_bits), "hit": Out(1), "slot": Out(self.width), "at": In(self.width), "at_live": Out(1), "set": In(1),
                "clear": In(1), "drop": In(n), "live": Out(n),
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        live, match = Signal(self.n), Signal(self.n)
        chosen = Signal(self.n)
        m.d.comb += [self.live.eq(live), chosen.eq(1 << self.at), self.at_live.eq((live & chosen).any()), self.hit.eq(match.any())]
        if platform == MACRO:
            found = Signal(self.n)
            ports = {"i_clk": ClockSignal(), "i_key": self.key, "i_write": Mux(self.set, chosen, 0), "o_match": found}
            m.submodules.cells = Instance("cam", p_SLOTS=self.n, p_KEY_BITS=self.key_bits, **ports)
            m.d.comb += match.eq(found & live)
            m.d.sync += live.eq(((live & ~self.drop) | Mux(self.set, chosen, 0)) & ~Mux(self.clear & ~self.set, chosen, 0))
        for i in range(self.n if platform != MACRO else 0):
            key = self.keys[i]
            m.d.comb += match[i].eq(live[i] & (key == self.key))
            with m.If(chosen[i] & self.set):
                m.d.sync += [key.eq(self.key), live[i].eq(1)]
            with m.Elif((chosen[i] & self.clear) | self.drop[i]):
                m.d.sync += live[i].eq(0)
        m.d.comb += self.slot.eq(Cat(Cat(match[i] for i in range(self.n) if i >> b & 1).any() for b in range(self.width)))
        return m


class Table:
    """`n` slots of `m` that a key finds (`cam`), each with a word (`read`, `write`), in an order (`order`). A step is about `slot`; one that clears
    it puts it before the others, where free slots stand."""

    def __init__(self, m: Module, n: int, key_bits: int, words: str, shape: Any, order: type[OrderList] = OrderList):
        m.submodules.cam = self.cam = cam = Cam(n, key_bits)
        m.submodules.order = self.order = order(n)
        self.words, self.read, self.write = memory(m, words, shape, n)
        self.slot = Signal(slot_bits(n))
        m.d.comb += [at.eq(self.slot) for at in (cam.at, self.read.addr, self.write.addr, self.order.slot)]
        m.d.comb += self.order.to_front.eq(cam.clear)
