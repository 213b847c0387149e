"""Low-latency kernels between NVLink domains: DeepEP's by NVLink and NIC, or by NIC alone, and NCCL EP's."""

from dataclasses import dataclass
from functools import partial

from dysharp.compute import transfer
from dysharp.measured.ep_kernels import EpCase, Options, ep_fields, marks_us, sent_dtypes, uniform, verb_of
from dysharp.measured.family import Constants, Level, family
from dysharp.measured.internode import NODE_GPUS, check_nodes, machine
from dysharp.measured.measurements import SCALED_FP8, Measurement, Unsupported, dtype_of, experts_of, label, number, spans_domains

NO_NVLINK = "pure RDMA"
BY_NIC = partial(machine, domain_gpus=NODE_GPUS // 2)
"""Eight GPUs that all send by NIC: where the domains end does not matter, but there must be several."""
ENDS = (128, 256)
"""Tokens per GPU of the two runs of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowLatencyCase(EpCase):
    """One call. `fp8`: FP8 rows in Dispatch. `peers`: "nvlink" or "nic" (`systems.deepep_ll`)."""

    fp8: bool
    peers: str

    def options(self) -> Options:
        return ("dispatch", "fp8" if self.fp8 else "rows"), ("peers", self.peers)


def program_us(case: LowLatencyCase, constants: Constants) -> float:
    """Device time of the kernel under uniform routing."""
    machine_of = BY_NIC if case.gpus == NODE_GPUS else machine
    received, end = marks_us("deepep-ll", case, constants, ("received",), ENDS, uniform, machine_of)
    return received if case.verb == "dispatch" else end - received


def _case(m: Measurement, dtype: str, work: bool) -> LowLatencyCase:
    """The measured kernels had 288 experts on any number of GPUs; ours have the next number that all GPUs share evenly."""
    gpus, verb = number(m, "ep"), verb_of(m)
    experts = gpus * -(-experts_of(m, gpus) // gpus)
    read = ep_fields(m, check_nodes, experts)
    row_bytes = read["hidden"] * (SCALED_FP8 if dtype == "fp8" else 2.0)
    message_bytes = row_bytes + (transfer.LL_HEADER_BYTES if verb == "dispatch" else 0.0)
    return LowLatencyCase(
        **read,
        verb=verb,
        fp8=(verb, dtype) != ("dispatch", "bf16"),
        peers="nic" if NO_NVLINK in m.system else "nvlink",
        work=read["tokens"] * read["topk"] * message_bytes / 1e3 if work else 0.0,
        dtypes=(f"{verb} {dtype}",),
        shape=label(m, "ep"),
    )


def _dtype(m: Measurement) -> str:
    verb = verb_of(m)
    return dtype_of(m, "dtype", verb, expected=("fp8", "bf16") if verb == "dispatch" else ("bf16",))


@family(
    "deepep-ll-internode",
    belongs=lambda m: m.kind in ("ep_dispatch", "ep_combine") and m.system.startswith("DeepEP-LL") and spans_domains(m),
    program_us=program_us,
    in_bars=False,
    between="bars",
    level=Level.KERNEL,
    order=210,
    systems=("deepep-ll",),
    parts=("dispatch", "combine"),
    dtypes_of=sent_dtypes,
)
def case(m: Measurement) -> LowLatencyCase:
    """The case of a latency."""
    if m.unit == "GB/s":
        raise Unsupported("the rate of a row whose time is a row, too")
    return _case(m, _dtype(m), work=False)


@family(
    "nccl-ep-internode",
    belongs=lambda m: m.kind in ("ep_dispatch", "ep_combine") and m.system == "NCCL-EP LL" and spans_domains(m),
    program_us=program_us,
    in_bars=False,
    between="beyond",
    level=Level.KERNEL,
    order=260,
)
def nccl_case(m: Measurement) -> LowLatencyCase:
    """The case of the GB/s of all messages, messages inside the GPU and its node included."""
    return _case(m, _dtype(m), work=True)
