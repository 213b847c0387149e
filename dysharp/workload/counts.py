"""Recorded loads per expert from a CSV with the columns `model,layer,expert,count`."""

import csv
import io
from pathlib import Path

import numpy as np

from dysharp.base import I64, ConfigError, Numbers, entry_of, frozen, nearest, read_text
from dysharp.workload.routing import Placement
from dysharp.workload.traces import MAX_EXPERTS, copies_max_mean

_COLUMNS = ["model", "layer", "expert", "count"]
_MAX_COUNT = 10**15


@frozen
class Counts:
    """Loads of one model. `count`: [layers, n_experts] int64. `layers`: the layer number of every row of `count`."""

    model: str
    layers: Numbers
    count: I64

    @property
    def n_experts(self) -> int:
        """Experts of every layer."""
        return int(self.count.shape[1])

    def row(self, layer: int | None, placement: Placement) -> int:
        """Index of a layer number. None: the layer whose max/mean of copies per GPU is the median.

        Raises ConfigError for a layer that the file does not have.
        """
        if layer is not None:
            if layer not in self.layers:
                known = ", ".join(str(number) for number in self.layers[:40])
                raise ConfigError(f"counts of {self.model}: no layer {layer}, expected one of {known}")
            return self.layers.index(layer)
        ratio = [copies_max_mean(count, placement) for count in self.count]
        return int(np.argsort(ratio, kind="stable")[(len(ratio) - 1) // 2])


def load_counts(path: Path, model: str = "", how: str = "add :model=NAME") -> Counts:
    """The counts of one model of a CSV file. `model` "": the only model of the file. `how`: to name one, in words.

    Raises ConfigError that names file and row for: other columns, a value that is no whole number, a negative count,
    an expert that is missing or occurs twice, a layer without any count.
    """
    tables = read_counts(path)
    if not model and len(tables) > 1:
        raise ConfigError(f"{path}: holds {len(tables)} models, {how}{nearest('', tables)}"[:400])
    chosen = model or next(iter(tables))
    return entry_of(chosen, tables, f"{path}: no model {chosen[:60]!r}")


def read_counts(path: Path) -> dict[str, Counts]:
    """The counts of all models of a CSV file, in file order. Raises ConfigError as `load_counts`."""
    cells: dict[str, dict[tuple[int, int], int]] = {}
    try:
        reader = csv.reader(io.StringIO(read_text(path)), strict=True)
        header = next(reader, [])
        if header != _COLUMNS:
            columns = ",".join(header)[:80]
            raise ConfigError(f"{path}: found columns {columns!r}, expected {','.join(_COLUMNS)!r}")
        for fields in reader:
            _add(cells, fields, f"{path}: row {reader.line_num}")
    except csv.Error as error:
        raise ConfigError(f"{path}: row {reader.line_num}: malformed CSV: {error}") from None
    if not cells:
        raise ConfigError(f"{path}: no rows, expected {','.join(_COLUMNS)!r}")
    return {model: _table(path, model, rows) for model, rows in cells.items()}


def _add(cells: dict[str, dict[tuple[int, int], int]], fields: list[str], where: str) -> None:
    if len(fields) != len(_COLUMNS):
        raise ConfigError(f"{where}: found {len(fields)} columns, expected {len(_COLUMNS)}")
    layer = _whole(fields[1], f"{where}, column layer", MAX_EXPERTS)
    expert = _whole(fields[2], f"{where}, column expert", MAX_EXPERTS - 1)
    rows = cells.setdefault(fields[0], {})
    if (layer, expert) in rows:
        raise ConfigError(f"{where}: found expert {expert} of layer {layer} again, expected each expert once")
    rows[layer, expert] = _whole(fields[3], f"{where}, column count", _MAX_COUNT)


def _whole(text: str, where: str, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= highest):
        raise ConfigError(f"{where}: found {text[:40]!r}, expected a whole number from 0 to {highest}")
    return int(text)


def _table(path: Path, model: str, rows: dict[tuple[int, int], int]) -> Counts:
    layers = tuple(sorted({layer for layer, _ in rows}))
    n_experts = 1 + max(expert for _, expert in rows)
    # Compare before taking memory: one row with a huge expert id must not lead to a huge table.
    if len(rows) != len(layers) * n_experts:
        layer, expert = next((layer, expert) for layer in layers for expert in range(n_experts) if (layer, expert) not in rows)
        raise ConfigError(f"{path}: {model[:60]}: layer {layer} has no row for expert {expert} of {n_experts}")
    count = np.array([rows[layer, expert] for layer in layers for expert in range(n_experts)], dtype=np.int64)
    count = count.reshape(len(layers), n_experts)
    if (count.sum(axis=1) == 0).any():
        layer = layers[int((count.sum(axis=1) == 0).argmax())]
        raise ConfigError(f"{path}: {model[:60]}: layer {layer} has only zero counts")
    return Counts(model, layers, count)
