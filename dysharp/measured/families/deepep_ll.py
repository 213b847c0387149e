"""DeepEP's low-latency kernels over NVLink, send and receive parts together."""

from dataclasses import dataclass

from dysharp.arrays import F64
from dysharp.compute import transfer
from dysharp.measured.ep_kernels import EpCase, Options, ep_fields, kernel_times, sent_dtypes, verb_of
from dysharp.measured.family import Constants, Level, family
from dysharp.measured.measurements import NO_DOMAIN, SCALED_FP8, Measurement, Unsupported, dtype_of, label
from dysharp.specs.gpu import Gpu

MOST_GPUS = 8  # with more GPUs the kernels use RDMA instead of NVLink


@dataclass(frozen=True, slots=True, kw_only=True)
class LowLatencyCase(EpCase):
    """One call. `fp8`: FP8 rows in Dispatch; Combine always sends BF16. `row_bytes`: bytes of a measured row."""

    fp8: bool
    row_bytes: float

    def options(self) -> Options:
        return (("dispatch", "fp8" if self.fp8 else "rows"),)


def belongs(m: Measurement) -> bool:
    """Whether a measurement is of DeepEP's low-latency kernels."""
    return m.kind in ("ep_dispatch", "ep_combine") and m.system.startswith("DeepEP-LL")


def closed_us(case: LowLatencyCase, gpu: Gpu, constants: Constants) -> F64:
    """One message per token and expert (`compute.transfer`)."""
    form = transfer.ll_dispatch_us if case.verb == "dispatch" else transfer.ll_combine_us
    return form(gpu, constants, case.tokens, case.topk, case.row_bytes, case.experts, case.gpus)


def program_us(case: LowLatencyCase, constants: Constants) -> float:
    """Device time of the kernel under uniform routing."""
    return kernel_times("deepep-ll", case, constants)[case.verb]


@family(
    "deepep-ll",
    belongs=belongs,
    closed_us=closed_us,
    program_us=program_us,
    level=Level.KERNEL,
    order=30,
    systems=("deepep-ll",),
    parts=("dispatch", "combine"),
    dtypes_of=sent_dtypes,
)
def case(m: Measurement) -> LowLatencyCase:
    """The case of a latency, or of the GB/s of the messages that a GPU sends."""
    read, verb = ep_fields(m), verb_of(m)
    if read["gpus"] > MOST_GPUS:
        raise Unsupported(NO_DOMAIN)
    dtype = dtype_of(m, "dtype", verb, expected=("fp8", "bf16") if verb == "dispatch" else ("bf16",))
    row_bytes = read["hidden"] * (SCALED_FP8 if dtype == "fp8" else 2.0)
    message_bytes = row_bytes + (transfer.LL_HEADER_BYTES if verb == "dispatch" else 0.0)
    return LowLatencyCase(
        **read,
        verb=verb,
        fp8=(verb, dtype) != ("dispatch", "bf16"),
        row_bytes=row_bytes,
        work=read["tokens"] * read["topk"] * message_bytes / 1e3 if m.unit == "GB/s" else 0.0,
        dtypes=(f"{verb} {dtype}",),
        shape=label(m, "hidden", "topk", "experts"),
    )
