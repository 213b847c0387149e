"""Deals the tokens of a recording to source GPUs."""

import numpy as np

from dysharp.base import I32, I64, Bools, ConfigError, Texts
from dysharp.workload.traces import Recording


def deal(trace: Recording, row: int, n_gpus: int, tokens_per_gpu: int, window: str, rng: np.random.Generator) -> tuple[I32, Texts]:
    """Expert ids of every GPU's tokens: ([n_gpus * tokens_per_gpu, topk] int32, notes for the header).

    window
        "in-order": each GPU gets whole sequences, as in a prefill batch. One sequence alone is cut over the GPUs.
        "decode": each GPU gets one token of each of many sequences, as in a decode batch of many requests.
        "mixed": each GPU gets tokens of all sequences, drawn without regard to sequences.

    Tokens without a recorded choice in this layer are left out. If the recording is too short, its tokens are dealt
    again, and a warning says how often. Raises ConfigError for a layer without a complete token.
    """
    keep = trace.recorded(row)
    ids = trace.expert[row][keep]
    if not len(ids):
        raise ConfigError(f"trace {trace.name}: layer {trace.layers[row]} has no complete token")
    notes = []
    if len(ids) < trace.n_tokens:
        notes.append(f"{trace.n_tokens - len(ids)} of {trace.n_tokens} tokens not recorded in this layer, left out")
    if window == "mixed":
        token = _mixed(len(ids), n_gpus * tokens_per_gpu, rng)
    elif window == "decode":
        lengths = _kept_lengths(trace, keep, 1)
        token = _one_of_each(lengths, n_gpus * tokens_per_gpu, rng)
        dealt = f"{n_gpus * tokens_per_gpu} requests stand for one token each, from {lengths.size} recorded sequences"
        notes.append("no sequence lengths recorded: every token stands for a request of its own" if trace.seq_len is None else dealt)
    else:
        lengths = _kept_lengths(trace, keep, tokens_per_gpu)
        alone = n_gpus > 1 and (lengths.size == 1 if trace.seq_len is not None else lengths.size < n_gpus)
        if alone:
            notes.append(f"one sequence: each GPU starts at its own token of the {len(ids)}")
        elif trace.seq_len is None:
            notes.append(f"no sequence lengths recorded: cut into windows of {tokens_per_gpu} tokens")
        token = _cut(len(ids), n_gpus, tokens_per_gpu) if alone else _in_order(lengths, n_gpus, tokens_per_gpu, rng)
    return ids[token].astype(np.int32), (*notes, *_repetition(token, len(ids), n_gpus))


def _repetition(token: I64, n_recorded: int, n_gpus: int) -> Texts:
    """A warning where tokens were dealt more than once, else ()."""
    n_distinct = np.unique(token).size
    if n_distinct == token.size:
        return ()
    gpu = np.repeat(np.arange(n_gpus, dtype=np.int64), token.size // n_gpus)
    readers = np.bincount(np.unique(token * n_gpus + gpu) // n_gpus, minlength=1)
    text = f"{token.size} tokens are dealt, but only {n_distinct} of the {n_recorded} recorded tokens are distinct among them"
    return (f"warning: {text}; up to {readers.max()} of {n_gpus} GPUs read the same token",)


def _mixed(n_recorded: int, n_needed: int, rng: np.random.Generator) -> I64:
    """Indices of the tokens to deal, [n_needed]. No token comes again before all have come."""
    token = np.empty(n_needed, dtype=np.int64)
    for start in range(0, n_needed, n_recorded):
        token[start : start + n_recorded] = rng.permutation(n_recorded)[: n_needed - start]
    return token


def _one_of_each(lengths: I64, n_needed: int, rng: np.random.Generator) -> I64:
    """Indices of the tokens to deal, [n_needed]: one of every sequence, then another one of every sequence, and so on.

    Sequences come in a random order in every round, tokens of a sequence in a random order. A sequence whose tokens
    have all come is left out until all tokens of all sequences have come.
    """
    start_of = np.cumsum(lengths) - lengths
    token = np.empty(n_needed, dtype=np.int64)
    filled = 0
    while filled < n_needed:
        shuffled = [start + rng.permutation(length) for start, length in zip(start_of.tolist(), lengths.tolist(), strict=True)]
        for turn in range(int(lengths.max())):
            having = rng.permutation(np.flatnonzero(lengths > turn))[: n_needed - filled]
            token[filled : filled + having.size] = [shuffled[sequence][turn] for sequence in having.tolist()]
            filled += having.size
            if filled == n_needed:
                break
    return token


def _cut(n_recorded: int, n_gpus: int, tokens_per_gpu: int) -> I64:
    """Token indices [n_gpus * tokens_per_gpu] of one sequence: every GPU reads on from a place of its own.

    A long sequence is cut into neighbouring parts. A short one is read as a ring from equally distant places.
    """
    apart = max(1, min(tokens_per_gpu, n_recorded // n_gpus))
    begin = apart * np.arange(n_gpus, dtype=np.int64)
    return ((begin[:, None] + np.arange(tokens_per_gpu)) % n_recorded).reshape(-1)


def _kept_lengths(trace: Recording, keep: Bools, tokens_per_gpu: int) -> I64:
    """Lengths of the sequences without their unrecorded tokens. A sequence of length 0 is left out."""
    if trace.seq_len is None:
        n_kept = int(keep.sum())
        n_full, rest = divmod(n_kept, tokens_per_gpu)
        return np.array([tokens_per_gpu] * n_full + [rest] * (rest > 0), dtype=np.int64)
    starts = np.cumsum(trace.seq_len) - trace.seq_len
    left = np.add.reduceat(keep, starts, dtype=np.int64)
    return left[left > 0]


def _in_order(lengths: I64, n_gpus: int, tokens_per_gpu: int, rng: np.random.Generator) -> I64:
    """Token indices [n_gpus * tokens_per_gpu].

    Sequences come in a random order. No sequence comes again before all have come. A GPU takes whole sequences until
    it is full. The tail of its last sequence is not used.
    """
    start_of = np.cumsum(lengths) - lengths
    token = np.empty((n_gpus, tokens_per_gpu), dtype=np.int64)
    queue = rng.permutation(lengths.size)
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
    return token.reshape(-1)
