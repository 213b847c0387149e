"""Dispatch and Combine of one MoE layer under a named system, in microseconds: one statement for serving, training steps and plans.

| system | rows of a token | time inside a domain |
|---|---|---|
| deepep, uccl | one per GPU; low latency: one per expert | DeepEP's kernels (`transfer`) |
| trtllm-a2a | one per GPU | TensorRT-LLM's one-sided kernels |
| hybrid-ep | one per GPU | links and one exchange of flags |
| alltoall | one per expert | NCCL's alltoall |
| flat, dedup | one per expert; between domains one per expert, or one per domain | links alone |
| hierarchical | an all-gather between domains, where tensor ranks fill a domain (Pangu Ultra, MindSpeed) | links alone |

Rows between domains pass NICs while others pass links. Where hosts post messages (EFA; `uccl` has its own proxies), a post per row comes behind. What
differs between callers is an argument; the regime of the machine decides waits, and whether a call over domains has its fixed time beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

from dysharp.base import frozen
from dysharp.costs.collectives import collective_us, flight_us, link_us, sync_us
from dysharp.costs.machine import Machine
from dysharp.costs.operators import Constants
from dysharp.costs.transfer import (
    LL_HEADER_BYTES,
    alltoall_one_sided_us,
    deepep_combine_us,
    deepep_dispatch_us,
    ll_combine_us,
    ll_dispatch_us,
    notify_us,
)  # fmt: skip
from dysharp.specs import Gpu, Model
from dysharp.workload import expected_copies

NORMAL_SMS = 20
"""SMs of DeepEP's normal kernels unless set (Buffer.num_sms)."""
FREE, IN_SWITCH, HUB = "free", "in-switch", "moe-hub"
BOUNDS = (FREE, IN_SWITCH, HUB)
"""What nobody sells, as lower bounds: no communication at all; switches that copy and sum rows; a hub in the GPU that moves rows."""


@frozen
class Peers:
    """GPUs that exchange rows: `ep` groups of experts, each on `etp` GPUs that are reached together; `stride` ranks from one group to the next.

    `tp`: ranks that share the tokens of a group ("hierarchical"). `slots`: expert slots beyond the model's experts.
    """

    ep: int
    etp: int = 1
    stride: int = 1
    tp: int = 1
    slots: int = 0

    def copies(self, layer: Model, parts: int) -> float:
        """Mean distinct parts (GPUs, domains) of a token. Spare slots hold copies of any expert, but in the domain of its group (EPLB)."""
        if self.slots and parts == self.ep:
            return expected_copies(parts, layer.n_experts + self.slots, layer.topk)
        return expected_copies(parts, layer.n_experts, layer.topk, layer.n_group, layer.topk_group)


@frozen
class Rows:
    """`tokens` that a GPU sends, bytes of a row on its way to experts and back, and rows of the busiest GPU over the mean."""

    tokens: float
    sent: float
    back: float
    busiest: float = 1.0


@frozen
class ExchangeTimes:
    """Microseconds of one Dispatch and one Combine, of what a forward pass exchanges before it knows its counts, and of the wait for the last rank,
    which `dispatch` and `combine` leave out. `received`: rows that a GPU receives per own token, before the copies per expert. `kernels`: of both;
    0 where their host counts operations itself. `nics`: of both, while a GPU's NICs pass rows.
    """

    dispatch: float
    combine: float
    received: float
    maps: float = 0.0
    wait: float = 0.0
    kernels: int = 0
    system: str = ""
    nics: float = 0.0


def exchange(
    machine: Machine, layer: Model, peers: Peers, rows: Rows, system: str, *, sms: int = NORMAL_SMS, low_latency: float = 0.0
) -> ExchangeTimes:
    """One exchange under a system of the table above.

    `sms`: of DeepEP's normal kernels. `low_latency`: tokens of a GPU up to which DeepEP's low-latency kernels run. Between domains TensorRT-LLM has
    no kernels, and DeepEP's run.
    """
    if system in SCHEMES:
        dispatch, combine = (SCHEMES[system](machine, layer, peers, rows.busiest * rows.tokens * row) for row in (rows.sent, rows.back))
        return ExchangeTimes(dispatch, combine, float(layer.topk), system=system)
    if peers.ep == 1:
        return ExchangeTimes(0.0, 0.0, float(layer.topk), system=system)
    far = peers.ep * peers.stride > machine.domain
    if far and system == "trtllm-a2a":
        system = "deepep"
    if system == "deepep" and rows.tokens <= low_latency:
        system = "deepep-ll"
    one = _Moved(machine, layer, peers, rows.busiest * rows.tokens, system, sms)
    dispatch, combine = (one.far(row, back) if one.domains > 1 else one.near(row, back) for row, back in ((rows.sent, False), (rows.back, True)))
    maps = _maps(machine, peers, rows.tokens * layer.n_experts * peers.ep) if system == "hybrid-ep" else 0.0
    nics = one.remote * (rows.sent + rows.back) / machine.nic
    return ExchangeTimes(dispatch, combine, one.copies, maps, machine.wait, KERNELS.get(system, 0), system, nics)


KERNELS = {"deepep": 6, "uccl": 6, "trtllm-a2a": 6, "deepep-ll": 4}
"""Kernels of Dispatch and Combine together."""
PROXIES = {"alltoall": "alltoall", "uccl": "uccl"}
"""System -> whose proxies post its messages where GPUs cannot; the others have those of NVSHMEM, as DeepEP. Alltoall sends a message to each peer,
the others one for each row."""
PER_EXPERT = ("alltoall", "deepep-ll")


class ExchangeWay(NamedTuple):
    """One way of an exchange inside a domain. `copies`: GPUs that a token reaches; `row`: bytes; `sms`: of DeepEP's normal kernels."""

    gpus: int
    experts: int
    topk: int
    tokens: float
    copies: float
    row: float
    back: bool
    sms: int = NORMAL_SMS


def kernel_us(gpu: Gpu, constants: Constants, system: str, way: ExchangeWay) -> float:
    """Dispatch or Combine by the kernels of TensorRT-LLM (one-sided) or DeepEP, in microseconds."""
    if system == "trtllm-a2a":
        return float(alltoall_one_sided_us(gpu, constants, way.tokens, way.copies, way.row, way.gpus, reads=way.back))
    if system == "deepep-ll":
        low = ll_combine_us if way.back else ll_dispatch_us
        return float(low(gpu, constants, way.tokens, way.topk, way.row, way.experts, way.gpus))
    normal = deepep_combine_us if way.back else deepep_dispatch_us
    return float(normal(gpu, constants, way.tokens, way.copies, way.row, way.sms, way.gpus))


@dataclass(frozen=True)
class _Moved:
    """Rows of `tokens` tokens of each GPU under a system with kernels."""

    machine: Machine
    layer: Model
    peers: Peers
    tokens: float
    system: str
    sms: int

    @cached_property
    def inside(self) -> int:
        """GPUs of the group in one domain."""
        return max(1, min(self.peers.ep, self.machine.domain // self.peers.stride))

    @cached_property
    def domains(self) -> int:
        """Domains of the group."""
        return -(-self.peers.ep // self.inside)

    @cached_property
    def copies(self) -> float:
        """Rows of a token that GPUs get."""
        return self.rows(self.peers.ep)

    def rows(self, parts: int) -> float:
        """Rows of a token to `parts` parts."""
        return float(self.layer.topk) if self.system in PER_EXPERT else self.peers.copies(self.layer, parts)

    @cached_property
    def remote(self) -> float:
        """Rows to other domains."""
        return self.tokens * self.rows(self.domains) * (self.domains - 1) / self.domains

    def near(self, row: float, back: bool) -> float:
        """One way inside a domain."""
        if not self.machine.cluster.gpu or self.system in ("alltoall", "hybrid-ep"):
            return self.links(row)
        experts = self.layer.n_experts + self.peers.slots
        way = ExchangeWay(self.peers.ep, experts, self.layer.topk, self.tokens, self.copies, row, back, self.sms)
        return kernel_us(self.machine.gpu, self.machine.constants, self.system, way)

    def links(self, row: float) -> float:
        """Rows on the links of one of the domains."""
        machine, n = self.machine, self.inside
        moved = self.tokens * self.copies * row
        if n == 1:
            return 0.0
        if not machine.cluster.gpu:
            return moved * (n - 1) / n / self.domains / machine.link
        if self.system == "alltoall":
            return float(collective_us(machine.gpu, machine.constants, "alltoall", n, moved / self.domains))
        return float(link_us(machine.gpu, machine.constants, moved * (n - 1) / n) + sync_us(machine.gpu, machine.constants, n))

    def far(self, row: float, back: bool) -> float:
        """One way between domains: NICs and links at once. Low-latency messages pass NICs alone, behind the floor of their kernels in a domain and a
        put with its flag between domains.
        """
        machine, remote = self.machine, self.remote
        if self.system == "deepep-ll":
            experts = self.layer.n_experts + self.peers.slots
            floor = float(ll_dispatch_us(machine.gpu, machine.constants, 0.0, self.layer.topk, row, experts, self.peers.ep)) + 2 * machine.hop
            return floor + max(remote * (row if back else row + LL_HEADER_BYTES) / machine.straight, machine.posted(remote))
        messages = self.peers.ep - self.inside if self.system == "alltoall" else remote
        posted = machine.posted(messages, PROXIES.get(self.system, "deepep"))
        return max(self.links(row), remote * row / machine.nic + machine.hop) + posted + self._call(back)

    def _call(self, back: bool) -> float:
        """Fixed time of DeepEP's normal kernels between domains and of their notify, as its Program has them. A training step has it in its waits."""
        if self.system != "deepep" or self.machine.regime.name != "serving" or not self.machine.cluster.gpu:
            return 0.0
        constants, doublings = self.machine.constants, (self.domains - 1).bit_length()
        return float(notify_us(constants, doublings)) + constants["internode.combine_us" if back else "internode.dispatch_us"]


def _maps(machine: Machine, peers: Peers, n_bytes: float) -> float:
    """The all-gather of routing maps, a byte per token and expert of the group, and the kernel that reads them (DeepEP, hybrid_ep_buffer.py)."""
    far = 0.0 if peers.ep * peers.stride <= machine.domain else machine.hop
    return machine.memory(n_bytes) + machine.group(n_bytes, peers.ep, peers.stride) + far


# Schemes: bytes on links and NICs. `moved`: bytes of a row of each token of a GPU.


def _spread(machine: Machine, peers: Peers) -> tuple[int, int, int, float]:
    """(GPUs, those of one domain, domains, microseconds until the first byte)."""
    size = peers.ep * peers.etp
    domains = ceil(size / machine.domain)
    return size, min(size, machine.domain), domains, 2 * machine.cluster.link_latency_ps / 1e6 + (machine.hop if domains > 1 else 0.0)


def _flat(machine: Machine, layer: Model, peers: Peers, moved: float) -> float:
    size, inside, domains, start = _spread(machine, peers)
    if size == 1:
        return 0.0
    return start + moved * layer.topk * peers.etp * max((domains - 1) / domains / machine.straight, (inside - 1) / size / machine.link)


def _hierarchical(machine: Machine, layer: Model, peers: Peers, moved: float) -> float:
    """Ranks with one tensor index gather their tokens, then rows change places among tensor ranks (MindSpeed)."""
    size, inside, _, start = _spread(machine, peers)
    if size == 1:
        return 0.0
    inner = min(peers.tp, inside)
    near = inside // inner
    behind = near - 1 + layer.topk * peers.etp * (inner - 1) / inner
    return start + moved * (size // inner - near) / machine.nic + moved * behind / machine.link


def _dedup(machine: Machine, layer: Model, peers: Peers, moved: float) -> float:
    size, inside, domains, start = _spread(machine, peers)
    if size == 1:
        return 0.0
    far = peers.copies(layer, domains) * (domains - 1) / domains / machine.nic
    reached = peers.copies(layer, peers.ep) / peers.ep
    return start + moved * max(far, domains * (inside - 1) * reached / machine.link)


Scheme = Callable[[Machine, Model, Peers, float], float]
SCHEMES: dict[str, Scheme] = {"flat": _flat, "hierarchical": _hierarchical, "dedup": _dedup}


def least_us(machine: Machine, layer: Model, peers: Peers, rows: Rows, system: str, beside: float) -> float:
    """Least time of Dispatch and Combine with the hardware of `BOUNDS`, of which `beside` microseconds of experts hide all but the flights.

    No software, one flight in and one out, both directions at once, and rows move while experts compute. A hub sends a row to each of R remote
    GPUs and gets R rows back. A DySHARP switch takes one copy and makes R of it, and sums R rows into one: a link carries R + 1 rows in its busier
    direction, not 2 R. Between domains NICs carry a row per domain each way beside the links. Ranks that share an expert are reached together.
    """
    size, _, domains, start = _spread(machine, peers)
    if size == 1 or system == FREE:
        return 0.0
    sent, back = (rows.busiest * rows.tokens * row for row in (rows.sent, rows.back))
    copies = peers.copies(layer, peers.ep) * peers.etp * (size - 1) / size
    moved = max(sent + copies * back, copies * sent + back) if system == IN_SWITCH else copies * (sent + back)
    links = float(link_us(machine.gpu, machine.constants, moved)) if machine.cluster.gpu else moved / machine.link
    nics = peers.copies(layer, domains) * (domains - 1) / domains * (sent + back) / machine.nic
    flights = 2 * flight_us(machine.gpu) + (2 * machine.hop if domains > 1 else 0.0) if machine.cluster.gpu else 2 * start
    return flights + max(0.0, max(links, nics) - beside)
