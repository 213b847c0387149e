"""Low-latency kernels, send and receive parts together: DeepEP's over NVLink, and between domains by NVLink and NIC, or by NIC alone; NCCL EP's."""

from functools import partial

from dysharp.base import F64, ByName, frozen_keywords
from dysharp.costs import transfer
from dysharp.measured.ep_kernels import EpCase, Options, ep_fields, kernel_times, marks_us, sent_dtypes, sent_rows, uniform, verb_of
from dysharp.measured.family import Constants, family
from dysharp.measured.internode import NODE_GPUS, check_nodes, machine
from dysharp.measured.measurements import NO_DOMAIN, Measurement, Unsupported, experts_of, label, number, spans_domains
from dysharp.specs import Gpu

MOST_GPUS = 8  # with more GPUs the kernels use RDMA instead of NVLink
NO_NVLINK = "pure RDMA"
BY_NIC = partial(machine, domain_gpus=NODE_GPUS // 2)
"""Eight GPUs that all send by NIC: where the domains end does not matter, but there must be several."""
ENDS = (128, 256)
"""Tokens per GPU of the two runs of the line, between domains."""


@frozen_keywords
class LowLatencyCase(EpCase):
    """One call. `fp8`: FP8 rows in Dispatch; Combine always sends BF16. `row_bytes`: bytes of a measured row.

    `peers`: "nvlink" or "nic" between domains (`systems.deepep_ll`), "" inside one.
    """

    fp8: bool
    row_bytes: float
    peers: str = ""

    def options(self) -> Options:
        return ("dispatch", "fp8" if self.fp8 else "rows"), *((("peers", self.peers),) if self.peers else ())


def _belongs(m: Measurement, system: str = "DeepEP-LL") -> bool:
    return m.kind in ("ep_dispatch", "ep_combine") and m.system.startswith(system)


def _closed_us(case: LowLatencyCase, gpu: Gpu, constants: Constants) -> F64:
    """One message per token and expert (`costs.transfer`)."""
    form = transfer.ll_dispatch_us if case.verb == "dispatch" else transfer.ll_combine_us
    return form(gpu, constants, case.tokens, case.topk, case.row_bytes, case.experts, case.gpus)


def _program_us(case: LowLatencyCase, constants: Constants) -> float:
    """Device time of the kernel under uniform routing."""
    return kernel_times("deepep-ll", case, constants)[case.verb]


def _nodes_us(case: LowLatencyCase, constants: Constants) -> float:
    """As `program_us` over several domains."""
    machine_of = BY_NIC if case.gpus == NODE_GPUS else machine
    received, end = marks_us("deepep-ll", case, constants, ("received",), ENDS, uniform, machine_of)
    return received if case.verb == "dispatch" else end - received


def _case(m: Measurement, read: ByName, shape: str, rate: bool, peers: str = "") -> LowLatencyCase:
    """`rate`: the measurement is GB/s of messages."""
    verb = verb_of(m)
    rows = sent_rows(m, verb, read["hidden"])
    message_bytes = rows["row_bytes"] + (transfer.LL_HEADER_BYTES if verb == "dispatch" else 0.0)
    work = read["tokens"] * read["topk"] * message_bytes / 1e3 if rate else 0.0
    return LowLatencyCase(**read, **rows, verb=verb, peers=peers, work=work, shape=shape)


@family("deepep-ll", belongs=_belongs, closed_us=_closed_us, program_us=_program_us, dtypes_of=sent_dtypes)
def _domain_case(m: Measurement) -> LowLatencyCase:
    """The case of a latency, or of the GB/s of the messages that a GPU sends."""
    read = ep_fields(m)
    if read["gpus"] > MOST_GPUS:
        raise Unsupported(NO_DOMAIN)
    return _case(m, read, label(m, "hidden", "topk", "experts"), m.unit == "GB/s")


def _nodes_case(m: Measurement, rate: bool) -> LowLatencyCase:
    """The measured kernels had 288 experts on any number of GPUs; ours have the next number that all GPUs share evenly."""
    gpus = number(m, "ep")
    read = ep_fields(m, check_nodes, gpus * -(-experts_of(m, gpus) // gpus))
    return _case(m, read, label(m, "ep"), rate, "nic" if NO_NVLINK in m.system else "nvlink")


@family("deepep-ll-internode", belongs=lambda m: _belongs(m) and spans_domains(m), program_us=_nodes_us, dtypes_of=sent_dtypes)
def _far_case(m: Measurement) -> LowLatencyCase:
    """The case of a latency."""
    return _nodes_case(m, rate=False)


@family("nccl-ep-internode", belongs=lambda m: _belongs(m, "NCCL-EP LL") and m.system == "NCCL-EP LL" and spans_domains(m), program_us=_nodes_us)
def _nccl_case(m: Measurement) -> LowLatencyCase:
    """The case of the GB/s of all messages, messages inside the GPU and its node included."""
    return _nodes_case(m, rate=True)
