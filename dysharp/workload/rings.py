"""Rings over several NVLink domains, one per rail, as NCCL makes them for all-gathers and reduce-scatters."""

import numpy as np

from dysharp.arrays import I64
from dysharp.errors import ConfigError


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
