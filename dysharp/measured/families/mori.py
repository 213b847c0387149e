"""MoRI's kernels on nodes of eight MI300X or MI308X, whose pairs of GPUs have links, and over two such nodes.

Rows of tuning files are means over ranks, of the best of many launch shapes. Their rows with `zero_copy` and a cast repeat the numbers of zero copy
alone, because the kernel does not cast there. Rows that do not say whether they copy are read as zero copy.
"""

from dataclasses import replace

import numpy as np

from dysharp.base import F64, PS_PER_US, ByName, frozen_keywords
from dysharp.costs import transfer
from dysharp.measured.ep_kernels import EpCase, Options, copies_of, ep_fields, marks_us, uniform, verb_of
from dysharp.measured.families import CLUSTERS, Constants, Measurement, Unsupported, check_cluster, dtype_of, family, label, number
from dysharp.measured.internode import NODE_GPUS, arrivals, check_nodes
from dysharp.measured.predictions import HashableConstants
from dysharp.program import Program, Trace
from dysharp.specs import Cluster, Gpu, load_cluster

ENDS = (128, 256)
"""Tokens per GPU of the two runs of the line."""
USUAL_EXPERTS, SAME = 256, 0.02
"""Number of experts where a row does not say it: taken from a row that does, if that number gives the printed copies of a token within `SAME`."""
SENT = {"bf16": "rows", "fp8": "fp8-plain", "fp4": "fp4-plain"}
VALUE_BYTES = {"rows": 2.0, "fp8-plain": 1.0, "fp4-plain": 0.5}
CAST = "fp8_direct_cast"


@frozen_keywords
class _MoriCase(EpCase):
    """One call. `sent`: format of the rows that the kernel sends. `moved_bytes`: read and written per received row before Combine."""

    sent: str
    zero_copy: bool
    copies: float
    row_bytes: float
    moved_bytes: float

    def options(self) -> Options:
        return ("combine" if self.verb == "combine" else "dispatch", self.sent), ("zero_copy", self.zero_copy)


def _closed_us(case: _MoriCase, gpu: Gpu, constants: Constants) -> F64:
    """Rows of a pair on its link (`costs.transfer`)."""
    sizes = case.tokens, case.copies, case.row_bytes, case.gpus
    if case.verb == "dispatch":
        return transfer.mori_dispatch_us(gpu, constants, *sizes)
    return transfer.mori_combine_us(gpu, constants, *sizes, case.moved_bytes)


def _program_us(case: _MoriCase, constants: Constants) -> float:
    """Mean over GPUs of the kernel's time under uniform routing, from a run or from the line through two runs."""
    return marks_us("mori", case, constants, _means, ENDS)[case.verb == "combine"]


def _nodes_us(case: _MoriCase, constants: Constants) -> float:
    """As `program_us` over two nodes."""
    return marks_us("mori", case, constants, _means, ENDS, uniform, _two_nodes)[case.verb == "combine"]


def _two_nodes(gpu: str, gpus: int, constants: HashableConstants) -> Cluster:
    """The packaged cluster of two nodes of a GPU with `constants`."""
    return replace(load_cluster(f"{CLUSTERS[gpu]}-x2").with_gpus(gpus), constants=constants)


def _means(program: Program, trace: Trace) -> tuple[float, ...]:
    """Of Dispatch and of Combine."""
    received = trace.done[np.isin(program.ops.template, [i for i, t in enumerate(program.templates) if t.name == "received"])]
    combined = arrivals(program, trace, ("combine.put", "combine.nic")) - received
    return float(received.mean()) / PS_PER_US, float(combined.mean()) / PS_PER_US


def _belongs(m: Measurement) -> bool:
    return m.kind in ("ep_dispatch", "ep_combine") and m.system.startswith("MoRI-EP")


def _over_nodes(m: Measurement) -> bool:
    return bool(m.config.get("nodes", 1) != 1)


def _fields(m: Measurement) -> ByName:
    read = ep_fields(m, check_nodes if _over_nodes(m) else check_cluster, None if "experts" in m.config else USUAL_EXPERTS)
    if "experts" not in m.config:
        printed = number(m, "recv_copies_per_token") if "recv_copies_per_token" in m.config else 0.0
        if abs(copies_of(read) - printed) > SAME * printed:
            raise Unsupported("number of experts unknown")
    return read


def _case(m: Measurement) -> _MoriCase:
    verb, read = verb_of(m), _fields(m)
    zero_copy = m.config.get("zero_copy") is not False and ("zero-copy" in m.system or "p2p read" not in m.system)
    sent = SENT[dtype_of(m, "dtype", expected=tuple(SENT) if verb == "dispatch" else ("bf16",))]
    if verb == "combine" and m.config.get("quant_type") == CAST and not zero_copy:
        sent = "fp8-plain"
    row_bytes, result = read["hidden"] * VALUE_BYTES[sent], read["hidden"] * VALUE_BYTES["rows"]
    copies = copies_of(read)
    return _MoriCase(
        **read,
        verb=verb,
        sent=sent,
        zero_copy=zero_copy or verb == "dispatch",
        copies=copies,
        row_bytes=row_bytes,
        moved_bytes=0.0 if zero_copy else result + row_bytes,
        work=read["tokens"] * copies * row_bytes / 1e3 if m.unit == "GB/s" else 0.0,
        dtypes=(f"{verb} {sent}",),
        shape=label(m, "ep", "topk"),
    )


@family("mori-intranode", belongs=lambda m: _belongs(m) and not _over_nodes(m), closed_us=_closed_us, program_us=_program_us)
def _node_case(m: Measurement) -> _MoriCase:
    """The case of a latency, or of the GB/s of received rows, rows from the own GPU included."""
    return _case(m)


@family("mori-internode", belongs=lambda m: _belongs(m) and _over_nodes(m), program_us=_nodes_us)
def _nodes_case(m: Measurement) -> _MoriCase:
    """The case of a latency over two nodes, whose NIC no row names."""
    found = _case(m)
    if found.gpus != 2 * NODE_GPUS:
        raise Unsupported("no packaged cluster of more than two nodes")
    return found
