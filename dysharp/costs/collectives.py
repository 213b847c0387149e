"""NCCL collectives as rate forms: which algorithm and protocol NCCL's tuner takes, and how long the collective then runs.

A rate form describes the times of a library. It does not derive them from ops. Sizes are those of nccl-tests, and
collectives are out of place by default:

| collective | size |
|---|---|
| all-gather | gathered total |
| reduce-scatter | input total |
| all-reduce | buffer |
| alltoall | buffer per rank |

Two questions, two answers. `_choice` repeats NCCL's tuner, with its numbers. The other functions say how long the
chosen one takes. The tuner errs: it takes Simple on Blackwell from sizes at which LL is still faster.

| source | what |
|---|---|
| NCCL src/graph/tuning.cc | start and hop of each protocol, part of the rate, caps, efficiency of NVLS |
| NCCL src/graph/topo.h | GB/s of a ring on one link |
| NCCL src/graph/search.cc | channels of a ring graph |
| NCCL src/transport/nvls.cc, src/enqueue.cc | channels and chunks of NVLS |
| NCCL src/device/all_reduce.h, common_kernel.h, src/include/device.h | loads of NVLS under way (buffers that are not registered) |
| NCCL src/include/device.h, src/init.cc | chunks and slices of Simple, channels of an alltoall |
| nccl#1083, nccl#2140 | bytes of NVLS; from how many GPUs NCCL takes it |
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, I64, Bools, f64, frozen
from dysharp.costs.operators import Constants, arch_of, hbm_us, light_us
from dysharp.specs import Gpu, choice_int

KIB, MIB = 1 << 10, 1 << 20
STEPS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Passes around the ring. An all-reduce is a reduce-scatter and an all-gather."""


@frozen
class RingProtocol:
    """A protocol of a ring: start, hop over NVLink and over PCIe (which has no LL128) in us, and its part of the rate of plain stores (flags lie
    beside data)."""

    start_us: float
    hop_us: float
    part: float
    pcie_us: float = math.inf

    def tuned_us(self, gpu: Gpu) -> float:
        """The tuner's time of a hop."""
        return self.pcie_us if gpu.pcie else self.hop_us


LL, LL128, SIMPLE = RingProtocol(6.6, 0.6, 0.5, 1.0), RingProtocol(14.0, 1.9, 0.92), RingProtocol(8.4, 3.4, 1.0, 5.7)
PROTOCOLS = (LL, LL128, SIMPLE)
NET_STEPS_US = (2.7, 4.0, 14.0)
"""A step of each protocol's ring through the network between nodes."""
TREES = (RingProtocol(6.8, 0.6, 0.5, 1.0), RingProtocol(14.0, 1.25, 0.92), RingProtocol(8.4, 4.0, 1.0, 4.0))
"""Start and hop of each protocol's tree."""
TREE_NET_US = (5.0, 8.5, 14.0)
"""A step of each protocol's tree through the network between nodes."""
TREE_PART = (1 / 3.8, 0.92 * 7 / 9, 0.92)
"""Rate of a tree divided by that of a ring with plain stores; an all-reduce takes every link twice."""
NVLS = len(PROTOCOLS)
"""The choice after the protocols."""
NVLS_US = 25.0
"""Time of an NVLS all-reduce without its bytes, as the tuner takes it."""
NVLS_PART = {"hopper": 0.85, "blackwell": 0.74}
"""Rate of NVLS divided by the rate of a ring."""
NVLS_CHANNELS = {"hopper": 16, "blackwell": 32}
NVLS_HEADS = 32
"""Most GPUs between which one channel of NVLS deals its chunks."""
NVLS_CHUNK = 128 * KIB
NVLS_CHUNKS = ((2 * 32 * KIB, 16 * KIB), (8 * 64 * KIB, 32 * KIB), (64 * 128 * KIB, 64 * KIB))
"""(bytes below which, for each chunk that is under way, NVLS takes smaller chunks; their bytes)."""
NVLS_STAGES = 2
"""A chunk of NVLS is brought, summed and taken. So a pipeline of chunks has two chunks to fill it."""
NVLS_WARPS = (6, 7, 5)
"""Warps of a channel that load and add: most GPUs with the first number, warps up to there, warps beyond."""
NVLS_LOAD = 32 * 8 * 16
"""Bytes that a warp asks for before it waits: eight loads of 16 B in each of its 32 threads."""
NVLS_FROM_GPUS = {"hopper": 5, "blackwell": 6}
"""Least number of GPUs for which all-reduce uses NVLS (nccl#2140)."""
RING_PART = {"ampere": 20.0 / 25, "hopper": 20.6 / 25, "blackwell": 40.1 / 50}
"""GB/s of a ring on one NVLink, divided by the datasheet value of the link."""
PCIE_PART = 12 / 15.75
"""The same of a slot (16 lanes of PCIe 3 at 8 GT/s with 128b/130b coding). Where rings pass host CPUs instead of PCIe switches they reach less: eight
RTX 5090 28 GB/s, four 35, of 63 (nccl#1639)."""
LL_GBPS = {"ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
"""The tuner's cap on LL."""
LL128_GBPS = {"ampere": 12 * 20.0, "hopper": 12 * 36.7, "blackwell": 8 * 40.0}
"""The tuner's cap on LL128: channels of the ring graph times GB/s per channel.

The graph search finds eight channels on Blackwell before it doubles them. With sixteen the tuner would take LL128 for all-gathers of 16 MiB on eight
B200; their measured time fits Simple. Eight was chosen after seeing this time.
"""
LINK_GBPS = {"ampere": 300.0, "hopper": 450.0, "blackwell": 900.0}
"""Links of the GPUs that have these caps. More links are more channels, so that the caps grow."""
SIMPLE_SLICES = 2
"""Parts of a chunk that go from GPU to GPU one behind the other."""
ALLTOALL_CHANNELS, ALLTOALL_CHUNK = 32, 512 * KIB
"""Channels that all peers of an alltoall share, and the bytes of which a channel makes one chunk."""
SYNC_GPUS = 8
"""The constant `ARCH.sync_us` is the time of a flag exchange between this number of GPUs."""
FLIGHT_US = {"ampere": 0.5, "ada": 1.0, "hopper": 0.5, "blackwell": 0.95, "cdna3": 0.5}
"""Time from GPU over the switch to another GPU: two hops (`link_latency_ps`) of the packaged clusters."""


def link_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """Time of `n_bytes` out of (or into) one GPU by SM stores to all peers, at the sustained part of the link rate."""
    return f64(n_bytes) / (1e3 * gpu.link_GBps * constants["link.fraction"])


def ring_us(gpu: Gpu, n_bytes: ArrayLike) -> F64:
    """Time of `n_bytes` out of (or into) one GPU to one neighbour of a ring, at NCCL's rate of the links."""
    return f64(n_bytes) / (1e3 * gpu.link_GBps * ring_part(gpu))


def ring_part(gpu: Gpu) -> float:
    """Rate of a ring over the links of a GPU, divided by their datasheet rate."""
    return PCIE_PART if gpu.pcie else RING_PART[_generation(gpu)]


def _generation(gpu: Gpu) -> str:
    """Of NCCL's tables, where Ampere has rows of its own."""
    return gpu.arch if gpu.arch in LL_GBPS else arch_of(gpu)


def sync_us(gpu: Gpu, constants: Constants, n_gpus: ArrayLike = SYNC_GPUS) -> F64:
    """One exchange of flags between `n_gpus`: store, flight, poll, fence, and mostly the wait for the last GPU.

    The arrivals of n GPUs scatter alike (launches, clocks, memory). The last of n normal arrivals comes about
    sqrt(2 ln n) standard deviations after the mean. The constant is the exchange between eight GPUs.
    """
    n = f64(n_gpus)
    return np.asarray(constants[f"{arch_of(gpu)}.sync_us"] * np.sqrt(np.log(n) / math.log(SYNC_GPUS)))


def flight_us(gpu: Gpu) -> float:
    """Time from GPU over the switch to another GPU."""
    return FLIGHT_US[arch_of(gpu)]


def round_trip_us(gpu: Gpu) -> float:
    """Time of a load from the memory of another GPU: there, `machine.responder_ns` in its memory, and back."""
    return 2 * flight_us(gpu) + choice_int("machine.responder_ns") / 1e3


def collective_us(
    gpu: Gpu, constants: Constants, kind: str, n_gpus: ArrayLike, n_bytes: ArrayLike, *, nvls: bool | None = None, in_place: bool = False
) -> F64:
    """Time in microseconds of a collective over `n_gpus` of one NVLink domain.

    `kind`: "all_gather", "reduce_scatter", "all_reduce" or "alltoall". `nvls`: True allows the in-switch form of
    all-reduce for any number of GPUs, False forbids it, None lets the number of GPUs decide, as NCCL does.
    `in_place`: the GPU does not copy its own chunk.
    """
    n, size = np.broadcast_arrays(f64(n_gpus), f64(n_bytes))
    if kind == "alltoall":
        return alltoall_start_us(gpu, constants, size, size / n) + link_us(gpu, constants, size * (n - 1) / n)
    own = 0.0 if in_place else constants["nccl.self_copy"]
    times = [_ring_us(gpu, constants, protocol, STEPS[kind], n, size, own) for protocol in PROTOCOLS]
    may = kind == "all_reduce" and nvls is not False
    if may:
        # Each direction carries S(1 + 1/n) bytes: one multicast down, one reduced pull up (nccl#1083). The channels work on chunks round by round,
        # and small messages have small chunks. All GPUs exchange flags once a round.
        block, fill_us = nvls_rounds(gpu, constants, n, size)
        times.append(np.asarray(SIMPLE.start_us + (size / block + NVLS_STAGES) * fill_us / NVLS_STAGES))
    chosen = ring_protocol(gpu, STEPS[kind], n, size, in_switch=in_switch(gpu, n, nvls if may else False))
    return np.asarray(np.choose(chosen, times))


def ring_protocol(gpu: Gpu, passes: int, n_gpus: ArrayLike, n_bytes: ArrayLike, *, in_switch: ArrayLike = False) -> I64:
    """Index into `PROTOCOLS` of the protocol that NCCL's tuner takes, or `NVLS` where `in_switch` allows that.

    `passes`: around the ring (`STEPS`).
    """
    arch = arch_of(gpu)
    n, size = np.broadcast_arrays(f64(n_gpus), f64(n_bytes))
    moved, hops = passes * size * (n - 1) / n, passes * (n - 1)
    ring = gpu.link_GBps * ring_part(gpu)
    own, more = _generation(gpu), max(1.0, gpu.link_GBps / LINK_GBPS.get(gpu.arch, gpu.link_GBps))
    rates = min(more * LL_GBPS[own], LL.part * ring), min(more * LL128_GBPS[own], LL128.part * ring), ring
    taken = [p.start_us + p.tuned_us(gpu) * hops + moved / (1e3 * rate) for p, rate in zip(PROTOCOLS, rates, strict=True)]
    channels = NVLS_CHANNELS[arch]
    nvls = NVLS_US + size / (1e3 * ring * NVLS_PART[arch] * (channels - 1) / channels)
    return np.asarray(np.argmin([*taken, np.where(in_switch, nvls, np.inf)], axis=0))


def in_switch(gpu: Gpu, n_gpus: ArrayLike, nvls: bool | None) -> Bools:
    """Whether NCCL may run an all-reduce in the switch. `nvls`: on, off, or by the number of GPUs (None)."""
    n = f64(n_gpus)
    nvls = nvls if gpu.multicasts else False
    return np.full(n.shape, nvls) if nvls is not None else np.asarray(n >= NVLS_FROM_GPUS[arch_of(gpu)])


def _ring_us(gpu: Gpu, c: Constants, protocol: RingProtocol, passes: int, n: F64, size: F64, own: float) -> F64:
    """Time of a ring. The channels of the ring also copy (or reduce) the own chunk, which crosses no link.

    Simple hands slices on behind a fence and a flag, `nccl.simple_syncs` flag exchanges between two GPUs later. With
    little data a hop is that exchange and the bytes of one slice; the other slices hide behind the exchange. With much
    data all slices follow each other, and the tuner's time of a hop remains.
    """
    moved, copied, hops = ring_us(gpu, passes * size * (n - 1) / n), ring_us(gpu, own * size / n), passes * (n - 1)
    streamed = hop_us(gpu, protocol) * hops + moved / protocol.part
    if protocol is SIMPLE:
        exchange = c["nccl.simple_syncs"] * sync_us(gpu, c, 2)
        streamed = np.maximum(streamed, exchange * hops + moved / SIMPLE_SLICES)
    return start_us(gpu, c, protocol) + streamed + copied / protocol.part


def start_us(gpu: Gpu, constants: Constants, protocol: RingProtocol) -> float:
    """Start of a ring. LL starts later on two dies, as a light kernel does; others hide behind flag exchanges, a constant of each architecture."""
    return protocol.start_us * (light_us(gpu, constants) / constants["attention.light_us"] if gpu.arch == "blackwell" and protocol is LL else 1.0)


def rail_rings_us(gpu: Gpu, c: Constants, domain_gpus: int, domains: int, nic_GBps: float, n_bytes: float) -> tuple[float, float, float]:
    """An all-gather or reduce-scatter of `n_bytes` in total by a ring per rail over several NVLink domains, each GPU with its NIC.

    Returns (us without the bytes, us of the bytes on a NIC, the part of the rate) for the fastest protocol.
    """
    gpus = domain_gpus * domains
    moved, copied = n_bytes / domain_gpus * (gpus - 1) / gpus, float(ring_us(gpu, c["nccl.self_copy"] * n_bytes / gpus))
    ways = []
    for protocol, step_us in zip(PROTOCOLS, NET_STEPS_US, strict=True):
        steps = hop_us(gpu, protocol) * (gpus - domains) + step_us * (domains - 1)
        ways.append((start_us(gpu, c, protocol) + steps + copied / protocol.part, moved / (1e3 * nic_GBps * protocol.part), protocol.part))
    return min(ways, key=lambda way: way[0] + way[1])


def ring_tuned_us(gpu: Gpu, domain_gpus: int, domains: int, n_bytes: float, nic_GBps: float) -> tuple[int, float]:
    """As `tree_protocol`, among rings of an all-reduce over several domains."""
    gpus, rate = domain_gpus * domains, min(gpu.link_GBps * ring_part(gpu), nic_GBps * domain_gpus)
    ways = zip(PROTOCOLS, NET_STEPS_US, strict=True)
    times = [
        p.start_us + 2 * ((gpus - domains) * p.tuned_us(gpu) + (domains - 1) * net) + 2 * n_bytes * (gpus - 1) / gpus / (1e3 * rate * p.part)
        for p, net in ways
    ]
    best = int(np.argmin(times))
    return best, times[best]


def tree_protocol(gpu: Gpu, domain_gpus: int, domains: int, n_bytes: float, nic_GBps: float) -> tuple[int, float]:
    """(index of the protocol that NCCL's tuner takes among trees of an all-reduce, the time in us that the tuner expects).

    `nic_GBps`: rate of the NICs of one GPU, each of which has its tree.
    """
    ring = gpu.link_GBps * ring_part(gpu)
    rate = min(ring, nic_GBps * domain_gpus) if domains > 1 else ring
    hops, steps = 2 * (domain_gpus - 1), 2 * int(math.log2(domains))
    ways = zip(TREES, TREE_NET_US, TREE_PART, strict=True)
    times = [p.start_us + hops * p.tuned_us(gpu) + steps * net + 2 * n_bytes / (1e3 * rate * part) for p, net, part in ways]
    best = int(np.argmin(times))
    return best, times[best]


def hop_us(gpu: Gpu, protocol: RingProtocol) -> float:
    """The tuner has one time of a hop for all machines. Where the flight is longer than Hopper's, the hop is longer."""
    return protocol.tuned_us(gpu) + flight_us(gpu) - FLIGHT_US["hopper"]


def nvls_rounds(gpu: Gpu, c: Constants, n_gpus: ArrayLike, n_bytes: ArrayLike) -> tuple[F64, F64]:
    """(bytes of the vector that all channels of NVLS take in one round, us of the rounds that fill and drain the pipeline)."""
    n, size = f64(n_gpus), f64(n_bytes)
    at_once = NVLS_CHANNELS[arch_of(gpu)] * np.minimum(n, NVLS_HEADS)
    chunk = np.select([size < most * at_once for most, _ in NVLS_CHUNKS], [chunk for _, chunk in NVLS_CHUNKS], NVLS_CHUNK)
    round_us = sync_us(gpu, c, n) + ring_us(gpu, chunk * at_once * (1 + 1 / n)) / NVLS_PART[arch_of(gpu)]
    return chunk * at_once, np.asarray(NVLS_STAGES * round_us)


def nvls_loads(gpu: Gpu, n_gpus: int) -> int:
    """Bytes of sums that a GPU of NVLS has asked for and not got: its threads wait for their loads before they store and load again."""
    most, few, many = NVLS_WARPS
    return NVLS_CHANNELS[arch_of(gpu)] * (few if n_gpus <= most else many) * NVLS_LOAD


def alltoall_start_us(gpu: Gpu, constants: Constants, sent_bytes: ArrayLike, own_bytes: ArrayLike) -> F64:
    """Time of an alltoall in which no link is busy. `sent_bytes`: of the buffer; `own_bytes`: its part that stays."""
    last = np.minimum(f64(sent_bytes) / ALLTOALL_CHANNELS, ALLTOALL_CHUNK) / (1e3 * constants["sm.copy_GBps"])
    return np.asarray(SIMPLE.start_us + hop_us(gpu, SIMPLE) + hbm_us(gpu, constants, 2 * f64(own_bytes)) + last)
