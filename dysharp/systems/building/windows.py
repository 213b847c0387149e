"""Tokens in flight per source GPU, as the reduction tables of a Cluster allow them."""

from __future__ import annotations

from dysharp.program.constants import PACKET_BYTES, sessions_of_table
from dysharp.specs import Cluster, Model


def sessions_that_fit(model: Model, cluster: Cluster, aux_bytes: int = 0) -> int:
    """Number of tokens (at least 1) whose reduction sessions always fit the reduction tables of the source's ports.

    A token of n packets takes at most ceil(n / links) sessions in one port. `aux_bytes`: bytes summed with every row.
    """
    packets = -(-model.row_bytes // PACKET_BYTES) + -(-aux_bytes // PACKET_BYTES)
    per_port = -(-packets // cluster.links_per_gpu)
    return max(1, sessions_of_table(cluster) // per_port)


def windows(model: Model, cluster: Cluster, dispatch: int, combine: int, aux_bytes: int = 0) -> tuple[int, int]:
    """(dispatch, combine) windows in tokens in flight per source GPU. An argument of 0 means automatic.

    Automatic `combine`: the largest power of two of tokens whose sessions always fit. Automatic `dispatch`: half of
    `combine`.
    """
    combine = combine or 1 << (sessions_that_fit(model, cluster, aux_bytes).bit_length() - 1)
    return dispatch or max(1, combine // 2), combine
