"""DeepEP's normal kernels between NVLink domains: transmit times, notify, and a fabric with one slow NIC.

| rows | are |
|---|---|
| the collector's on two and four DGX H100, READMEs, rows of two H200 nodes | `deepep-internode` |
| notify of the collector with `NOTIFY_TOKENS` tokens | `deepep-notify-internode`; with more tokens ranks wait for each other inside |
| the collector's on eight DGX H100, where one NIC or node was slow | `deepep-straggler`, predicted with one NIC at a third |
"""

import numpy as np

from dysharp.base import F64, f64, frozen_keywords
from dysharp.costs.transfer import notify_us
from dysharp.measured.ep_kernels import copies_of, ep_fields, sent_dtypes, sent_rows, verb_of
from dysharp.measured.families import Constants, Measurement, Unsupported, family, label, number, spans_domains, whole
from dysharp.measured.families.deepep import DeepEpCase
from dysharp.measured.internode import NODE_GPUS, check_nodes, domains_of, group_limited, straggler_us, transmit_us, two_hop_us
from dysharp.specs import Gpu

KERNELS = ("DeepEP-normal", "DeepEP V1 normal", "DeepEP V1 (NVSHMEM host proxy)", "DeepEP V2")
"""Starts of the column `system`."""
COLLECTED = "P3"
"""`proto` of the collector whose rows have transmit and notify apart."""
SLOW_NODES = 8
SLOW_PART = 1 / 3
"""Part of its rate that the slow NIC reaches: in its rows Dispatch takes 2.8 to 3.0 times the bound of the NICs."""
NOTIFY_TOKENS = 128


@frozen_keywords
class _InternodeCase(DeepEpCase):
    """As `DeepEpCase`; `remote`: other nodes that a token needs."""

    remote: float


def _ours(m: Measurement) -> bool:
    return m.kind in ("ep_dispatch", "ep_combine") and m.system.startswith(KERNELS) and spans_domains(m)


def _slow(m: Measurement) -> bool:
    return m.config.get("proto") == COLLECTED and m.config.get("nodes") == SLOW_NODES


def _notify(m: Measurement) -> bool:
    return m.metric == "latency_notify" and not _slow(m)


def _closed_us(case: _InternodeCase, gpu: Gpu, constants: Constants) -> F64:
    """SMs beside the NIC (`internode.two_hop_us`)."""
    sizes = map(f64, (case.tokens, case.copies, case.remote, case.row_bytes, case.n_sm))
    return two_hop_us(constants, case.verb, *sizes)


def _program_us(case: _InternodeCase, constants: Constants) -> float:
    """The kernel without its notify, with at most four nodes per token. Processes import it by name."""
    return transmit_us(case, constants, group_limited)[case.verb]


def _notify_us(case: _InternodeCase, gpu: Gpu, constants: Constants) -> F64:
    """Two barriers of a rail, and the rest of the notify with a cached handle (`building.between.deepep_internode`)."""
    return notify_us(constants, np.log2(f64(case.gpus) / NODE_GPUS))


def _slow_us(case: _InternodeCase, constants: Constants) -> float:
    """Dispatch ends late everywhere; Combine of most GPUs does not. They wait in the next notify."""
    times = straggler_us(case, constants, SLOW_PART)
    waits = times.last - times.combine
    return {"dispatch": times.dispatch, "combine": times.combine, "combine notify": waits}[case.verb]


def _case(m: Measurement, verb: str) -> _InternodeCase:
    operator = verb_of(m)
    read = ep_fields(m, check_nodes)
    n_sm = whole(number(m, "sms"), "SMs")
    if n_sm % 2:
        raise Unsupported("an odd number of SMs: a channel is a pair of SMs")
    nodes = domains_of(read["gpus"], read["experts"], read["topk"], limited=True)
    rows = sent_rows(m, operator, read["hidden"])
    own = NODE_GPUS / read["gpus"]
    return _InternodeCase(
        **read,
        **rows,
        verb=verb,
        n_sm=n_sm,
        copies=copies_of(read),
        remote=nodes * (1 - own),
        # A printed rate counts the copy of the own node, which crosses no NIC.
        work=read["tokens"] * nodes * rows["row_bytes"] / 1e3 if m.unit == "GB/s" else 0.0,
        shape=label(m, "ep"),
    )


@family(
    "deepep-internode",
    belongs=lambda m: _ours(m) and not _notify(m) and not _slow(m),
    closed_us=_closed_us,
    program_us=_program_us,
    dtypes_of=sent_dtypes,
)
def _nodes_case(m: Measurement) -> _InternodeCase:
    """The case of a transmit time, or of the printed GB/s, in which every node of a token counts, the own node too."""
    return _case(m, verb_of(m))


@family("deepep-notify-internode", belongs=lambda m: _ours(m) and _notify(m), closed_us=_notify_us)
def _notify_case(m: Measurement) -> _InternodeCase:
    """The case of a notify without tokens to wait for."""
    if number(m, "tokens_per_rank") != NOTIFY_TOKENS:
        raise Unsupported("waiting for the slowest rank is inside")
    return _case(m, "notify")


@family("deepep-straggler", belongs=lambda m: _ours(m) and _slow(m), program_us=_slow_us)
def _slow_case(m: Measurement) -> _InternodeCase:
    """The case of a transmit time, or of a notify of Combine, on the fabric with a slow NIC."""
    return _case(m, "combine notify" if m.metric == "latency_notify" else verb_of(m))
