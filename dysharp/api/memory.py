"""How much memory a point will take, estimated before anything large is made."""

from __future__ import annotations

import os
from dataclasses import replace

from dysharp.api.request import Request
from dysharp.errors import ConfigError
from dysharp.systems import System
from dysharp.units import GiB, MiB
from dysharp.workload import scheme_name

# Peak resident memory of planning, verifying, running and analysing, fitted to runs of six systems on L-8 with 1024 to 8192 tokens per GPU;
# a first estimate, meant to refuse runs that certainly do not fit.
BASE_BYTES = 300 * MiB  # interpreter, libraries, and compiling the kernels once
BYTES_PER_OP = 260
BYTES_PER_MEMBER = 55
BYTES_PER_ROW = 65  # a useful (token, expert) row, routing included


def estimate_bytes(system: System, r: Request) -> int:
    """Peak resident bytes of one run, from the closed form of its traffic scheme under uniform routing."""
    n_tokens = r.cluster.n_gpus * r.tokens
    n_rows = n_tokens * r.model.topk
    gpus = r.cluster.n_gpus
    # Distinct GPUs of a token if its experts were drawn GPU by GPU; real placements spread no wider.
    pairs = int(n_tokens * gpus * (1 - (1 - 1 / gpus) ** r.model.topk)) if gpus > 1 else n_tokens
    ops, members = {
        "one_copy_per_gpu": (2 * pairs, 2 * pairs),
        "one_copy_per_expert": (2 * n_rows, 2 * n_rows),
        "multicast": (2 * n_tokens, 2 * pairs),
        "allgather": (2 * n_tokens, 2 * n_tokens * gpus),
        "ring": (2 * n_tokens * gpus, 2 * n_tokens * gpus),
        "none": (0, 0),
    }.get(scheme_name(system.traffic), (2 * n_rows, 2 * n_rows))
    return BASE_BYTES + BYTES_PER_OP * ops + BYTES_PER_MEMBER * members + BYTES_PER_ROW * n_rows


def computer_bytes() -> int:
    """Physical memory of this computer; a huge number where the operating system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 62


def check_memory(system: System, r: Request) -> None:
    """Raise ConfigError when a run would need more memory than this computer has."""
    part = r if r.window is None else replace(r, tokens=r.window)
    needed, available = estimate_bytes(system, part), computer_bytes()
    if needed > available:
        raise ConfigError(
            f"{system.name}, {r.model.name}, {r.cluster.n_gpus} GPUs x {part.tokens} tokens: needs about {needed / GiB:.1f} GiB of memory, "
            f"this computer has {available / GiB:.1f} GiB; take fewer tokens or GPUs"
        )
