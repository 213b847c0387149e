"""Closed-form traffic of one Routing: payload bytes per operator, link direction and GPU.

No function here uses `pairs`, because these counts check Programs that are built from `pairs`.
"""

from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np

from dysharp.base import I64, Bools, entry_of
from dysharp.workload.routing import Routing, needed_gpus, rows_by_source


class Direction(TypedDict):
    """Payload bytes of one operator. `up`: GPU to switch. `down`: switch to GPU. Per GPU: [n_gpus] int64."""

    up: int
    down: int
    up_per_gpu: I64
    down_per_gpu: I64


class Traffic(TypedDict):
    """Payload bytes of Dispatch and Combine in one pass of a layer."""

    dispatch: Direction
    combine: Direction


Rows = tuple[I64, I64]
"""Token rows that Dispatch sends up and down, each `[n_gpus]` int64."""

Scheme = str | Callable[[Routing, Any], Rows]
"""A name of `SCHEMES`, or a function of the Routing and a system's Options (for capacities, chunks, degrees)."""


def one_copy_per_gpu(routing: Routing) -> Rows:
    """A token goes once to every distinct remote GPU (DeepEP)."""
    sent: I64 = _remote_needs(routing).sum(axis=1, dtype=np.int64)
    return sent.sum(axis=1), sent.sum(axis=0)


def one_copy_per_expert(routing: Routing) -> Rows:
    """A token goes once for every remote expert that it chose."""
    remote = rows_between(routing)
    np.fill_diagonal(remote, 0)
    return remote.sum(axis=1), remote.sum(axis=0)


def rows_between(routing: Routing) -> I64:
    """[source GPU, destination GPU] int64: rows per (token, expert)."""
    return np.asarray(rows_by_source(routing).reshape(routing.n_gpus, routing.n_gpus, -1).sum(axis=2))


def _multicast(routing: Routing) -> Rows:
    """A token with any remote GPU goes up once; the switch copies it to every remote GPU (DySHARP)."""
    needs = _remote_needs(routing)
    up = needs.any(axis=2).sum(axis=1, dtype=np.int64)
    return up, needs.sum(axis=(0, 1), dtype=np.int64)


def multicast_in_groups(routing: Routing, options: Any) -> Rows:
    """As `multicast`, to at most `options.fan_out` GPUs at once: a token goes up for each group of its GPUs, by number, that has a remote one."""
    needs = needed_gpus(routing)
    group = (np.cumsum(needs, axis=1) - 1) // options.fan_out
    remote = _remote_needs(routing).reshape(needs.shape)
    up = sum((remote & (group == i)).any(axis=1) for i in range(int(group.max(initial=0)) + 1))
    return np.reshape(up, (routing.n_gpus, -1)).sum(axis=1, dtype=np.int64), remote.sum(axis=0, dtype=np.int64)


def _allgather(routing: Routing) -> Rows:
    """Every token goes up once and down to every other GPU, needed or not (NVLS)."""
    up = np.full(routing.n_gpus, routing.tokens_per_gpu, dtype=np.int64)
    return up * (routing.n_gpus > 1), up * (routing.n_gpus - 1)


def _ring(routing: Routing) -> Rows:
    """Every token reaches all GPUs without multicast (ring AllGather).

    Each GPU sends and receives `tokens_per_gpu * (n_gpus - 1)` rows.
    """
    rows = np.full(routing.n_gpus, routing.tokens_per_gpu * (routing.n_gpus - 1), dtype=np.int64)
    return rows, rows


SCHEMES: dict[str, Callable[[Routing], Rows]] = {
    "one_copy_per_gpu": one_copy_per_gpu,
    "one_copy_per_expert": one_copy_per_expert,
    "multicast": _multicast,
    "allgather": _allgather,
    "ring": _ring,
    "none": lambda routing: (np.zeros(routing.n_gpus, dtype=np.int64), np.zeros(routing.n_gpus, dtype=np.int64)),
}


def scheme_name(scheme: Scheme) -> str:
    """The name for listings: a key of `SCHEMES`, or the name of the function."""
    return scheme if isinstance(scheme, str) else scheme.__name__


def scheme_rows(routing: Routing, scheme: Scheme, options: Any) -> Rows:
    """Token rows of Dispatch under one scheme. A scheme that is a function gets `options` as second argument.

    Raises ConfigError for an unknown name.
    """
    if not isinstance(scheme, str):
        return scheme(routing, options)
    return entry_of(scheme, SCHEMES, f"unknown traffic scheme {scheme!r}")(routing)


def traffic(routing: Routing, scheme: Scheme, row_bytes: int, options: Any = None) -> Traffic:
    """Payload bytes of Dispatch and Combine under one scheme. `row_bytes`: bytes of one token row.

    Combine mirrors Dispatch: a GPU sends as many rows as it received, and receives as many rows as it sent. A target on the source GPU uses no link.
    A layer whose operators move rows differently takes each from its own scheme (`LayerBuilder.build`). Raises ConfigError for an unknown scheme.
    """
    sent, received = scheme_rows(routing, scheme, options)
    sent_bytes, received_bytes = sent * row_bytes, received * row_bytes
    return Traffic(dispatch=_direction(sent_bytes, received_bytes), combine=_direction(received_bytes, sent_bytes))


def _direction(up: I64, down: I64) -> Direction:
    return Direction(up=int(up.sum()), down=int(down.sum()), up_per_gpu=up, down_per_gpu=down)


def _remote_needs(routing: Routing) -> Bools:
    """[source GPU, token of the source GPU, GPU] bool: whether the token needs the remote GPU."""
    needs = needed_gpus(routing).reshape(routing.n_gpus, routing.tokens_per_gpu, routing.n_gpus)
    gpu = np.arange(routing.n_gpus)
    needs[gpu, :, gpu] = False
    return needs
