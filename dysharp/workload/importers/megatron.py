"""Megatron-Core's routing replay, a file of `torch.save`.

It holds a list with one array [tokens, topk] per MoE layer, or one array [tokens, layers, topk].
"""

import numpy as np

from dysharp.base import ConfigError
from dysharp.workload.importers.dump import Dump, integer_array
from dysharp.workload.importers.pieces import Hints, Imported, Piece, imported

SUMMARY = "Megatron-Core RouterReplay: torch.save of a list of [tokens, topk], or of the buffer [tokens, layers, topk]"


def sniff(dump: Dump) -> bool:
    """Whether the file is a torch file with a list of arrays of two axes, or with one array of three axes."""
    content = dump.content
    if dump.kind != "torch":
        return False
    if isinstance(content, np.ndarray):
        return content.ndim == 3
    return isinstance(content, list) and bool(content) and all(isinstance(a, np.ndarray) and a.ndim == 2 for a in content)


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording of the tokens of one rank. Layers are in the order in which Megatron made their routers."""
    where, content = str(dump.path), dump.content
    if isinstance(content, np.ndarray):
        expert = integer_array(content, where, (3,), "[tokens, layers, topk]").transpose(1, 0, 2)
    elif isinstance(content, list) and content:
        layers = [integer_array(array, f"{where}: entry {i}", (2,), "[tokens, topk]") for i, array in enumerate(content)]
        for i, array in enumerate(layers):
            if array.shape != layers[0].shape:
                raise ConfigError(f"{where}: entry {i}: found shape {array.shape}, expected {layers[0].shape} as entry 0")
        expert = np.stack(layers)
    else:
        raise ConfigError(f"{where}: found {type(content).__name__}, expected a list of [tokens, topk] or one array [tokens, layers, topk]")
    return imported("megatron", dump, [Piece(where, expert)], hints)
