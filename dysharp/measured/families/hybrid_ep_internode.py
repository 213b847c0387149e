"""Hybrid-EP's kernels between NVLink domains. Printed rates count the copy for the own node, which crosses no NIC."""

from dataclasses import dataclass, replace

from dysharp.measured.ep_kernels import Options, ep_fields, marks_us, sent_dtypes, uniform, verb_of
from dysharp.measured.families.hybrid_ep import KERNELS_ALONE, RATE, HybridCase
from dysharp.measured.families.hybrid_ep import belongs as is_hybrid
from dysharp.measured.family import Constants, Level, family
from dysharp.measured.internode import check_nodes, domains_of, machine
from dysharp.measured.measurements import SCALED_FP8, Measurement, Unsupported, dtype_of, label, number, spans_domains, whole
from dysharp.systems.hybrid_ep import CHUNK_TOKENS

NEAR, FAR = 128, 256
"""Tokens per GPU of the two runs of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridNodesCase(HybridCase):
    """As `HybridCase`; `chunk`: tokens that an SM takes at a time."""

    chunk: int = CHUNK_TOKENS

    def options(self) -> Options:
        return ("chunk", self.chunk), *(option for option in HybridCase.options(self) if option[0] != "chunk")


def program_us(case: HybridNodesCase, constants: Constants) -> float:
    """The kernel under uniform routing, from its launch on.

    The SMs have few turns at chunks, so the first turn, which fills the pipeline, is a share of the time. A run with fewer
    tokens has smaller chunks: as many turns, and times in proportion to the tokens, besides the fixed ones.
    """
    if case.tokens <= FAR:
        return _us(case, constants)
    near, far = (_us(replace(case, tokens=n, chunk=max(1, CHUNK_TOKENS * n // case.tokens)), constants) for n in (NEAR, FAR))
    return far + (case.tokens - FAR) / (FAR - NEAR) * (far - near)


def _us(case: HybridNodesCase, constants: Constants) -> float:
    marks = ("dispatch.launch", "received", "combine.launch")
    start, received, back, end = marks_us("hybrid-ep", case, constants, marks, (1, FAR), uniform, machine)
    return received - start if case.verb == "dispatch" else end - back


@family(
    "hybrid-ep-internode",
    belongs=lambda m: is_hybrid(m) and spans_domains(m),
    program_us=program_us,
    in_bars=False,
    between="bars",
    level=Level.KERNEL,
    order=220,
    systems=("hybrid-ep",),
    parts=("dispatch", "combine"),
    dtypes_of=sent_dtypes,
)
def case(m: Measurement) -> HybridNodesCase:
    """The case of a printed rate: rows of all nodes of a token, the own node included, over the time."""
    if m.unit != RATE or m.config.get("measure") not in KERNELS_ALONE:
        raise Unsupported("times of torch calls: the share of the host is unknown")
    dtype = dtype_of(m, "dtype", expected=("fp8", "bf16"))
    fp8 = dtype == "fp8"
    read = ep_fields(m, check_nodes)
    nodes = domains_of(read["gpus"], read["experts"], read["topk"], limited=False)
    row_bytes = read["hidden"] * (SCALED_FP8 if fp8 else 2.0)
    return HybridNodesCase(
        **read,
        verb=verb_of(m),
        n_sm=whole(number(m, "sms"), "SMs"),
        fp8=fp8,
        work=read["tokens"] * nodes * row_bytes / 1e3,
        dtypes=(f"{verb_of(m)} {dtype}",),
        shape=label(m, "ep"),
    )
