"""Loads of expert-parallel load balancers: `weight [layers, experts]` of DeepSeek's EPLB, load windows of vLLM."""

from typing import Any

import numpy as np

from dysharp.base import Array, ConfigError
from dysharp.workload.importers.dump import Dump
from dysharp.workload.importers.pieces import Hints, Imported, check_counts, imported_counts, summed

SUMMARY = "EPLB loads: weight [layers, experts], or vLLM's expert_load_window with physical_to_logical_map"
_LOADS = ("weight", "expert_load", "expert_load_pass", "expert_load_window")


def sniff(dump: Dump) -> bool:
    """Whether the file is a bare array with two axes, or has an array with a name of `_LOADS`."""
    if isinstance(dump.content, np.ndarray):
        return dump.content.ndim == 2
    return any(isinstance(dump.mapping().get(name), np.ndarray) for name in _LOADS)


def load(dump: Dump, hints: Hints) -> Imported:
    """A recording with these loads, summed per logical expert and over the steps of a window."""
    where, name, load_ = str(dump.path), "weight", dump.content
    if not isinstance(load_, np.ndarray):
        name = next((n for n in _LOADS if isinstance(dump.mapping().get(n), np.ndarray)), "")
        load_ = dump.mapping().get(name)
    if load_ is None or load_.dtype.kind not in "iuf" or load_.ndim not in (2, 3) or 0 in load_.shape:
        form = "nothing" if load_ is None else f"{load_.dtype} of shape {load_.shape}"
        raise ConfigError(f"{where}: {name}: found {form}, expected loads [layers, experts] or [steps, layers, experts]")
    per_layer = load_ if load_.ndim == 2 else summed(f"{where}: {name}", load_)
    table = dump.mapping().get("physical_to_logical_map")
    if table is not None:
        per_layer = _logical(where, per_layer, table)
    return imported_counts("eplb", where, dump.path.stem, per_layer, tuple(range(len(per_layer))), hints)


def _logical(where: str, per_slot: Array, table: Any) -> Array:
    here = f"{where}: physical_to_logical_map"
    if not isinstance(table, np.ndarray) or table.dtype.kind not in "iu" or table.shape != per_slot.shape:
        raise ConfigError(f"{here}: found {getattr(table, 'shape', type(table).__name__)}, expected integers of shape {per_slot.shape} as the loads")
    if table.min() < 0 or table.max() >= 1 << 16:
        raise ConfigError(f"{here}: found expert {table.min() if table.min() < 0 else table.max()}, expected 0 to {(1 << 16) - 1}")
    check_counts(where, per_slot, tuple(range(len(per_slot))))
    out = np.zeros((len(table), int(table.max()) + 1), dtype=per_slot.dtype)
    np.add.at(out, (np.arange(len(table))[:, None], table), per_slot)
    return out
