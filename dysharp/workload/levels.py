"""Closed-form traffic over several NVLink domains: token rows by network. Like `traffic`, nothing here uses `pairs`.

| scheme | NVLink | NICs |
|---|---|---|
| two_hop | from the GPU that has the row to each GPU of its domain that needs it | once per remote domain, to the GPU with the source's index |
| direct | a row per expert of the own domain | a row per expert of other domains, straight to its GPU |
| nic_only | - | a row per expert of every other GPU |
| by_rail | as direct, and once from the source to the GPU of its domain with the index of the receiver | as direct, between GPUs of one index |
| ring | a row per token over every link of a ring, but the one into the source (`rings.rail_rings`) | likewise |
| dysharp | up once per domain, down as in two_hop | out once, in once per remote domain |
| allgather | as dysharp, where every GPU needs every token | likewise |
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dysharp.base import I64, Bools, ConfigError
from dysharp.workload.routing import Routing, needed_gpus
from dysharp.workload.traffic import Rows, rows_between


class Levels(NamedTuple):
    """Token rows that Dispatch sends in each network: (out, in), each `[n_gpus]` int64. Combine mirrors both.

    `near`: between GPUs of a domain. `far`: between domains.
    """

    near: Rows
    far: Rows


def two_hop(routing: Routing, domain_gpus: int) -> Levels:
    """One row per distinct remote domain by NIC, then one per distinct GPU by NVLink."""
    needs, far = _needs(routing, domain_gpus)
    source = np.arange(routing.n_gpus)
    index = source % domain_gpus
    up, down, out, into = np.zeros((4, routing.n_gpus), np.int64)
    for s in source:
        tokens = needs[s]  # [tokens, domains, GPUs of a domain]
        remote = far[s].sum(axis=0)
        out[s] = remote.sum()
        relays = np.arange(routing.n_gpus // domain_gpus) * domain_gpus + index[s]
        into[relays] += remote
        copies = tokens.sum(axis=0, dtype=np.int64)
        copies[:, index[s]] = 0  # the relay has the row
        down += copies.ravel()
        up[relays] += copies.sum(axis=1)
    return Levels((up, down), (out, into))


def switch_multicast(routing: Routing, domain_gpus: int) -> Levels:
    """The rail's switch multicasts to remote domains, then each domain's NVSwitch to its GPUs."""
    (_, down), (_, into) = two_hop(routing, domain_gpus)
    needs, far = _needs(routing, domain_gpus)
    up = np.zeros(routing.n_gpus, np.int64)
    out = far.any(axis=2).sum(axis=1, dtype=np.int64)
    for s in range(routing.n_gpus):
        others = needs[s].copy()
        others[:, :, s % domain_gpus] = False
        relays = np.arange(routing.n_gpus // domain_gpus) * domain_gpus + s % domain_gpus
        up[relays] += others.any(axis=2).sum(axis=0)
    return Levels((up, down), (out, into))


def _direct(routing: Routing, domain_gpus: int) -> Levels:
    """One row per expert, to its GPU: by NVLink inside the domain, by NIC to other domains."""
    near, far = _per_expert(routing, domain_gpus)
    return Levels((near.sum(axis=1), near.sum(axis=0)), (far.sum(axis=1), far.sum(axis=0)))


def _nic_only(routing: Routing, domain_gpus: int) -> Levels:
    """One row per expert of another GPU, by NIC, in the own domain too."""
    (near_out, near_in), (far_out, far_in) = _direct(routing, domain_gpus)
    nothing = np.zeros(routing.n_gpus, np.int64)
    return Levels((nothing, nothing), (near_out + far_out, near_in + far_in))


def _by_rail(routing: Routing, domain_gpus: int) -> Levels:
    """As `direct`, but rows leave a domain at the GPU with the index of their receiver (NCCL's PXN)."""
    return rail_rows(*_per_expert(routing, domain_gpus), domain_gpus)


def rail_rows(near: I64, far: I64, domain_gpus: int) -> Levels:
    """The rows of `by_rail` from `[sender, receiver]` rows inside a domain and between domains."""
    source, receiver = np.arange(len(far))[:, None], np.arange(len(far))[None, :]
    leaves = np.broadcast_to(source - source % domain_gpus + receiver % domain_gpus, far.shape)
    hop = np.zeros_like(far)
    np.add.at(hop, (np.broadcast_to(source, far.shape), leaves), far)
    out = hop.sum(axis=0)
    np.fill_diagonal(hop, 0)
    near = near + hop
    return Levels((near.sum(axis=1), near.sum(axis=0)), (out, far.sum(axis=0)))


def _ring(routing: Routing, domain_gpus: int) -> Levels:
    """All-gather by rings: token t of a GPU goes once around ring t mod D."""
    n = routing.n_gpus
    rings = rail_rings(n, domain_gpus)
    tokens = np.bincount(np.arange(routing.tokens_per_gpu) % domain_gpus, minlength=domain_gpus)
    out, into = np.zeros((2, 2, n), np.int64)  # [network, GPU]
    for gpus, own in zip(rings, tokens.tolist(), strict=True):
        behind = np.roll(gpus, -1)
        net = (gpus // domain_gpus != behind // domain_gpus).astype(np.int64)
        np.add.at(out, (net, gpus), own * (n - 1))
        np.add.at(into, (net, behind), own * (n - 1))
    return Levels((out[0], into[0]), (out[1], into[1]))


def _allgather(routing: Routing, domain_gpus: int) -> Levels:
    """Every token once to every domain and once into the links of each, needed or not (NVLS with sums in the scale-out network)."""
    n, tokens = routing.n_gpus // domain_gpus, np.full(routing.n_gpus, routing.tokens_per_gpu, np.int64)
    return Levels((n * tokens * (domain_gpus > 1), n * (domain_gpus - 1) * tokens), (tokens * (n > 1), (n - 1) * tokens))


LEVELS: dict[str, Callable[[Routing, int], Levels]] = {
    "two_hop": two_hop, "direct": _direct, "nic_only": _nic_only, "by_rail": _by_rail, "ring": _ring, "dysharp": switch_multicast,
    "allgather": _allgather,
}  # fmt: skip


def between_rails(routing: Routing, domain_gpus: int, scheme: str) -> Rows:
    """Rows of `scheme` in NICs that pass the spine, because their two GPUs have different indices in their domains."""
    near, far = _per_expert(routing, domain_gpus)
    index = np.arange(routing.n_gpus) % domain_gpus
    sent = {"direct": far, "nic_only": near + far}.get(scheme, np.zeros_like(far))
    across = np.where(index[:, None] != index[None, :], sent, 0)
    return across.sum(axis=1), across.sum(axis=0)


def _needs(routing: Routing, domain_gpus: int) -> tuple[Bools, Bools]:
    """[source, token, domain, GPU of the domain] whether the GPU needs the token; [source, token, domain] remote domains."""
    n = routing.n_gpus
    needs = needed_gpus(routing).reshape(n, routing.tokens_per_gpu, n // domain_gpus, domain_gpus)
    far: Bools = np.asarray(needs.any(axis=3))
    source = np.arange(n)
    far[source, :, source // domain_gpus] = False
    return needs, far


def _per_expert(routing: Routing, domain_gpus: int) -> tuple[I64, I64]:
    """[source, receiver] rows per (token, expert): inside a domain (own GPU excluded), and between domains."""
    return by_domain(rows_between(routing), domain_gpus)


def by_domain(rows: I64, domain_gpus: int) -> tuple[I64, I64]:
    """`[sender, receiver]` rows inside a domain (own GPU excluded), and between domains."""
    domain = np.arange(len(rows)) // domain_gpus
    near = domain[:, None] == domain[None, :]
    inside = np.where(near, rows, 0)
    np.fill_diagonal(inside, 0)
    return inside, np.where(near, 0, rows)


def rail_rings(n_gpus: int, domain_gpus: int) -> I64:
    """`[rings, n_gpus]` GPUs of every ring in the order in which it passes them.

    There are as many rings as GPUs in a domain. A ring passes all GPUs of a domain by NVLink, then leaves along the rail of the
    last one. So one ring enters and one ring leaves by the NICs of each GPU. Raises ConfigError where no ring comes back to the
    rail on which it began: an odd number of domains of two GPUs.
    """
    n, size = n_gpus // domain_gpus, domain_gpus
    entry = np.arange(size)
    parts = []
    for domain, shift in enumerate(_shifts(n, size)):
        leave = (entry + shift) % size
        between = (entry[:, None] + np.arange(1, size)) % size
        between = between[between != leave[:, None]].reshape(size, max(0, size - 2))
        inside = np.column_stack((entry, between, leave)) if size > 1 else entry[:, None]
        parts.append(domain * size + inside)
        entry = leave
    return np.hstack(parts).astype(np.int64)


def _shifts(n: int, size: int) -> list[int]:
    """Distances from the index at which a ring enters each domain to the index at which it leaves; the sum is a multiple of `size`."""
    if size == 1 or n == 1:
        return [-1] * n if n == 1 else [0] * n
    if n % 2 == 0:
        return [-1, 1] * (n // 2)
    if size == 2:
        raise ConfigError(f"rings: found {n} NVLink domains of 2 GPUs, expected an even number of domains, or more GPUs in each")
    return [-1, 1] * ((n - 3) // 2) + [-1, -1, 2]
