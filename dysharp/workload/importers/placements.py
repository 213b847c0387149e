"""Placements from the tables of load balancers, as the lists that `--placement FILE.json` reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import AnyPath, ConfigError, show
from dysharp.workload.importers.dump import Dump, integer_array, read_dump
from dysharp.workload.npz import MAX_BYTES

_TABLES = ("phy2log", "physical_to_logical_map", "last_physical_to_logical_map")
_MAX_EXPERT = (1 << 16) - 1


def import_placement(path: AnyPath, layer: int, n_gpus: int | None = None) -> list[list[int]]:
    """The expert ids that every GPU holds in one layer, from a dump.

    | dump | meaning |
    |---|---|
    | `phy2log [layers, replicas]`, `.npz` or torch.save | GPU g of `n_gpus` holds the g-th equal part, -1 = empty |
    | JSON of vLLM-Ascend's `expert_map_record_path` | the file lists the experts of every device |

    `phy2log` of DeepSeek's EPLB has other names in vLLM and SGLang, which are accepted. Raises ConfigError for another dump and for a missing layer.
    """
    dump = read_dump(Path(path), MAX_BYTES)
    if dump.kind == "json":
        held = _of_expert_map(dump, layer)
        if n_gpus not in (None, len(held)):
            raise ConfigError(f"{dump.path}: found {len(held)} devices, expected {n_gpus}")
        return held
    return _of_table(dump, layer, n_gpus)


def placement_json(held: list[list[int]]) -> str:
    """The text of a placement file, one line per GPU."""
    return '{"gpus": [\n' + ",\n".join(f"  {json.dumps(experts)}" for experts in held) + "\n]}\n"


def _of_table(dump: Dump, layer: int, n_gpus: int | None) -> list[list[int]]:
    name = next((n for n in _TABLES if n in dump.mapping()), None)
    if name is None:
        raise ConfigError(f"{dump.path}: holds none of {', '.join(_TABLES)}, expected one of them or an expert map in JSON")
    table = integer_array(dump.mapping()[name], f"{dump.path}: {name}", (2,), "[layers, replicas]")
    if n_gpus is None:
        raise ConfigError(f"{dump.path}: the number of GPUs is not in the file, expected --gpus G")
    n_layers, n_slots = table.shape
    if not 0 <= layer < n_layers:
        raise ConfigError(f"{dump.path}: no layer {layer}, expected 0 to {n_layers - 1}")
    if n_gpus < 1 or n_slots % n_gpus:
        raise ConfigError(f"{dump.path}: found {n_slots} replicas, expected a multiple of {n_gpus} GPUs")
    wrong = (table[layer] < -1) | (table[layer] > _MAX_EXPERT)
    if wrong.any():
        column = int(wrong.argmax())
        raise ConfigError(f"{dump.path}: {name}: row {layer}, column {column}: found {table[layer, column]}, expected -1 to {_MAX_EXPERT}")
    return [[int(e) for e in part if e >= 0] for part in np.split(table[layer], n_gpus)]


def _of_expert_map(dump: Dump, layer: int) -> list[list[int]]:
    layers = _items(dump, dump.content[0] if len(dump.content) == 1 else None, "layer_list")
    entry_of_layer = next((entry for entry in layers if isinstance(entry, dict) and entry.get("layer_id") == layer), None)
    if entry_of_layer is None:
        known = ", ".join(str(entry.get("layer_id"))[:12] for entry in layers[:40] if isinstance(entry, dict))
        raise ConfigError(f"{dump.path}: no layer {layer}, expected one of {known}")
    held: dict[int, list[int]] = {}
    for row, device in enumerate(_items(dump, entry_of_layer, "device_list")):
        number = device.get("device_id") if isinstance(device, dict) else None
        experts = _items(dump, device, "device_expert")
        fits = type(number) is int and number not in held and all(type(e) is int and 0 <= e <= _MAX_EXPERT for e in experts)
        if not fits or not isinstance(number, int):
            raise ConfigError(f"{dump.path}: layer {layer}, device {row}: found a device_id or expert that cannot be, expected each device once")
        held[number] = experts
    for key, found, of in (("moe_layer_count", len(layers), dump.content[0]), ("device_count", len(held), entry_of_layer)):
        if of.get(key, found) != found:
            raise ConfigError(f"{dump.path}: {key}: found {show(of[key])} beside a list of {found}, expected {found}")
    if missing := {*range(max(e for experts in held.values() for e in experts))} - {e for experts in held.values() for e in experts}:
        raise ConfigError(f"{dump.path}: layer {layer}: found no device with expert {min(missing)}, expected every expert")
    if sorted(held) != list(range(len(held))):
        raise ConfigError(f"{dump.path}: layer {layer}: found devices {str(sorted(held))[:60]}, expected 0 to {len(held) - 1}")
    return [held[device] for device in range(len(held))]


def _items(dump: Dump, value: Any, key: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    if not isinstance(items, list) or not items:
        shape = "{layer_list: [{layer_id, device_list: [{device_id, device_expert}]}]}"
        raise ConfigError(f"{dump.path}: no list {key}, expected an expert map {shape}")
    return items
