"""`Pairs`: the distinct (token, destination GPU) pairs of a Routing, with the expert slots of every pair."""

import numpy as np

from dysharp.base import I32, frozen
from dysharp.workload.routing import Routing


@frozen
class Pairs:
    """Distinct (token, GPU) pairs in compressed rows, sorted by token, then GPU, then expert slot.

    Token `t` has the pairs `token_ptr[t] <= q < token_ptr[t + 1]`. Pair `q` has the expert slots
    `slot[slot_ptr[q] : slot_ptr[q + 1]]`. The pair of a token with its source GPU is included if the token needs it.
    """

    token_ptr: I32  # [tokens + 1]
    gpu: I32  # [pairs]
    slot_ptr: I32  # [pairs + 1]
    slot: I32  # [useful rows]

    @property
    def token(self) -> I32:
        """The token of every pair: [pairs] int32."""
        n_tokens = self.token_ptr.size - 1
        return np.repeat(np.arange(n_tokens, dtype=np.int32), np.diff(self.token_ptr))


def pairs(routing: Routing) -> Pairs:
    """The distinct (token, destination GPU) pairs of a Routing. Dropped choices (-1) make no pair."""
    by_token = np.sort(routing.slot, axis=1)  # slots of one GPU become neighbours, dropped choices come first
    gpu = by_token // routing.placement.slots_per_gpu
    kept = by_token >= 0
    first = kept.copy()
    first[:, 1:] &= gpu[:, 1:] != gpu[:, :-1]

    slot = by_token[kept]
    pair_gpu = gpu[first]
    del by_token, gpu
    slot_ptr = np.append(np.flatnonzero(first[kept]).astype(np.int32), np.int32(slot.size))
    token_ptr = np.zeros(routing.n_tokens + 1, dtype=np.int32)
    np.cumsum(first.sum(axis=1, dtype=np.int32), out=token_ptr[1:])
    return Pairs(token_ptr, pair_gpu, slot_ptr, slot)
