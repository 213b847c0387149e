"""Deals the tokens of a recording to source GPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError
from dysharp.workload.traces import Recording


def deal(
    trace: Recording, row: int, n_gpus: int, tokens_per_gpu: int, window: str, rng: np.random.Generator
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Expert ids of every GPU's tokens: ([n_gpus * tokens_per_gpu, topk] int32, notes for the header).

    window
        "in-order": each GPU gets whole sequences, as in a prefill batch.
        "mixed": each GPU gets tokens of all sequences, as in a decode batch of many users.

    Tokens without a recorded choice in this layer are left out. If the recording is too short, its tokens are dealt
    again in a new order, and a note says so. Raises ConfigError for a layer without a complete token.
    """
    keep = trace.recorded(row)
    ids = trace.expert[row][keep]
    if not len(ids):
        raise ConfigError(f"trace {trace.name}: layer {trace.layers[row]} has no complete token")
    notes = []
    if len(ids) < trace.n_tokens:
        notes.append(
            f"{trace.n_tokens - len(ids)} of {trace.n_tokens} tokens not recorded in this layer, left out"
        )
    if window == "mixed":
        token, n_drawn = _mixed(len(ids), n_gpus * tokens_per_gpu, rng)
        what = "tokens"
    else:
        lengths = _kept_lengths(trace, keep, tokens_per_gpu)
        if trace.seq_len is None:
            notes.append(f"no sequence lengths recorded: cut into windows of {tokens_per_gpu} tokens")
        token, n_drawn = _in_order(lengths, n_gpus, tokens_per_gpu, rng)
        what = "sequences"
    if n_drawn > len(ids):
        notes.append(f"trace is short: {what} drawn again {n_drawn / len(ids):.1f} times")
    return ids[token].astype(np.int32), tuple(notes)


def _mixed(n_recorded: int, n_needed: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """Indices of the tokens to deal [n_needed], and their number. No token comes again before all have come."""
    token = np.empty(n_needed, dtype=np.int64)
    for start in range(0, n_needed, n_recorded):
        token[start : start + n_recorded] = rng.permutation(n_recorded)[: n_needed - start]
    return token, n_needed


def _kept_lengths(trace: Recording, keep: NDArray[np.bool_], tokens_per_gpu: int) -> NDArray[np.int64]:
    """Lengths of the sequences without their unrecorded tokens. A sequence of length 0 is left out."""
    if trace.seq_len is None:
        n_kept = int(keep.sum())
        n_full, rest = divmod(n_kept, tokens_per_gpu)
        return np.array([tokens_per_gpu] * n_full + [rest] * (rest > 0), dtype=np.int64)
    starts = np.cumsum(trace.seq_len) - trace.seq_len
    left = np.add.reduceat(keep, starts, dtype=np.int64)
    return left[left > 0]


def _in_order(
    lengths: NDArray[np.int64], n_gpus: int, tokens_per_gpu: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], int]:
    """Token indices [n_gpus * tokens_per_gpu], and the number of recorded tokens in the dealt sequences.

    Sequences come in a random order. No sequence comes again before all have come. A GPU takes whole sequences until
    it is full. The tail of its last sequence is not used.
    """
    start_of = np.cumsum(lengths) - lengths
    token = np.empty((n_gpus, tokens_per_gpu), dtype=np.int64)
    queue = rng.permutation(lengths.size)
    n_drawn = 0
    for gpu in range(n_gpus):
        filled = 0
        while filled < tokens_per_gpu:
            if not queue.size:
                queue = rng.permutation(lengths.size)
            # Take all sequences that fit at once: one Python step per short sequence would be slow.
            ends = np.cumsum(lengths[queue])
            n_taken = min(int(np.searchsorted(ends, tokens_per_gpu - filled)) + 1, queue.size)
            taken, queue = queue[:n_taken], queue[n_taken:]
            n_tokens = int(ends[n_taken - 1])
            first = np.repeat(start_of[taken] - (ends[:n_taken] - lengths[taken]), lengths[taken])
            room = min(n_tokens, tokens_per_gpu - filled)
            token[gpu, filled : filled + room] = (first + np.arange(n_tokens))[:room]
            filled += room
            n_drawn += n_tokens
    return token.reshape(-1), n_drawn
