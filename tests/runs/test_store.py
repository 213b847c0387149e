"""A stored Row is used for its point, its files and its code only, and only undamaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.figures import Point, Store
from dysharp.runs.store import _input_files

POINT = Point("deepep", "S-8", "paper-gh200-nvl32", "uniform", gpus=4, tokens=16)
ROW = {"time_us": 1.5, "blocks": {}}


def trace(path: Path, first: int) -> None:
    with path.open("wb") as file:
        np.savez(file, expert=np.array([[[first, 2]]], np.int16), meta=np.array('{"E": 16}'))


@pytest.mark.parametrize(
    "routing", ["trace:{}", "trace:{}:layer=0", "{}", "trace:{}:layer=0:window=mixed", "counts:{}:model=a", "counts:{}:layer=0:model=a"]
)
def test_a_file_that_the_routing_names_is_part_of_the_key(routing: str, tmp_path: Path) -> None:
    file = tmp_path / ("tr.npz" if "counts" not in routing else "cn.csv")
    point, store = replace(POINT, routing=routing.format(file)), Store(tmp_path / "store")
    trace(file, 0)
    store.put(point, ROW)
    assert store.get(point) == ROW
    trace(file, 1)
    assert store.get(point) is None


def test_a_file_that_the_model_names_is_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(f'base = "S-8"\nname = "mine"\nrouting = "trace:{tmp_path / "tr.npz"}:layer=0"\n')
    point, store = replace(POINT, model=str(tmp_path / "m.toml"), routing=""), Store(tmp_path / "store")
    assert tmp_path / "tr.npz" in _input_files(point)
    trace(tmp_path / "tr.npz", 0)
    store.put(point, ROW)
    assert store.get(point) == ROW
    trace(tmp_path / "tr.npz", 1)
    assert store.get(point) is None
    assert tmp_path / "tr.npz" not in _input_files(replace(point, routing="uniform"))


def test_a_folder_of_a_model_stands_for_its_config(tmp_path: Path) -> None:
    point, store = replace(POINT, model=str(tmp_path)), Store(tmp_path / "store")
    (tmp_path / "config.json").write_text("{}")
    one = store.path(point)
    (tmp_path / "config.json").write_text("[]")
    assert store.path(point) != one


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record | {"point": record["point"] | {"tokens": 32}},
        lambda record: record | {"code": "other"},
        lambda record: record | {"row": {}},
        lambda record: record | {"row": record["row"] | {"time_us": "fast"}},
        lambda record: {"row": record["row"]},
        lambda record: [record],
    ],
)
def test_a_record_of_another_point_or_a_changed_one_is_not_believed(damage, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(POINT, ROW)
    assert store.get(POINT) == ROW
    record = json.loads(store.path(POINT).read_text())
    store.path(POINT).write_text(json.dumps(damage(record)))
    assert store.get(POINT) is None


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\0" * 100])
def test_a_damaged_file_is_no_record(text: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path(POINT).write_text(text)
    assert store.get(POINT) is None
    assert not list(store)


def test_a_folder_in_place_of_a_record_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path(POINT).mkdir()
    assert store.get(POINT) is None
    with pytest.raises(ConfigError, match=rf"{store.path(POINT).name}.*found a folder"):
        store.put(POINT, ROW)
    with pytest.raises(ConfigError, match="expected a folder to write to"):
        Store(tmp_path / ("x" * 300)).open()
