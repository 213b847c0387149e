"""Hybrid-EP's kernels between NVLink domains. Printed rates count the copy for the own node, which crosses no NIC."""

from __future__ import annotations

from dysharp.measured.config_json import SCALED_FP8, dtype_of, label, number, whole
from dysharp.measured.ep_kernels import ep_fields, marks_us, uniform, verb_of
from dysharp.measured.families.hybrid_ep import CHUNK_TOKENS, KERNELS_ALONE, RATE, HybridCase
from dysharp.measured.families.hybrid_ep import belongs as is_hybrid
from dysharp.measured.family import Constants, Level, family
from dysharp.measured.internode import check_nodes, domains_of, machine
from dysharp.measured.measurements import Measurement, Unsupported
from dysharp.measured.scope import spans_domains

TURNS = (1, 3)
"""Chunks of each SM in the two runs of the line."""


def program_us(case: HybridCase, constants: Constants) -> float:
    """The kernel under uniform routing, from its launch on."""
    turn = max(case.n_sm, 8) * CHUNK_TOKENS
    marks = ("dispatch.launch", "received", "combine.launch")
    ends = (TURNS[0] * turn, TURNS[1] * turn)
    start, received, back, end = marks_us("hybrid-ep", case, constants, marks, ends, uniform, machine)
    return received - start if case.verb == "dispatch" else end - back


@family(
    "hybrid-ep-internode",
    belongs=lambda m: is_hybrid(m) and spans_domains(m),
    program_us=program_us,
    in_bars=False,
    between="bars",
    level=Level.KERNEL,
    order=220,
)
def case(m: Measurement) -> HybridCase:
    """The case of a printed rate: rows of all nodes of a token, its own one too, over the time."""
    if m.unit != RATE or m.config.get("measure") not in KERNELS_ALONE:
        raise Unsupported("times of torch calls: the share of the host is unknown")
    fp8 = dtype_of(m, "dtype", expected=("fp8", "bf16")) == "fp8"
    read = ep_fields(m, check_nodes)
    nodes = domains_of(read["gpus"], read["experts"], read["topk"], limited=False)
    row_bytes = read["hidden"] * (SCALED_FP8 if fp8 else 2.0)
    return HybridCase(
        **read,
        verb=verb_of(m),
        n_sm=whole(number(m, "sms"), "SMs"),
        fp8=fp8,
        work=read["tokens"] * nodes * row_bytes / 1e3,
        shape=label(m, "ep"),
    )
