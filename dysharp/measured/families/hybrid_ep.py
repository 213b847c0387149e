"""Hybrid-EP's kernels, a family beyond the bars. One constant is fitted to them by hand (`hybrid.rank_us`); there is no closed form."""

from dataclasses import dataclass

from dysharp.measured.ep_kernels import EpCase, Options, copies_of, ep_fields, marks_us, verb_of
from dysharp.measured.family import Constants, Level, family
from dysharp.measured.measurements import SCALED_FP8, Measurement, Unsupported, dtype_of, label, number, whole

KERNELS_ALONE = ("Kernel only", "Only Kernel Time")
CHUNK_TOKENS = 16
"""Tokens that an SM takes at a time in the runs: a quarter of the library's, so that the runs are a quarter as long."""
RATE = "GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCase(EpCase):
    """A call on `n_sm` SMs with a cached handle. `fp8`: rows in FP8. `alone`: launches and copies are not timed.

    The copies leave the exchange buffer after Dispatch and fill the buffer before Combine.
    """

    n_sm: int
    fp8: bool
    alone: bool = True

    def options(self) -> Options:
        wire = "fp8" if self.fp8 else "rows"
        return ("chunk", CHUNK_TOKENS), ("dispatch", wire), ("n_sm", self.n_sm), ("permute", False)


def belongs(m: Measurement) -> bool:
    """Whether a measurement is of Hybrid-EP's Dispatch or Combine."""
    return m.kind in ("ep_dispatch", "ep_combine") and m.system in ("Hybrid-EP", "HybridEP")


def program_us(case: HybridCase, constants: Constants) -> float:
    """The kernel under uniform routing.

    SMs take turns at chunks, so the two runs of the line give every SM equally many chunks.
    """
    turn = case.n_sm * CHUNK_TOKENS
    marks = ("dispatch.launch", "received", "combine.launch") if case.alone else ("scan", "permute", "permute")
    start, received, back, end = marks_us("hybrid-ep", case, constants, marks, (turn, 2 * turn))
    return received - start if case.verb == "dispatch" else end - back


@family(
    "hybrid-ep",
    belongs=belongs,
    program_us=program_us,
    in_bars=False,
    level=Level.KERNEL,
    order=120,
    systems=("hybrid-ep",),
    parts=("dispatch", "combine"),
)
def case(m: Measurement) -> HybridCase:
    """The case of the GB/s of the rows that a GPU receives."""
    if m.unit != RATE:
        raise Unsupported(f"no value in {RATE}")
    if m.config.get("measure") not in KERNELS_ALONE:
        raise Unsupported("times of torch calls: the share of the host is unknown")
    fp8 = dtype_of(m, "dtype", expected=("fp8", "bf16")) == "fp8"
    read = ep_fields(m)
    received = read["tokens"] * copies_of(read) * read["hidden"] * (SCALED_FP8 if fp8 else 2.0)
    return HybridCase(
        **read,
        verb=verb_of(m),
        n_sm=whole(number(m, "sms"), "SMs"),
        fp8=fp8,
        work=received / 1e3,
        shape=label(m, "hidden", "topk", "local_experts", "ep"),
    )
