"""Conversion between FP32 and MXFP8, a block of values each way and cycle. Rule: `functional.wire`, mxfp8; FP32 below 2^-126 is zero here."""

from random import Random
from typing import Any, Self

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import Out

from dysharp.base import ByName, Tally, frozen
from dysharp.silicon.rtl import Block, BlockModel, Machine, Proof, Values, drive
from dysharp.specs import Cluster

TOP, MOST = 8, 0x7E
"""Largest exponent of E4M3, and the code of its largest value, 448."""


@frozen
class ConverterParameters:
    """`block`: values that share a scale."""

    block: int = 32

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        return cls()


class FormatConverter(Machine):
    """`narrow`: finite sums to codes of E4M3 (nearest, ties to even; 448 at most) and a scale of UE8M0; otherwise codes and scale to FP32.

    In: `valid`, `ready`, `narrow`, `sums` (FP32, value 0 lowest), `codes`, `scale` (at most 246, what `narrow` makes). Out, a cycle later, held until
    `out_ready`: `out_valid`, `out_codes`, `out_scale`, `out_sums`; those of the other way stay.
    """

    def pins(self, p: ConverterParameters) -> ByName:
        n = p.block
        self.fresh, self.by = [Signal(7, name=f"fresh_{i}") for i in range(n)], Signal(8)
        return {
            "valid": 1, "ready": Out(1), "narrow": 1, "sums": 32 * n, "codes": 8 * n, "scale": 8, "out_valid": Out(1),
            "out_ready": 1, "out_codes": Out(8 * n), "out_scale": Out(8), "out_sums": Out(32 * n),
        }  # fmt: skip

    def build(self, m: Module, p: ConverterParameters) -> None:
        sync = m.d.sync
        sums = [self.sums[32 * i : 32 * (i + 1)] for i in range(p.block)]
        codes = [self.codes[8 * i : 8 * (i + 1)] for i in range(p.block)]
        largest = [x[23:31] for x in sums]
        while len(largest) > 1:
            pairs = [Mux(a > b, a, b) for a, b in zip(largest[::2], largest[1::2], strict=False)]
            largest = pairs + largest[len(pairs) * 2 :]
        m.d.comb += drive(self, by=Mux(largest[0] > TOP, largest[0] - TOP, 0), ready=self.out_free)
        for i, x in enumerate(sums):
            m.d.comb += self.fresh[i].eq(self._narrowed(m, x, i))
        widened = [Cat(self._widened(codes[i][:7], self.scale), codes[i][7]) for i in range(p.block)]
        with m.If(self.out_ready):
            sync += self.out_valid.eq(0)
        with m.If(self.valid & self.ready):
            sync += self.out_valid.eq(1)
            with m.If(self.narrow):
                sync += drive(self, out_scale=self.by, out_codes=Cat(Cat(f, x[31]) for f, x in zip(self.fresh, sums, strict=True)))
            with m.Else():
                sync += self.out_sums.eq(Cat(widened))

    def _narrowed(self, m: Module, x: Any, i: int) -> Any:
        """The code without sign: the significand keeps three bits behind the point, fewer below 2^-6, and is rounded."""
        exponent, short, kept = x[23:31], Signal(8, name=f"short_{i}"), Signal(29, name=f"kept_{i}")
        m.d.comb += short.eq(Mux(exponent + 6 < self.by, self.by - exponent - 6, 0))
        m.d.comb += kept.eq(Cat(Const(0, 5), x[:23], 1) >> Mux(short > 5, 5, short)[:3])
        up = kept[24] & (kept[:24].any() | kept[25])
        code = (Mux(short == 0, exponent + 6 - self.by, 0)[:4] << 3) + kept[25:] + up
        return Mux(exponent == 0, 0, Mux(code > MOST, MOST, code))

    def _widened(self, code: Any, scale: Any) -> Any:
        """FP32 without sign: a normal code only adds exponents; below 2^-6 the highest bit of three is found."""
        normal, d = code[3:7].any(), code[:3]
        exponent = scale + Mux(normal, code[3:7] + 2, Mux(d[2], 2, d[1]))  # 9 too large
        rest = Mux(normal, d, Mux(d[2], Cat(Const(0, 1), d[:2]), Cat(Const(0, 2), d[0] & d[1])))
        return Mux((code == 0) | (exponent < 10), 0, Cat(Const(0, 20), rest, (exponent - 9)[:8]))


class _ConverterModel(BlockModel):
    """Sums of near and far sizes, zeros and ties; codes of all kinds. Arithmetic on integers: a value is a number of 2^-9 scales."""

    def __init__(self, parameters: ConverterParameters, random: Random):
        super().__init__(parameters)
        self.stall = random.choice((0, 0.4))
        self.out |= {"out_codes": 0, "out_scale": 0, "out_sums": 0}
        self.base, self.spread = random.randint(1, 254), random.choice((0, 2, 8, 20))

    def _sum(self, random: Random) -> int:
        exponent = min(254, max(0, self.base - random.randint(0, self.spread)))
        rest = random.choice((0, 1 << 19, 3 << 18, 0x7FFFFF, random.getrandbits(23), random.getrandbits(5) << 18))
        return random.choice((0, 1, 1, 1, 1)) * (random.getrandbits(1) << 31 | exponent << 23 | rest)

    def draw(self, random: Random) -> Tally:
        codes = [random.choice((0, random.getrandbits(7) % (MOST + 1))) | random.getrandbits(1) << 7 for _ in range(self.p.block)]
        pins = {"valid": int(random.random() < 0.9), "narrow": random.getrandbits(1), "scale": random.choice((0, 8, random.randint(0, 246)))}
        pins |= {"sums": sum(self._sum(random) << 32 * i for i in range(self.p.block)), "codes": sum(c << 8 * i for i, c in enumerate(codes))}
        return pins | self.takes(random)

    def cycle(self, pins: Values) -> Values:
        kept = {name: self.out[name] for name in ("out_codes", "out_scale", "out_sums")}
        now = super().cycle(pins)
        self.out = kept | self.out
        return now

    def take(self, pins: Values) -> None:
        n = self.p.block
        if pins["narrow"]:
            sums = [pins["sums"] >> 32 * i & 0xFFFFFFFF for i in range(n)]
            scale = max(0, max(x >> 23 & 255 for x in sums) - TOP)
            self.out = {"out_valid": 1, "out_scale": scale, "out_codes": sum(_narrowed(x, scale) << 8 * i for i, x in enumerate(sums))}
            self.seen["narrow"] += 1
        else:
            codes = [pins["codes"] >> 8 * i & 255 for i in range(n)]
            self.out = {"out_valid": 1, "out_sums": sum(widened(c, pins["scale"]) << 32 * i for i, c in enumerate(codes))}
            self.seen["widen"] += 1


def steps_of(code: int) -> int:
    """The size of a code of E4M3, in steps of 2^-9."""
    return code & 7 if not code >> 3 & 15 else (8 | code & 7) << (code >> 3 & 15) - 1


STEPS = [steps_of(code) for code in range(MOST + 1)]


def _narrowed(x: int, scale: int) -> int:
    """The code of the bits of an FP32 value under `scale`: of the nearest steps, of two equally near ones the even code."""
    exponent = x >> 23 & 255
    size = (1 << 23 | x & 0x7FFFFF) << exponent if exponent else 0  # in 2^-150
    unit = 1 << scale + 14  # a step: 2^(scale - 127 - 9)
    return x >> 24 & 128 | min(range(MOST + 1), key=lambda code: (abs(STEPS[code] * unit - size), code & 1))


def widened(code: int, scale: int) -> int:
    """The bits of the FP32 value of a code under `scale`; below 2^-126 it is zero."""
    steps = STEPS[code & 127]
    high = steps.bit_length() - 1
    exponent = scale + high - 9
    return code >> 7 << 31 | (exponent << 23 | (steps << 23 - high & 0x7FFFFF) if steps and exponent > 0 else 0)


class _ConverterProof(Proof, FormatConverter, of=ConverterParameters(2), target=1):
    """The scale is the largest exponent less 8; each code is nearest to its value, or 448 where that is less. Each answer leaves once.

    Assumed: sums are finite.
    """

    def watch(self, m: Module, p: ConverterParameters) -> None:
        comb = m.d.comb
        x, code = Signal(32), Signal(7)
        sums = [self.sums[32 * i : 32 * (i + 1)] for i in range(p.block)]
        comb += [Assume(value[23:31] < 255) for value in sums]
        comb += [x.eq(Mux(self.target, sums[1], sums[0])), code.eq(Mux(self.target, self.fresh[1], self.fresh[0]))]
        most = Cat(self.by + TOP == value[23:31] for value in sums).any()
        comb += self.promise((self.by == 0) | (self.by + TOP >= x[23:31]), (self.by == 0) | most)
        # In 2^-24 steps: what the code says, the value, and half of the code's distance to the next.
        f, size, said, half, off = Signal(4), Signal(44), Signal(44), Signal(44), Signal(44)
        comb += [f.eq(code[3:]), said.eq(Mux(f == 0, code[:3] << 24, Cat(code[:3], 1) << (Mux(f == 0, 0, f - 1)[:4] + 24)))]
        place = Signal(8)
        comb += [place.eq(x[23:31] + 10 - self.by), half.eq(1 << (Mux(f == 0, 0, f - 1)[:4] + 23))]
        comb += size.eq(Mux((x[23:31] == 0) | (x[23:31] + 10 < self.by), 0, Cat(x[:23], 1) << place[:5]))
        comb += off.eq(Mux(said > size, said - size, size - said))
        comb += Assert((code <= MOST) & ((off <= half) | ((code == MOST) & (size > said))))
        was, taken = Signal(), self.valid & self.ready
        m.d.sync += was.eq(taken | (was & ~self.out_ready))
        comb += Assert(self.out_valid == was)


BLOCK = Block(
    "format-converter", "FP32 to MXFP8 and back", ConverterParameters, FormatConverter, _ConverterModel,
    small=(ConverterParameters(2), ConverterParameters(3), ConverterParameters(5)),
    proofs=(_ConverterProof,),
)  # fmt: skip
