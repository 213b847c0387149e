"""SGLang's server with `return_routed_experts`: JSON with base64 of bare numbers.

The numbers are int32 unless the answer names another dtype, as newer servers do.
"""

from typing import Any

from dysharp.base import ByName, ConfigError
from dysharp.workload.importers.dump import Dump, answers, base64_bytes, checked_array, child, choices, item_bytes
from dysharp.workload.importers.pieces import Hints, Imported, Piece, imported

SUMMARY = "SGLang server: JSON answer with meta_info.routed_experts; needs topk and the number of layers"


def sniff(dump: Dump) -> bool:
    """Whether the file has a JSON answer with base64 text in `meta_info.routed_experts`."""
    return any(isinstance(child(meta, "routed_experts"), str) for _, answer in answers(dump) for meta in _metas(answer))


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording with one sequence per answer. Layers are numbered by position, dense layers included."""
    topk, n_layers = hints.need("topk", str(dump.path)), hints.need("n_layers", str(dump.path))
    pieces = []
    for where, answer in answers(dump):
        for meta in _metas(answer):
            text = child(meta, "routed_experts")
            if isinstance(text, str):
                pieces.append(_piece(f"{where}: meta_info.routed_experts", text, meta.get("routed_experts_dtype", "int32"), n_layers, topk))
    if not pieces:
        raise ConfigError(f"{dump.path}: no meta_info.routed_experts, expected an answer of the server")
    return imported("sglang", dump, pieces, hints)


def _metas(answer: ByName) -> list[Any]:
    return [child(holder, "meta_info") for holder in (answer, *choices(answer))]


def _piece(where: str, text: str, dtype: Any, n_layers: int, topk: int) -> Piece:
    data = base64_bytes(text, where)
    row_bytes = n_layers * topk * item_bytes(dtype, where)
    n_tokens, rest = divmod(len(data), row_bytes)
    if rest or not n_tokens:
        raise ConfigError(f"{where}: found {len(data)} bytes, expected a multiple of {row_bytes} for {n_layers} layers of top-{topk} in {dtype}")
    return Piece(where, checked_array(data, where, dtype, (n_tokens, n_layers, topk)).transpose(1, 0, 2), seq_len=(n_tokens,))
