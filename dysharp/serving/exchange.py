"""Dispatch and combine of one MoE layer by the closed form of a named EP system, in microseconds.

`tokens`: tokens that one GPU sends. Each GPU of a group with requests of its own sends its own tokens; under tensor parallel attention the GPUs of a
group share them. Between NVLink domains only low-latency messages have a closed form here.
"""

from dataclasses import dataclass

from dysharp.base.errors import ConfigError, nearest
from dysharp.costs.collectives import flight_us, link_us
from dysharp.costs.transfer import (
    LL_HEADER_BYTES,
    alltoall_one_sided_us,
    deepep_combine_us,
    deepep_dispatch_us,
    expected_copies,
    ll_combine_us,
    ll_dispatch_us,
)
from dysharp.model.formats import ROW_BYTES
from dysharp.serving.work import Replica
from dysharp.specs.fields import show

LL_MOST_TOKENS = 1024
"""Tokens of one GPU up to which engines take low-latency kernels (DeepEP: NUM_MAX_NVL_PEERS and the buffers of its users)."""
NORMAL_SMS = 20
"""SMs of DeepEP's normal kernels unless set (Buffer.num_sms)."""
EP_SYSTEMS = ("deepep", "trtllm-a2a")
FREE, IN_SWITCH, HUB = "free", "dysharp", "moe-hub"
BOUNDS = (FREE, IN_SWITCH, HUB)
"""What no engine has, as lower bounds: no communication at all; switches that copy and sum rows; a hub in the GPU that moves rows."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Times of dispatch and combine, their kernels, and which system."""

    dispatch: float
    combine: float
    kernels: int
    system: str


def least_us(replica: Replica, tokens: float, experts_us: float) -> float:
    """Least time beside the experts of a layer that takes dispatch and combine of `tokens` tokens of a GPU with the hardware of `BOUNDS`.

    No software, one flight in and one out, and rows move while experts compute. A hub sends a row to each of R GPUs and gets R rows back. A
    DySHARP switch takes one copy and makes R of it, and sums R rows into one: a link carries R + 1 rows in its busier direction, not 2 R.
    """
    layer, ep, rates = replica.model.layer, replica.layout.ep, replica.machine
    assert layer is not None
    experts = layer.n_experts + replica.layout.slots
    copies = expected_copies(ep, experts // ep * ep, layer.topk) * (ep - 1) / ep
    sent, back = row_bytes(replica)
    rows = max(sent + copies * back, copies * sent + back) if replica.ep_system == IN_SWITCH else copies * (sent + back)
    return 2 * flight_us(rates.gpu) + max(0.0, float(link_us(rates.gpu, rates.constants, tokens * rows)) - experts_us)


def row_bytes(replica: Replica) -> tuple[float, float]:
    """Bytes of a row on its way to its experts and back."""
    assert replica.model.layer is not None
    hidden, (sent, back) = replica.model.layer.hidden, replica.formats.rows()
    return hidden * ROW_BYTES[sent], hidden * ROW_BYTES[back]


def ep_system_of(replica: Replica) -> str:
    """The EP system of a replica: the named one, else TensorRT-LLM's inside a domain of more than 8 GPUs, else DeepEP. Raises `ConfigError`."""
    name, domain = replica.ep_system, replica.machine.cluster.domain_gpus
    if not name or name in BOUNDS:
        return "trtllm-a2a" if domain > 8 else "deepep"
    if name not in EP_SYSTEMS:
        raise ConfigError(f"EP system {show(name)}: no closed form for serving{nearest(name, EP_SYSTEMS)}, expected one of {', '.join(EP_SYSTEMS)}")
    return name


def domain_of(replica: Replica) -> int:
    """GPUs of one NVLink domain of the machine."""
    cluster = replica.machine.cluster
    return cluster.domain_gpus if cluster.scale_out else cluster.max_gpus or cluster.n_gpus


def exchange(replica: Replica, tokens: float, most: float = 1.0) -> Exchanged:
    """Dispatch and combine of `tokens` tokens of every GPU; the busiest one gets and sends `most` times the mean."""
    layer, ep, rates = replica.model.layer, replica.layout.ep, replica.machine
    assert layer is not None
    gpu, constants, k = rates.gpu, rates.constants, layer.topk
    experts = layer.n_experts + replica.layout.slots
    name = ep_system_of(replica)
    sent, back = row_bytes(replica)
    if ep > domain_of(replica):
        return _between_domains(replica, tokens, most, experts, sent, back)
    low_latency = tokens <= LL_MOST_TOKENS
    tokens *= most
    copies = expected_copies(ep, experts // ep * ep, k)
    if name == "trtllm-a2a":
        narrow = replica.formats.experts == "nvfp4" and not replica.formats.sent
        sent = layer.hidden * ROW_BYTES["nvfp4"] if narrow else sent
        dispatch = alltoall_one_sided_us(gpu, constants, tokens, copies, sent, ep)
        combine = alltoall_one_sided_us(gpu, constants, tokens, copies, back, ep, reads=True)
        return Exchanged(float(dispatch), float(combine), 6, name)
    if not low_latency:
        dispatch = deepep_dispatch_us(gpu, constants, tokens, copies, sent, NORMAL_SMS, ep)
        return Exchanged(float(dispatch), float(deepep_combine_us(gpu, constants, tokens, copies, back, NORMAL_SMS, ep)), 6, "deepep")
    dispatch = ll_dispatch_us(gpu, constants, tokens, k, sent, experts, ep)
    return Exchanged(float(dispatch), float(ll_combine_us(gpu, constants, tokens, k, back, experts, ep)), 4, "deepep-ll")


def _between_domains(replica: Replica, tokens: float, most: float, experts: int, sent: float, back: float) -> Exchanged:
    """Messages by NIC to GPUs of other domains and by NVLink inside. The normal kernels send a row once per domain, the others once per expert.

    Floor: the floor of low-latency kernels in a domain, and a put with its flag between domains.
    """
    rates, layer, ep = replica.machine, replica.model.layer, replica.layout.ep
    out = rates.cluster.scale_out
    if out is None or layer is None:
        raise ConfigError(f"cluster {rates.cluster.name}: found EP{ep} beyond one NVLink domain and no [scale_out] network")
    domains = -(-ep // out.domain_gpus)
    nic = out.nic_GBps * out.nics_per_gpu * 1e3
    normal = tokens > LL_MOST_TOKENS
    rows = expected_copies(domains, experts // domains * domains, layer.topk) if normal else float(layer.topk)
    remote = most * tokens * rows * (domains - 1) / domains
    floor = float(ll_dispatch_us(rates.gpu, rates.constants, 0.0, layer.topk, sent, experts, ep)) + 2 * out.latency_us
    dispatch, combine = floor + remote * (sent + LL_HEADER_BYTES) / nic, floor + remote * back / nic
    return Exchanged(dispatch, combine, 6 if normal else 4, "deepep" if normal else "deepep-ll")
