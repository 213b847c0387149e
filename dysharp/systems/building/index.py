"""`PairIndex`: index arrays of a Routing. Nothing here depends on a machine or on a system."""

from functools import cached_property

import numpy as np

from dysharp.program import I32, I64, stable_order
from dysharp.workload import Routing, pairs


class PairIndex:
    """The distinct (token, GPU) pairs and the (token, expert) rows of a Routing, both in token order (`workload.Pairs`).

    `token`, `gpu`, `source`, `rows`: `[pairs]` token, GPU that needs the token, GPU of the token, useful rows.
    `slot`: `[useful rows]` expert slot. Pair q has the useful rows `slot_ptr[q]` to `slot_ptr[q + 1] - 1`, token t has the pairs
    `token_ptr[t]` to `token_ptr[t + 1] - 1`.
    """

    def __init__(self, routing: Routing) -> None:
        found = pairs(routing)
        self.n_gpus, self.n_tokens, self.tokens = routing.n_gpus, routing.n_tokens, routing.tokens_per_gpu
        self.token, self.gpu, self.slot = found.token, found.gpu, found.slot
        self.token_ptr, self.slot_ptr = found.token_ptr, found.slot_ptr
        self.source: I32 = self.token // np.int32(self.tokens)
        self.rows: I64 = np.diff(self.slot_ptr)

    @cached_property
    def token_pairs(self) -> I64:
        """`[tokens]` distinct GPUs of each token."""
        return np.diff(self.token_ptr)

    @cached_property
    def pair_of(self) -> I64:
        """`[tokens, gpus]` index of the (token, GPU) pair, -1 = the GPU has no expert of the token."""
        pair = np.full((self.n_tokens, self.n_gpus), -1, np.int64)
        pair[self.token, self.gpu] = np.arange(len(self.gpu))
        return pair

    @cached_property
    def row_token(self) -> I32:
        """`[useful rows]` token of each row; rows of one token are in the order of their slots."""
        return np.repeat(self.token, self.rows)

    @cached_property
    def row_gpu(self) -> I32:
        """`[useful rows]` GPU of the expert."""
        return np.repeat(self.gpu, self.rows)

    @cached_property
    def row_source(self) -> I32:
        """`[useful rows]` GPU of the token."""
        return np.repeat(self.source, self.rows)

    @cached_property
    def sent(self) -> I64:
        """Tokens with at least one expert (not dropped)."""
        return np.flatnonzero(self.token_pairs > 0)

    @cached_property
    def sent_source(self) -> I32:
        """`[sent]` source GPU."""
        return (self.sent // self.tokens).astype(np.int32)

    @cached_property
    def every_source(self) -> I32:
        """`[tokens]` source GPU."""
        return np.repeat(np.arange(self.n_gpus, dtype=np.int32), self.tokens)

    @cached_property
    def token_rows(self) -> I64:
        """`[tokens]` useful rows of each token."""
        return np.diff(self.slot_ptr[self.token_ptr]).astype(np.int64)

    @cached_property
    def sent_of_pair(self) -> I64:
        """`[pairs]` index into `sent` of each pair's token."""
        return (np.cumsum(self.token_pairs > 0) - 1)[self.token]

    @cached_property
    def sent_of_row(self) -> I64:
        """`[useful rows]` index into `sent` of each row's token."""
        return np.repeat(self.sent_of_pair, self.rows)

    @cached_property
    def listed(self) -> I64:
        """`[tokens]` experts on other GPUs: the entries of a token's target list."""
        remote = self.gpu != self.source
        return np.bincount(self.token[remote], weights=self.rows[remote], minlength=self.n_tokens).astype(np.int64)

    @cached_property
    def push_order(self) -> I64:
        """The pairs in the order in which GPUs push results: by GPU, then by the token's place at its source.

        Each GPU serves the sources in turn, beginning with the next GPU, so that it returns results to all sources at
        once. DeepEP does so too: its warps are split evenly over peers.
        """
        return stable_order(self._push_rank(self.token, self.gpu, self.source))

    @cached_property
    def row_push_order(self) -> I64:
        """The useful rows in `push_order` of their pairs; rows of one pair by slot."""
        return stable_order(self._push_rank(self.row_token, self.row_gpu, self.row_source))

    def _push_rank(self, token: I32, gpu: I32, source: I32) -> I64:
        turn = (source - gpu) % self.n_gpus
        return np.asarray((gpu.astype(np.int64) * self.tokens + token % self.tokens) * self.n_gpus + turn)

    def everywhere(self) -> tuple[I32, I32, I32]:
        """Every token to every GPU: `[tokens]` number of GPUs, `[tokens x gpus]` GPU, useful rows there."""
        rows = np.zeros(self.n_tokens * self.n_gpus, np.int32)
        rows[self.token.astype(np.int64) * self.n_gpus + self.gpu] = self.rows
        return np.full(self.n_tokens, self.n_gpus, np.int32), np.tile(np.arange(self.n_gpus, dtype=np.int32), self.n_tokens), rows
