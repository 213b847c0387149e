"""Hybrid-EP's kernels in one NVLink domain and between domains. The first fix one constant by hand (`hybrid.rank_us`); there is no closed form."""

from dataclasses import replace

from dysharp.base import ByName, frozen_keywords
from dysharp.measured.ep_kernels import EpCase, Options, copies_of, ep_fields, marks_us, on_line, sent_dtypes, uniform, verb_of
from dysharp.measured.family import Constants, family
from dysharp.measured.internode import check_nodes, domains_of, machine
from dysharp.measured.measurements import SCALED_FP8, Measurement, dtype_of, label, number, spans_domains, whole
from dysharp.systems.building.between.deepep_internode import CHUNK_TOKENS as LIBRARY_CHUNK

CHUNK_TOKENS = 16
"""Tokens that an SM takes at a time in the runs of one domain: a quarter of the library's, so that the runs are a quarter as long."""
NEAR, FAR = 128, 256
"""Tokens per GPU of the two runs of the line, between domains."""


@frozen_keywords
class _HybridCase(EpCase):
    """A call on `n_sm` SMs with a cached handle. `fp8`: rows in FP8. `alone`: launches and copies are not timed.

    The copies leave the exchange buffer after Dispatch and fill the buffer before Combine. `chunk`: tokens that an SM takes at a time; 0: as many as
    in the runs of one domain.
    """

    n_sm: int
    fp8: bool
    alone: bool = True
    chunk: int = 0

    def options(self) -> Options:
        wire = "fp8" if self.fp8 else "rows"
        return ("chunk", self.chunk or CHUNK_TOKENS), ("dispatch", wire), ("n_sm", self.n_sm), ("permute", False)


def _belongs(m: Measurement) -> bool:
    return m.kind in ("ep_dispatch", "ep_combine") and m.system in ("Hybrid-EP", "HybridEP")


def program_us(case: _HybridCase, constants: Constants) -> float:
    """The kernel under uniform routing.

    SMs take turns at chunks, so the two runs of the line give every SM equally many chunks.
    """
    turn = case.n_sm * CHUNK_TOKENS
    marks = ("dispatch.launch", "received", "combine.launch") if case.alone else ("scan", "permute", "permute")
    start, received, back, end = marks_us("hybrid-ep", case, constants, marks, (turn, 2 * turn))
    return received - start if case.verb == "dispatch" else end - back


def _nodes_us(case: _HybridCase, constants: Constants) -> float:
    """The kernel between domains under uniform routing, from its launch on.

    The SMs have few turns at chunks, so the first turn, which fills the pipeline, is a share of the time. A run with fewer
    tokens has smaller chunks: as many turns, and times in proportion to the tokens, besides the fixed ones.
    """
    marks = ("dispatch.launch", "received", "combine.launch")

    def run(n: int) -> tuple[float, ...]:
        few = replace(case, tokens=n, chunk=max(1, LIBRARY_CHUNK * n // case.tokens))
        start, received, back, end = marks_us("hybrid-ep", few, constants, marks, (1, FAR), uniform, machine)
        return (received - start if case.verb == "dispatch" else end - back,)

    return on_line(case.tokens, (NEAR, FAR), run)[0]


def _case(m: Measurement, read: ByName, shape: str, chunk: int = 0) -> tuple[_HybridCase, float]:
    """(the case without its work, bytes of a sent value)."""
    dtype, verb = dtype_of(m, "dtype", expected=("fp8", "bf16")), verb_of(m)
    n_sm, dtypes = whole(number(m, "sms"), "SMs"), (f"{verb} {dtype}",) if chunk else ()
    found = _HybridCase(**read, verb=verb, n_sm=n_sm, fp8=dtype == "fp8", chunk=chunk, dtypes=dtypes, shape=shape)
    return found, SCALED_FP8 if found.fp8 else 2.0


@family("hybrid-ep", belongs=_belongs, program_us=program_us)
def _domain_case(m: Measurement) -> _HybridCase:
    """The case of the GB/s of the rows that a GPU receives."""
    read = ep_fields(m)
    found, width = _case(m, read, label(m, "hidden", "topk", "local_experts", "ep"))
    return replace(found, work=read["tokens"] * copies_of(read) * read["hidden"] * width / 1e3)


@family("hybrid-ep-internode", belongs=lambda m: _belongs(m) and spans_domains(m), program_us=_nodes_us, dtypes_of=sent_dtypes)
def _nodes_case(m: Measurement) -> _HybridCase:
    """The rows of all nodes of a token over the time, its own node too: a printed rate counts the copy for the own node, which crosses no NIC."""
    read = ep_fields(m, check_nodes)
    found, width = _case(m, read, label(m, "ep"), LIBRARY_CHUNK)
    nodes = domains_of(read["gpus"], read["experts"], read["topk"], limited=False)
    return replace(found, work=read["tokens"] * nodes * (read["hidden"] * width) / 1e3)
