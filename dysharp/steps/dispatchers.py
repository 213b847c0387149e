"""Dispatch and combine of one MoE layer as closed forms by dispatcher: bytes on links and NICs, under balanced routing.

They stand in for a Row where a step must be quick: validation of measured steps, and searches over layouts.
"""

from dataclasses import dataclass

from dysharp.compute.collectives import collective_us, link_us, sync_us
from dysharp.compute.transfer import deepep_combine_us, deepep_dispatch_us, expected_copies
from dysharp.specs.model import Model
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine
from dysharp.steps.practice import SMS, Practice

ELEMENT = 2


@dataclass(frozen=True, slots=True)
class Exchange:
    """Microseconds of one dispatch and one combine, of what a forward pass exchanges before it knows its counts, and of the wait for the last rank,
    which `dispatch` and `combine` leave out. `received`: rows that a GPU receives per own token, before the copies per expert.
    """

    dispatch: float
    combine: float
    received: float
    maps: float = 0.0
    wait: float = 0.0


def exchange(machine: Machine, layout: Layout, layer: Model, tokens: float, practice: Practice) -> Exchange:
    """`tokens`: of a micro-batch on one rank, after tensor parallelism cut them.

    alltoall sends a row for every expert of a token; DeepEP and Hybrid-EP send one per GPU of a domain and one per domain over NICs.
    """
    ep, row = layout.ep, ELEMENT * layer.hidden
    if ep == 1:
        return Exchange(0.0, 0.0, float(layer.topk))
    stride = layout.stride("ep")
    inside = max(1, min(ep, machine.domain // stride))
    domains = -(-ep // inside)
    copies = float(layer.topk) if practice.dispatcher == "alltoall" else _copies(ep, layer)
    over_nics = 0.0
    if domains > 1:
        per_domain = float(layer.topk) if practice.dispatcher == "alltoall" else _copies(domains, layer)
        over_nics = tokens * per_domain * (domains - 1) / domains * row / machine.nic + machine.hop
    dispatch, combine = _inside(machine, inside, tokens, copies, row, practice, domains)
    maps = _maps(machine, layout, tokens * layer.n_experts * ep) if practice.dispatcher == "hybrid-ep" else 0.0
    return Exchange(max(dispatch, over_nics), max(combine, over_nics), copies, maps, machine.wait)


def _maps(machine: Machine, layout: Layout, n_bytes: float) -> float:
    """The all-gather of routing maps, a byte per token and expert of the group, and the kernel that reads them (DeepEP, hybrid_ep_buffer.py)."""
    near = layout.ep * layout.stride("ep") <= machine.domain
    return machine.memory(n_bytes) + machine.group(n_bytes, layout.ep, layout.stride("ep")) + (0.0 if near else machine.hop)


def _copies(parts: int, layer: Model) -> float:
    """Mean distinct parts (GPUs, domains) of a token. Groups of experts limit it where a group lies on whole parts."""
    experts = layer.n_experts
    if parts % layer.n_group == 0:
        parts, experts = (n // layer.n_group * layer.topk_group for n in (parts, experts))
    return expected_copies(parts, experts, layer.topk) if experts % parts == 0 else float(min(parts, layer.topk))


def _inside(machine: Machine, gpus: int, tokens: float, copies: float, row: float, practice: Practice, domains: int) -> tuple[float, float]:
    """Microseconds of dispatch and combine on the links of one domain."""
    if gpus == 1:
        return 0.0, 0.0
    if not machine.cluster.gpu:
        one = tokens * copies * row * (gpus - 1) / gpus / domains / machine.link
        return one, one
    gpu, constants = machine.cluster.own_gpu, machine.cluster.fitted
    if practice.dispatcher == "alltoall":
        one = float(collective_us(gpu, constants, "alltoall", gpus, tokens * copies * row / domains))
        return one, one
    if practice.dispatcher == "deepep" and domains == 1:
        sms = SMS["deepep"]
        sizes = (tokens, copies, row, sms, gpus)
        return float(deepep_dispatch_us(gpu, constants, *sizes)), float(deepep_combine_us(gpu, constants, *sizes))
    one = float(link_us(gpu, constants, tokens * copies * row * (gpus - 1) / gpus) + sync_us(gpu, constants, gpus))
    return one, one
