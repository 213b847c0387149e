"""The inputs of DeepEP's calls: `topk_idx [tokens, topk]` (-1 = none) and `topk_weights`, one layer."""

import numpy as np

from dysharp.base import ConfigError
from dysharp.workload.importers.dump import Dump, integer_array
from dysharp.workload.importers.pieces import Hints, Imported, Piece, imported

SUMMARY = "DeepEP: topk_idx [tokens, topk] and topk_weights in .npz or torch.save, or bare [tokens, topk]"


def sniff(dump: Dump) -> bool:
    """Whether the file has an array `topk_idx`, or is a bare array of integers with two axes."""
    if isinstance(dump.content, np.ndarray):
        return dump.content.ndim == 2 and dump.content.dtype.kind in "iu"
    return isinstance(dump.mapping().get("topk_idx"), np.ndarray)


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording of one layer, with number 0."""
    where = str(dump.path)
    value = dump.content if isinstance(dump.content, np.ndarray) else dump.mapping().get("topk_idx")
    expert = integer_array(value, f"{where}: topk_idx", (2,), "[tokens, topk]")
    weight = dump.mapping().get("topk_weights")
    if weight is not None and (not isinstance(weight, np.ndarray) or weight.dtype.kind != "f" or weight.shape != expert.shape):
        raise ConfigError(f"{where}: topk_weights: found {getattr(weight, 'shape', type(weight).__name__)}, expected floats of shape {expert.shape}")
    piece = Piece(where, expert[None], None if weight is None else weight[None])
    return imported("deepep", dump, [piece], hints)
