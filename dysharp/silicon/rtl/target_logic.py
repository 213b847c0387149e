"""The target logic of a switch: a list of experts to output ports and replicas. A flit of 8 ids per cycle, the copies one cycle after the last."""

from typing import Any, Self

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dysharp.base.values import frozen
from dysharp.isa.packets import IDS_PER_FLIT
from dysharp.specs import Cluster

ID_BITS = 16


@frozen
class TargetParameters:
    """`ports`: GPUs behind the switch; `experts_per_gpu`: a power of two here, since the route is an integer division."""

    ports: int
    experts_per_gpu: int = 8
    ids: int = IDS_PER_FLIT

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """One port per GPU of a domain; 8 experts each, as DeepSeek-V3 has on 32 GPUs."""
        return cls(cluster.n_gpus)


class TargetLogic(wiring.Component):
    """Every target decodes to one bit of a map of experts; the bits of a GPU are its replica, and their OR asks for its port.

    In: `valid`, `ready`, `ids` (first id lowest), `n_ids` (1 .. 8), `last` flit of the list.
    Out, a cycle after the last flit, held until `out_ready`: `out_valid`, `out_ports` (a bit per port), `out_replicas` (`experts_per_gpu` bits
    per port). `error` (with the copies): a target twice or beyond the last port; its packet must not be replicated.
    """

    def __init__(self, parameters: TargetParameters):
        self.parameters = p = parameters
        self.shift = p.experts_per_gpu.bit_length() - 1
        if 1 << self.shift != p.experts_per_gpu:
            raise ValueError(f"experts_per_gpu: found {p.experts_per_gpu}, expected a power of two")
        self.experts = p.ports * p.experts_per_gpu
        self.taken, self.broken = Signal(self.experts), Signal()  # of the flits so far
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "ids": In(ID_BITS * p.ids), "n_ids": In(p.ids.bit_length()), "last": In(1),
                "out_valid": Out(1), "out_ready": In(1), "out_ports": Out(p.ports), "out_replicas": Out(self.experts), "error": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m, p = Module(), self.parameters
        taken, broken, listed = self.taken, self.broken, Signal(self.experts)
        bits = max(1, (self.experts - 1).bit_length())
        faults: list[Any] = []
        maps: list[Any] = []
        for i in range(p.ids):
            target = self.ids[ID_BITS * i : ID_BITS * (i + 1)]
            there, fits = Signal(name=f"there_{i}"), Signal(name=f"fits_{i}")
            one = Signal(self.experts, name=f"one_{i}")
            m.d.comb += [there.eq(i < self.n_ids), fits.eq(target < self.experts), one.eq(Mux(there & fits, 1 << target[:bits], 0))]
            faults += [there & ~fits, (one & (taken if i == 0 else maps[-1])).any()]
            sofar = Signal(self.experts, name=f"sofar_{i}")
            m.d.comb += sofar.eq(one | (taken if i == 0 else maps[-1]))
            maps.append(sofar)
        bad = Signal()
        m.d.comb += [listed.eq(maps[-1]), bad.eq(Cat(f for f in faults).any() | broken), self.ready.eq(~self.out_valid | self.out_ready)]
        with m.If(self.ready):
            m.d.sync += self.out_valid.eq(self.valid & self.last)
            with m.If(self.valid):
                m.d.sync += [taken.eq(Mux(self.last, 0, listed)), broken.eq(bad & ~self.last)]
                m.d.sync += [self.out_replicas.eq(listed), self.error.eq(bad)]
                m.d.sync += self.out_ports.eq(Cat(listed[i * p.experts_per_gpu : (i + 1) * p.experts_per_gpu].any() for i in range(p.ports)))
        return m
