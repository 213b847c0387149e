"""What families of kernels between NVLink domains share: their machines, times from Programs, a closed form.

Machines are the packaged node of the measured GPU, with the NICs of `NICS_OF`.
"""

from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from dysharp.base import F64, PS_PER_US, Amounts, Texts
from dysharp.costs.operators import overlap
from dysharp.measured.ep_kernels import EpCase, MachineOf, RoutingOf, cluster_of, done_ps, marks_us, uniform
from dysharp.measured.family import Constants
from dysharp.measured.measurements import CLUSTERS, NICS_OF, Unsupported
from dysharp.measured.predictions import HashableConstants
from dysharp.program import Program, Trace
from dysharp.specs import Cluster, Model, ScaleOut, load_cluster
from dysharp.workload import Routing, expected_copies, make_routing

NODE_GPUS = 8
MOST_GROUPS = 4
"""Nodes to which DeepEP's benchmark limits the experts of a token."""
NEAR, FAR = 256, 768
"""Tokens per GPU of the two runs of the line."""
FEW, SOME = 128, 256
"""The same on more than `MANY_GPUS` GPUs."""
MANY_GPUS = 32


def machine(gpu: str, gpus: int, constants: HashableConstants, domain_gpus: int = NODE_GPUS, slow: float = 0.0, part: float = 1.0) -> Cluster:
    """`gpus` GPUs in domains of `domain_gpus`, each with `part` of a NIC. `slow`: the part of its rate that the NIC of GPU 0 reaches; 0 = all."""
    nics = load_cluster(NICS_OF).scale_out or ScaleOut(NODE_GPUS, 1.0, 0.0)
    net = replace(nics, domain_gpus=domain_gpus, nic_GBps=part * nics.nic_GBps, slow_nics=((0, slow),) if slow else ())
    return replace(cluster_of(gpu, min(gpus, NODE_GPUS), constants), n_gpus=gpus, max_gpus=gpus, scale_out=net)


def check_nodes(gpu: str, gpus: int) -> None:
    """Raise `Unsupported` where no cluster has `gpus` GPUs of this kind in several nodes."""
    if gpu not in CLUSTERS or gpus % NODE_GPUS:
        raise Unsupported(f"{gpus} {gpu} are no nodes of {NODE_GPUS}")


def group_limited(model: Model, gpus: int, tokens: int) -> Routing:
    """The experts of a token lie on `MOST_GROUPS` nodes at most, as in DeepEP's benchmark."""
    nodes = gpus // NODE_GPUS
    if nodes <= MOST_GROUPS:
        return uniform(model, gpus, tokens)
    return make_routing("uniform:group-limited", replace(model, n_group=nodes, topk_group=MOST_GROUPS), gpus, tokens)


def domains_of(gpus: int, experts: int, topk: int, limited: bool) -> float:
    """Mean number of nodes that a token needs, its own node included."""
    nodes = gpus // NODE_GPUS
    return float(MOST_GROUPS) if limited and nodes > MOST_GROUPS else expected_copies(nodes, experts, topk)


def _ends_of(gpus: int) -> tuple[int, int]:
    """Tokens per GPU of the two runs."""
    return (NEAR, FAR) if gpus <= MANY_GPUS else (FEW, SOME)


def transmit_us(case: EpCase, constants: Constants, routing_of: RoutingOf) -> Amounts:
    """DeepEP's Dispatch and Combine without their notify, in us."""
    marks = ("dispatch.notify", "received", "combine.notify")
    notified, received, again, end = marks_us("deepep", case, constants, marks, _ends_of(case.gpus), routing_of, machine)
    return {"dispatch": received - notified, "combine": end - (again or received)}


class _Straggler(NamedTuple):
    """Times in us with one slow NIC: Dispatch of the last GPU, Combine of the median and of the last GPU."""

    dispatch: float
    combine: float
    last: float


def straggler_us(case: EpCase, constants: Constants, part: float) -> _Straggler:
    """DeepEP's kernels while the NIC of GPU 0 reaches `part` of its rate, from the line through two runs."""
    return _Straggler(*marks_us("deepep", case, constants, _straggler, _ends_of(case.gpus), group_limited, _slow_machine(part)))


@cache
def _slow_machine(part: float) -> MachineOf:
    return partial(machine, slow=part)


def _straggler(program: Program, trace: Trace) -> tuple[float, ...]:
    notified, received, again = (done_ps(program, trace, mark) for mark in ("dispatch.notify", "received", "combine.notify"))
    ends = arrivals(program, trace, ("combine.put", "combine.nic")) - again
    return (received - notified) / PS_PER_US, float(np.median(ends)) / PS_PER_US, float(ends.max()) / PS_PER_US


def arrivals(program: Program, trace: Trace, names: Texts) -> F64:
    """`[n_nodes]` float64: ps when the last transfer of the templates `names` has reached each GPU."""
    templates = [i for i, template in enumerate(program.templates) if template.name in names]
    ops = np.flatnonzero(np.isin(program.ops.template, templates))
    ends = np.zeros(program.n_nodes)
    np.maximum.at(ends, program.members.node[program.members.ptr[ops]], trace.done[ops])
    return ends


def two_hop_us(constants: Constants, verb: str, tokens: F64, gpus_needed: F64, remote: F64, row_bytes: F64, n_sm: F64) -> F64:
    """A fixed time, and per token the forwarding SMs beside the NIC. `remote`: other nodes that a token needs.

    SMs and NIC overlap as SMs and links do elsewhere (`sm.overlap`). With a plain maximum the times of four nodes would not
    depend on the SMs, and a fit to them could not see their rate.
    """
    nics = load_cluster(NICS_OF).scale_out
    assert nics is not None
    sms = gpus_needed * row_bytes / (1e3 * constants[f"internode.{verb}_GBps"] * n_sm)
    wire = remote * row_bytes / (1e3 * nics.nic_GBps)
    return constants[f"internode.{verb}_us"] + tokens * overlap(sms, wire, constants["sm.overlap"])
