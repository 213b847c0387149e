"""NVIDIA Dynamo on vLLM: a JSON object `{data, shape, dtype, start}`, alone or inside an answer of the server."""

import base64
import math
from collections.abc import Iterator
from typing import Any

from dysharp.base import ByName, ConfigError
from dysharp.workload.importers.dump import Dump, answers, base64_bytes, checked_array, child, choices
from dysharp.workload.importers.pieces import Hints, Imported, Piece, imported

SUMMARY = "NVIDIA Dynamo: JSON object {data, shape, dtype, start}, base64 (or base85 without dtype)"
_BY_BYTES = {1: "uint8", 2: "uint16", 4: "int32", 8: "int64"}


def sniff(dump: Dump) -> bool:
    """Whether one of the usual places has a JSON object with text in `data` and a list in `shape`."""
    return any(True for _ in _objects(dump))


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording with one sequence per object. The server did not send the first `start` rows of a sequence."""
    pieces, notes = [], []
    for where, item in _objects(dump):
        shape = _shape(where, item["shape"])
        array = _numbers(where, item, shape)
        pieces.append(Piece(where, array.transpose(1, 0, 2), seq_len=(shape[0],)))
        if isinstance(item.get("start"), int) and item["start"] > 0:
            notes.append(f"the first {item['start']} rows of a sequence were not recorded")
    if not pieces:
        raise ConfigError(f"{dump.path}: no object with data and shape, expected one")
    return imported("dynamo", dump, pieces, hints, notes=tuple(dict.fromkeys(notes)))


def _objects(dump: Dump) -> Iterator[tuple[str, ByName]]:
    for where, answer in answers(dump):
        for place in (answer, child(answer, "nvext"), *choices(answer)):
            for item in (place, child(place, "routed_experts")):
                if isinstance(child(item, "data"), str) and isinstance(child(item, "shape"), list):
                    yield where, item


def _shape(where: str, value: list[Any]) -> tuple[int, int, int]:
    # Every length is below 2^31, so that their product is a number that Python prints.
    if len(value) != 3 or not all(type(length) is int and 0 < length < 1 << 31 for length in value):
        raise ConfigError(f"{where}: found shape {str(value[:8])[:60]}, expected three numbers from 1 to {(1 << 31) - 1}: tokens, layers, topk")
    return value[0], value[1], value[2]


def _numbers(where: str, item: ByName, shape: tuple[int, int, int]) -> Any:
    if "dtype" in item:
        return checked_array(base64_bytes(item["data"], where), where, item["dtype"], shape)
    try:
        data = base64.b85decode(item["data"])
    except ValueError as error:
        raise ConfigError(f"{where}: malformed base85 (there is no dtype, so an older sender): {error}") from None
    # Older senders do not name the type. The length of the data gives it.
    n_bytes, rest = divmod(len(data), math.prod(shape))
    if rest or n_bytes not in _BY_BYTES:
        raise ConfigError(f"{where}: found {len(data)} bytes, expected {' or '.join(map(str, _BY_BYTES))} for each number of shape {shape}")
    return checked_array(data, where, _BY_BYTES[n_bytes], shape)
