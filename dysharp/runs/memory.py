"""How much memory a point will take, estimated before anything large is made, and how much this process may take."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from dysharp.base import ConfigError, GiB, OverShare, physical_bytes
from dysharp.runs.known import PART
from dysharp.runs.request import Request
from dysharp.systems import System
from dysharp.workload import make_routing

# Peak resident memory of planning, verifying, running and analysing, fitted to runs of paper forms and real forms with 8192 to 262144 tokens.
BASE_BYTES = 170_000_000  # interpreter, libraries, compiled kernels
PACKET_BYTES = 50_000_000  # packet level: its kernels and the packets in flight
BYTES_PER_OP = 160
BYTES_PER_MEMBER = 100
BYTES_PER_EDGE = 95
BYTES_PER_ROW = 100  # a region row, its part of the routing included
SAMPLE = 32
"""Tokens per GPU of the larger of the two Programs that are counted. Tables grow by equal parts with every token."""

# No Program needs more. A run that fits with these needs no sample.
MOST_BYTES_PER_ROW = 10_000  # for each (token, expert) row
MOST_BYTES_PER_PAIR = 2_000  # for each pair of a token and a GPU


def estimate_bytes(system: System, r: Request, options: Any) -> int:
    """Peak resident bytes of one run under uniform routing: the tables of its Program, counted for few tokens and scaled."""
    directions = ("fwd", "bwd") if r.direction == "both" else (r.direction,)
    return max(_of_program(system, r, variant, direction) for variant in gemm_variants(system, r, options) for direction in directions)


def gemm_variants(system: System, r: Request, options: Any) -> Sequence[Any]:
    """The options of the runs behind one Row: with `gemms=auto` on an hw cluster each GEMM variant runs."""
    if r.cluster.family == "hw" and system.costs.gemms and options.gemms == "auto":
        return [dataclasses.replace(options, gemms=word) for word in system.costs.gemms]
    return [options]


def _of_program(system: System, r: Request, options: Any, direction: str) -> int:
    base = BASE_BYTES + (PACKET_BYTES if r.fidelity == "packet" else 0)
    full = _table_bytes(system, r, options, direction, min(r.tokens, SAMPLE))
    if r.tokens <= SAMPLE:
        return base + full
    half = _table_bytes(system, r, options, direction, SAMPLE // 2)
    return base + full + (full - half) * (r.tokens - SAMPLE) // (SAMPLE - SAMPLE // 2)


def _table_bytes(system: System, r: Request, options: Any, direction: str, tokens: int) -> int:
    routing = make_routing("uniform", r.model, r.cluster.n_gpus, tokens, placement=r.placement)
    program = system.plan(r.model, r.cluster, routing, direction, options)
    per_edge = BYTES_PER_EDGE * len(program.edges.head)
    return BYTES_PER_OP * program.n_ops + BYTES_PER_MEMBER * program.n_members + per_edge + BYTES_PER_ROW * program.n_rows


def most_bytes(r: Request) -> int:
    """Bytes that no run of these sizes exceeds."""
    tokens = r.cluster.n_gpus * r.tokens
    return BASE_BYTES + MOST_BYTES_PER_ROW * tokens * r.model.topk + MOST_BYTES_PER_PAIR * tokens * r.cluster.n_gpus


def usable_bytes(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Memory that the processes of this container may use: the physical memory, or the smallest limit of its cgroups (version 1 or 2)."""
    return min([physical_bytes(), *_limits(cgroups, own)])


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    """The limits of the cgroup of this process and of all cgroups around it."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root, file = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        inside = Path(name.lstrip("/"))
        for group in (inside, *inside.parents):
            try:
                text = (root / group / file).read_text(encoding="ascii").strip()
            except (OSError, ValueError):  # in a container the path of the host does not exist
                continue
            if text.isdigit():  # "max" = no limit
                yield int(text)


_part: ContextVar[float] = ContextVar("part", default=1.0)


@contextmanager
def within(part: float) -> Iterator[None]:
    """Runs inside this context may take this part of the memory only, because other processes run."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def check_memory(system: System, r: Request, options: Any) -> None:
    """Raise ConfigError when a run would need more memory than the computer has, OverShare when only this process's part is too small."""
    few = r.window or (r.precision and max(1, r.tokens // PART))  # `run_point` checks all tokens where these do not tell
    timed = dataclasses.replace(r, tokens=few) if few else r
    usable, part = usable_bytes(), _part.get()
    if most_bytes(timed) <= part * usable:
        return
    needed = estimate_bytes(system, timed, options)
    found = (
        f"{system.name}, {r.model.name}, {r.cluster.n_gpus} GPUs x {timed.tokens} tokens: needs about {needed / GiB:.1f} GiB of memory, "
        f"this computer has {usable / GiB:.1f} GiB"
    )
    if needed > usable:
        raise ConfigError(f"{found}; take fewer tokens, bytes or GPUs, or leave the system out")
    if needed > part * usable:
        why = f"{found}, {part * usable / GiB:.1f} GiB of it for this process; take fewer jobs (-j), tokens or GPUs"
        raise OverShare(why, min(1.0, needed / usable * (1 + 1e-9)))  # so that this part holds `needed` bytes after rounding
