"""vLLM with `enable_return_routed_experts`: `.npy` or `.npz` of offline runs, JSON answers of the server.

Arrays are [tokens, layers, topk]. A JSON answer has one base64 `.npy` per choice and, since v0.21, one for the prompt.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dysharp.base import Array, ByName, ConfigError
from dysharp.workload.importers.dump import Dump, answers, child, choices, integer_array, npy_of
from dysharp.workload.importers.pieces import Hints, Imported, Piece, imported

SUMMARY = "vLLM routed_experts: .npy or .npz [tokens, layers, topk], or a JSON answer of the server"
_AXES = "[tokens, layers, topk]"


def sniff(dump: Dump) -> bool:
    """Whether the file is a bare array of three axes, or has `routed_experts` as an array or as base64 text."""
    if dump.kind == "npy":
        return bool(dump.content.ndim == 3)
    if dump.kind == "npz":
        return "routed_experts" in dump.content
    return any(isinstance(child(choice, "routed_experts"), str) for _, answer in answers(dump) for choice in choices(answer))


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording. A prompt and its first answer are one sequence. Each further answer to the prompt is a sequence."""
    pieces = [Piece(where, array.transpose(1, 0, 2), seq_len=(len(array),)) for where, array in _arrays(dump, hints)]
    if not pieces:
        raise ConfigError(f"{dump.path}: holds no routed_experts, expected arrays {_AXES}")
    return imported("vllm", dump, pieces, hints)


def _arrays(dump: Dump, hints: Hints) -> Iterator[tuple[str, Array]]:
    if dump.kind == "npy":
        yield str(dump.path), integer_array(dump.content, str(dump.path), (3,), _AXES)
    elif dump.kind == "npz":
        arrays = [(name, dump.content[name]) for name in ("prompt_routed_experts", "routed_experts") if name in dump.content]
        yield str(dump.path), _end_to_end([integer_array(a, f"{dump.path}: {name}", (3,), _AXES) for name, a in arrays], str(dump.path))
    else:
        for where, answer in answers(dump):
            yield from _of_answer(where, answer, hints)


def _of_answer(where: str, answer: ByName, hints: Hints) -> Iterator[tuple[str, Array]]:
    prompt = _decoded(child(answer, "prompt_routed_experts"), f"{where}: prompt_routed_experts", hints)
    for number, choice in enumerate(choices(answer)):
        here = f"{where}: choice {number}"
        own = _decoded(child(choice, "routed_experts"), f"{here}: routed_experts", hints)
        # The prompt ran once for all its answers.
        parts = [part for part in (prompt if number == 0 else None, own) if part is not None]
        if parts:
            yield here, _end_to_end(parts, here)


def _decoded(text: Any, where: str, hints: Hints) -> Array | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigError(f"{where}: found {type(text).__name__}, expected base64 text")
    return integer_array(npy_of(text, where, hints.max_bytes), where, (3,), _AXES)


def _end_to_end(parts: list[Array], where: str) -> Array:
    if len({part.shape[1:] for part in parts}) != 1:
        raise ConfigError(f"{where}: found {' and '.join(str(part.shape) for part in parts)}, expected the same layers and topk in prompt and answer")
    return np.concatenate(parts)
